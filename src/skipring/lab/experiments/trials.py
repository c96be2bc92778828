"""Kinds of experiments: the actions of one run, and its measurements.

Each is a function of the run's parameters alone. All chance comes from the seed and no kind reads
a clock, so a run has the same rows on any machine.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from statistics import fmean
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from skipring.core.config import ProtocolConfig
from skipring.core.events import Event, NodeSuspected, Overwritten, Received, Tick
from skipring.core.messages import (
    SUPERVISOR_REQUESTS,
    IHave,
    Introduce,
    Message,
    PublishMany,
    PublishNew,
    RemoveConnections,
    SetConfiguration,
    Subscribe,
    Unsubscribe,
    Want,
)
from skipring.core.peers import NodeId
from skipring.core.state import SupervisorState
from skipring.core.supervisor import Supervisor
from skipring.core.topology import levels
from skipring.lab.experiments.lemmas import (
    LAYERS,
    StartFacts,
    is_database_valid,
    layers_holding,
    livelock_measures,
    potential_measures,
    session_measures,
    start_facts,
)
from skipring.lab.experiments.matrix import Trial
from skipring.sim.engine import IN_FLIGHT_PER_NODE_MAX, World
from skipring.sim.runner import Counters, Report, Simulation
from skipring.sim.scenario import Scenario, make_scenario
from skipring.world.adversaries import ADVERSARIES, legitimate_world
from skipring.world.legitimacy import channel_violations, explicit_state, has_all_publications
from skipring.world.snapshot import SubscriberView

NEWCOMER: Final[NodeId] = "newcomer"
ERROR_MAX: Final = 300  # characters. Guess: enough to name the cause.

# Messages that only an operation causes, not a legitimate ring (section 4.1).
CAUSED: Final[tuple[type[Message], ...]] = (Introduce, RemoveConnections, Subscribe, Unsubscribe)
SPREADING: Final[tuple[type[Message], ...]] = (PublishNew, PublishMany, IHave, Want)
# R15 defers answers until the next tick; the tick after it shows that there are no more.
ANSWERING_TICKS: Final = 2


class TrialResult(Struct, frozen=True):
    """Result of a run: a row of ``runs`` and its rows of ``rounds``, without their run_id."""

    row: dict[str, Any]
    samples: list[dict[str, Any]]


def perform(run: Trial) -> TrialResult:
    """Execute a run; an exception becomes a result, too."""
    try:
        return _KINDS[run.kind](run)
    except Exception as error:  # noqa: BLE001  (it is recorded as the outcome)
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return TrialResult(blank_row(run) | {"error": text[:ERROR_MAX]}, [])


# --- the kinds -------------------------------------------------------------------------


def _converge(run: Trial) -> TrialResult:
    """Run from the adversary's state to legitimacy, then check closure."""
    scenario = _scenario(run, adversary=run.adversary)
    facts = _facts(scenario)
    simulation = Simulation(scenario, in_flight_max=IN_FLIGHT_PER_NODE_MAX * run.n)
    samples = Samples(simulation.scenario.warm_up_rounds)
    outcome = _outcome(run, simulation.run(samples), simulation.world, samples, {})
    return TrialResult(outcome.row | facts, outcome.samples)


def _facts(scenario: Scenario) -> dict[str, bool]:
    """Return the facts about the start that hypotheses refer to; later crashes count."""
    facts = asdict(start_facts(scenario.start()))
    crashes = bool(ADVERSARIES[scenario.adversary].crash_rounds)
    return facts | {"start_crashed": facts["start_crashed"] or crashes}


def _steady(run: Trial) -> TrialResult:
    """Run a legitimate ring without events: count its messages and its changes."""
    simulation = _standing_ring(run)
    world, samples = simulation.world, Samples(simulation.world.round)
    begin, sent, state = Counters.of(world), Counter(world.sent), explicit_state(world)
    changes = 0
    samples(world)
    for _ in range(run.rounds):
        simulation.run_round()
        samples(world)
        changes += explicit_state(world) != state
    spent = Counters.of(world).since(begin)
    each = {
        f"{_snake(kind.__name__)}_per_node_round": count / run.n / run.rounds
        for kind, count in (world.sent - sent).items()
    }
    row = blank_row(run) | asdict(spent) | _degrees(world, samples)
    row |= {"converged": changes == 0, "closure_ok": changes == 0}
    row |= dict.fromkeys(("rounds_explicit", "rounds_strict", "rounds_publications"), 0)
    measures = each | {
        "rounds": float(run.rounds),
        "changes": float(changes),
        "requests_per_round": spent.supervisor_requests / run.rounds,
        "messages_per_node_round": spent.messages / run.n / run.rounds,
    }
    return TrialResult(row | {"measures": _sorted(measures)}, samples.rows)


def _subscribe(run: Trial) -> TrialResult:
    """Measure a node that joins a legitimate ring."""
    simulation = _standing_ring(run)
    asked = Received(Subscribe(NEWCOMER), NEWCOMER)
    return _operate(run, simulation, lambda: simulation.world.subscribe(NEWCOMER), asked)


def _unsubscribe(run: Trial) -> TrialResult:
    """Measure a member that leaves a legitimate ring."""
    simulation = _standing_ring(run)
    node = _random_member(run, simulation.world)
    asked = Received(Unsubscribe(node), node)
    return _operate(run, simulation, lambda: simulation.world.unsubscribe(node), asked)


def _crash(run: Trial) -> TrialResult:
    """Measure a member of a legitimate ring that crashes and is suspected at once."""
    simulation = _standing_ring(run)
    node = _random_member(run, simulation.world)
    return _operate(run, simulation, lambda: simulation.world.crash(node), NodeSuspected(node))


def _operate(
    run: Trial, simulation: Simulation, act: Callable[[], None], event: Event
) -> TrialResult:
    """Change a legitimate ring, and count the messages and rounds until it is legitimate again."""
    world = simulation.world
    cost = _supervisor_cost(world.supervisor.state(), simulation.scenario.protocol, event)
    before = Counter(world.sent)
    act()
    samples = Samples(world.round)
    report = simulation.run(samples)
    sent = samples.sent - before
    measures = {
        "supervisor_messages": float(cost),
        "subscriber_messages": float(sum(sent[kind] for kind in CAUSED)),
        "requests": float(sum(sent[kind] for kind in SUPERVISOR_REQUESTS)),
        "configurations": float(sent[SetConfiguration]),
    }
    if report.rounds_strict is not None:
        measures["rounds"] = float(report.rounds_strict)
    return _outcome(run, report, world, samples, measures)


def _spread(run: Trial) -> TrialResult:
    """Measure publications in a legitimate ring."""
    simulation = _standing_ring(run)
    world = simulation.world
    nodes, rng = sorted(world.subscribers), Random(f"publishers/{run.seed}")
    before = Counter(world.sent)
    for number in range(run.publications):
        world.publish(rng.choice(nodes), f"news {number}".encode())
    samples = Samples(world.round)
    report = simulation.run(samples)
    sent = samples.sent - before
    messages = float(sum(sent[kind] for kind in SPREADING))
    received = report.delivered_by_spreading + report.delivered_by_repair
    measures = {
        "spreading_messages": messages,
        "messages_per_delivery": messages / received if received else 0.0,
    }
    if report.rounds_publications is not None:
        measures["rounds_to_all"] = float(report.rounds_publications)
    return _outcome(run, report, world, samples, measures)


def _livelock(run: Trial) -> TrialResult:
    """Run the lockstep computation of the pseudocode until the state is legitimate or repeats."""
    start = _scenario(run, adversary=run.adversary).start()
    end, measures, samples = livelock_measures(start, run.max_rounds)
    row = blank_row(run) | asdict(start_facts(start)) | {"measures": _sorted(measures)}
    if end.is_legitimate:
        row |= dict.fromkeys(("rounds_explicit", "rounds_strict"), end.rounds)
    row |= {"converged": end.is_legitimate, "message_limit": end.is_full}
    return TrialResult(row, samples)


def _potential(run: Trial) -> TrialResult:
    """Repair scattered publications in a legitimate ring, and watch the potential."""
    rounds, measures = potential_measures(
        _scenario(run).protocol, run.n, run.publications, run.seed, run.max_rounds
    )
    row = blank_row(run) | {"measures": _sorted(measures), "rounds_publications": rounds}
    return TrialResult(row | {"converged": rounds is not None}, [])


def _session(run: Trial) -> TrialResult:
    """Compare the tries of two subscribers with the pseudocode."""
    measures = _sorted(session_measures(run.publications, run.seed))
    return TrialResult(blank_row(run) | {"converged": True, "measures": measures}, [])


def _topology(run: Trial) -> TrialResult:
    """Compare the skip ring with other overlays of the same size; simulate nothing."""
    from skipring.lab.experiments.overlays import overlay_measures  # noqa: PLC0415  (no other kind needs it)

    measures = _sorted(overlay_measures(run.n, run.seed))
    return TrialResult(blank_row(run) | {"converged": True, "measures": measures}, [])


_KINDS: Final[Mapping[str, Callable[[Trial], TrialResult]]] = {
    "converge": _converge,
    "steady": _steady,
    "subscribe": _subscribe,
    "unsubscribe": _unsubscribe,
    "crash": _crash,
    "spread": _spread,
    "livelock": _livelock,
    "potential": _potential,
    "session": _session,
    "topology": _topology,
}


# --- worlds ----------------------------------------------------------------------------


def _scenario(run: Trial, **more: str) -> Scenario:
    values = {
        name: getattr(run, name)
        for name in (
            *("n", "scheduler", "mode", "loss", "duplicate", "churn", "spread", "seed"),
            *("max_rounds", "closure"),
        )
    }
    without = run.without.split(",") if run.without else []
    scattered = run.publications if run.kind == "converge" else 0
    return make_scenario({**values, "without": without, "publications": scattered, **more})


def _standing_ring(run: Trial) -> Simulation:
    """Return a legitimate ring after some calm rounds."""
    start = legitimate_world(run.n, Random(f"standing ring/{run.seed}"))
    simulation = Simulation(_scenario(run), start)
    for _ in range(calm_rounds(run.n)):
        simulation.run_round()
    return simulation


def calm_rounds(n: int) -> int:
    """Return the rounds after which digests and tree of a legitimate ring no longer change."""
    config = ProtocolConfig.live()
    settled = 2 * levels(n) + config.digest_settle_ticks  # R14
    return max(settled, levels(n) + config.calm_ticks) + 1


def _random_member(run: Trial, world: World) -> NodeId:
    return Random(f"{run.kind}/{run.seed}").choice(sorted(world.subscribers))


def _supervisor_cost(state: SupervisorState, config: ProtocolConfig, event: Event) -> int:
    """Return the additional messages that a supervisor sends because of an event (section 4.1)."""
    return _messages_sent(state, config, event) - _messages_sent(state, config, None)


def _messages_sent(state: SupervisorState, config: ProtocolConfig, event: Event | None) -> int:
    machine = Supervisor(config=config)
    machine.handle(Overwritten(state))
    events = [event] if event is not None else []
    return sum(len(machine.handle(item)) for item in [*events, *[Tick()] * ANSWERING_TICKS])


# --- rows ------------------------------------------------------------------------------


def blank_row(run: Trial) -> dict[str, Any]:
    """Return the row of a run without results."""
    row: dict[str, Any] = {"run_id": run.run_id, **asdict(run)}
    del row["rounds"]
    row |= asdict(StartFacts())
    row |= {
        "converged": False,
        "message_limit": False,
        "closure_ok": None,
        "measures": {},
        "error": None,
    }
    row |= dict.fromkeys(("rounds_explicit", "rounds_strict", "rounds_publications"))
    counts = ("messages", "events", "supervisor_requests", "published", "duplicates", "hops_max")
    row |= dict.fromkeys((*counts, "delivered_by_spreading", "delivered_by_repair"), 0)
    return row | {"hops_mean": 0.0, "degree_peak": 0, "degree_mean": 0.0}


_OF_REPORT: Final = (
    *("rounds_explicit", "rounds_strict", "rounds_publications", "converged", "closure_ok"),
    *("messages", "events", "supervisor_requests", "published", "delivered_by_spreading"),
    *("delivered_by_repair", "duplicates", "hops_mean", "hops_max"),
)


def _outcome(
    run: Trial, report: Report, world: World, samples: Samples, measures: dict[str, float]
) -> TrialResult:
    """Return the result of a simulation: its report, samples and measures."""
    row = blank_row(run) | {name: getattr(report, name) for name in _OF_REPORT}
    row |= _degrees(world, samples) | {"measures": _sorted(measures)}
    return TrialResult(row | {"message_limit": world.is_full}, samples.rows)


def _sorted(measures: Mapping[str, float]) -> dict[str, float]:
    """Return the measures in the order of their names, as Parquet returns them."""
    return dict(sorted(measures.items()))


def _degrees(world: World, samples: Samples) -> dict[str, Any]:
    found = degrees(world)
    return {"degree_peak": samples.degree_peak, "degree_mean": fmean(found) if found else 0.0}


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


# --- samples of a world after every round: rows of the table ``rounds`` ------------------


class Samples:
    """Sampler of a world, starting at a round; called after every round."""

    def __init__(self, first_round: int = 0) -> None:
        self.rows: list[dict[str, Any]] = []
        self.sent: Counter[type[Message]] = Counter()  # by type, at the last sample
        self._first_round = first_round
        self._before: Counters | None = None

    def __call__(self, world: World) -> None:
        """Sample the world; rounds before the first one (the churn) do not count."""
        if world.round < self._first_round:
            return
        now = Counters.of(world)
        spent = now.since(self._before or now)
        self._before = now
        self.sent = Counter(world.sent)
        holding = layers_holding(world)
        is_explicit = holding == len(LAYERS)
        self.rows.append(
            {
                "round": world.round - self._first_round,
                "explicit": is_explicit,
                "strict": is_explicit and next(channel_violations(world), None) is None,
                "publications": has_all_publications(world),
                "layers": holding,
                "database_valid": is_database_valid(world),
                "messages": spent.messages,
                "supervisor_requests": spent.supervisor_requests,
                "degree_max": max(degrees(world), default=0),
                "in_flight": sum(1 for _ in world.in_flight()),
            }
        )

    @property
    def degree_peak(self) -> int:
        """Return the largest sampled degree."""
        return max((row["degree_max"] for row in self.rows), default=0)


def degrees(world: World) -> list[int]:
    """Return the number of other nodes to which each subscriber refers."""
    return [_degree(node, machine) for node, machine in world.subscribers.items()]


def _degree(node: NodeId, seen: SubscriberView) -> int:
    known = {peer.node for peer in (seen.left, seen.right, seen.ring) if peer is not None}
    known.update(holder for holder in seen.shortcuts.values() if holder is not None)
    return len(known - {node})
