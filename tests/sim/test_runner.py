"""Runs of a scenario: counts, and the rounds that they include."""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from msgspec.structs import asdict, replace

from skipring.core.events import Overwritten
from skipring.core.messages import GetConfiguration, Subscribe, Unsubscribe
from skipring.core.peers import SUPERVISOR, Peer
from skipring.core.state import SubscriberState
from skipring.sim.engine import World
from skipring.sim.runner import VIOLATIONS_REPORTED, Report, Simulation
from skipring.sim.scenario import make_scenario
from skipring.world.format import parse_world, render_world
from skipring.world.legitimacy import has_all_publications, is_legitimate, is_strictly_legitimate
from skipring.world.snapshot import Parcel, Snapshot
from tests.support.conversations import at, simulation, standing_ring
from tests.support.runs import run

Meddle: TypeAlias = Callable[[int, Callable[[World], None]], None]

RING = standing_ring(8)


def simulate(start: Snapshot, **values: object) -> tuple[Simulation, Report]:
    """Run from a given state."""
    made = simulation(start, **values)
    return made, made.run()


class Calendar:
    """A record of whether the state is legitimate at the start of each observed round."""

    def __init__(self) -> None:
        self.explicit: list[bool] = []
        self.strict: list[bool] = []
        self.counters: list[tuple[int, int]] = []

    def __call__(self, world: World) -> None:
        assert world.round == len(self.explicit)
        self.explicit.append(is_legitimate(world))
        self.strict.append(is_strictly_legitimate(world))
        self.counters.append((world.messages, world.events))


def since(held: list[bool], begin: int = 0) -> int | None:
    """Return the completed rounds from ``begin`` until a condition held to the end."""
    if not held[-1]:
        return None
    steady = begin
    for number, holds in enumerate(held):
        if not holds:
            steady = max(begin, number + 1)
    return steady - begin


# --- rounds ----------------------------------------------------------------------------


def test_legitimate_start_needs_no_round() -> None:
    made, report = simulate(RING, seed=3, closure=7)
    assert report == Report(
        n=8,
        seed=3,
        mode="fast",
        adversary=None,
        rounds_explicit=0,
        rounds_strict=0,
        rounds_publications=0,
        converged=True,
        closure_ok=True,
        messages=0,
        events=0,
        supervisor_requests=0,
        published=0,
        delivered_by_spreading=0,
        delivered_by_repair=0,
        duplicates=0,
        hops_mean=0.0,
        hops_max=0,
        violations=[],
    )
    assert report.is_good
    assert made.world.round == 7


def test_rounds_count_until_the_predicate_held_to_the_end() -> None:
    for adversary in ("A00", "A13", "A15", "A36"):
        calendar = Calendar()
        made = Simulation(make_scenario({"n": 16, "adversary": adversary, "seed": 2}))
        report = made.run(calendar)
        assert report.rounds_explicit == since(calendar.explicit)
        assert report.rounds_strict == since(calendar.strict) == len(calendar.strict) - 1
        assert report.rounds_explicit <= report.rounds_strict
        assert (report.n, report.seed, report.adversary) == (16, 2, adversary)


def test_explicit_legitimacy_can_precede_strict_legitimacy() -> None:
    leaver = {"z": SubscriberState(member=False)}
    last_log_line = (Parcel(SUPERVISOR, Unsubscribe("z")),)
    start = replace(RING, subscribers=RING.subscribers | leaver, channels=last_log_line)
    _, report = simulate(start)
    assert (report.rounds_explicit, report.rounds_strict) == (0, 1)
    assert report.is_good


def test_missing_convergence_is_none_with_reasons() -> None:
    report = run(n=16, adversary="A15", max_rounds=1)
    assert (report.rounds_explicit, report.rounds_strict) == (None, None)
    assert report.closure_ok is None
    assert not report.converged
    assert not report.is_good
    assert len(report.violations) == VIOLATIONS_REPORTED
    layers = [reason.partition(":")[0] for reason in report.violations]
    assert layers == sorted(layers)  # the lowest first
    assert set(layers) <= {"L0", "L1", "L2"}


def test_violation_in_the_channels_alone_is_a_reason() -> None:
    start = replace(RING, channels=(Parcel(SUPERVISOR, Unsubscribe("n0000")),))
    _, report = simulate(start, max_rounds=0)
    assert (report.rounds_explicit, report.rounds_strict) == (0, None)
    assert report.violations == ["strict: in the channel of supervisor: Unsubscribe of n0000"]
    assert not report.is_good


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_run_stops_at_the_maximum_of_rounds(rounds: int) -> None:
    made = Simulation(make_scenario({"n": 16, "mode": "paper", "max_rounds": rounds}))
    assert not made.run().converged
    assert made.world.round == rounds


# --- publications ----------------------------------------------------------------------


@pytest.mark.parametrize("adversary", ["A19", "A47", "A15"])
def test_run_converges_once_the_ring_is_legitimate_and_in_sync(adversary: str) -> None:
    made = Simulation(make_scenario({"n": 8, "adversary": adversary, "publications": 20}))
    complete: list[bool] = []
    report = made.run(lambda world: complete.append(has_all_publications(world)))
    assert report.is_good
    assert report.rounds_publications == since(complete)
    assert report.rounds_publications > 0
    assert len(complete) - 1 == max(report.rounds_strict, report.rounds_publications)
    assert report.delivered_by_repair > 0


def test_legitimate_ring_with_missing_publications_has_not_converged() -> None:
    report = run(n=4, adversary="A19", max_rounds=0)
    assert (report.rounds_strict, report.rounds_publications) == (0, None)
    assert not report.converged
    assert report.closure_ok is None
    assert report.violations
    assert all(reason.startswith("PUB: ") for reason in report.violations)


def test_publications_during_a_run_are_counted() -> None:
    report = run(n=8, adversary="A00", publish={"rounds": 20, "per_round": 2})
    assert report.is_good
    assert report.published == 40
    assert report.delivered_by_spreading + report.delivered_by_repair == 40 * 7
    assert report.delivered_by_spreading > 0
    assert 1 <= report.hops_mean <= report.hops_max
    assert report.duplicates > 0


# --- incidents -------------------------------------------------------------------------


def test_convergence_is_not_judged_before_the_last_incident() -> None:
    calendar = Calendar()
    made = simulation(RING, supervisor_restarts=[3, 30])
    report = made.run(calendar)
    assert calendar.strict[:4] == [True] * 4
    assert report.rounds_strict == since(calendar.strict)
    assert report.rounds_strict > 30
    assert report.is_good


def test_run_waits_for_a_later_partition() -> None:
    cut = {"share": 0.5, "from_round": 5, "to_round": 20}
    made, _ = simulate(RING, partition=cut, closure=0)
    assert made.world.round >= 20


def test_measuring_starts_after_the_churn() -> None:
    calendar = Calendar()
    made = Simulation(make_scenario({"n": 24, "churn": 0.02, "closure": 0, "seed": 4}))
    report = made.run(calendar)
    assert report.converged
    assert report.rounds_strict == since(calendar.strict, begin=100)
    messages, events = calendar.counters[100]
    assert report.messages == made.world.messages - messages
    assert report.events == made.world.events - events
    assert messages > report.messages


def test_maximum_of_rounds_counts_from_the_end_of_the_churn() -> None:
    made = Simulation(make_scenario({"n": 64, "churn": 0.1, "max_rounds": 1}))
    made.run()
    assert made.world.round == 101


# --- counters --------------------------------------------------------------------------


def test_counters_exclude_the_closure() -> None:
    costs = [
        (report.messages, report.events, report.supervisor_requests)
        for report in (run(n=16, closure=closure) for closure in (0, 1, 50))
    ]
    assert costs[0] == costs[1] == costs[2]


def test_counters_equal_those_of_the_world() -> None:
    made = Simulation(make_scenario({"n": 16, "adversary": "A45", "closure": 0}))
    report = made.run()
    sent = made.world.sent
    assert report.messages == sum(sent.values()) > 0
    assert report.events == made.world.events > report.messages
    requests = sent[Subscribe] + sent[Unsubscribe] + sent[GetConfiguration]
    assert report.supervisor_requests == requests < report.messages


# --- closure ---------------------------------------------------------------------------


@pytest.fixture
def meddle(monkeypatch: pytest.MonkeyPatch) -> Meddle:
    """Change a world at the end of a round."""

    def meddle(number: int, what: Callable[[World], None]) -> None:
        end_round = World.end_round

        def end_round_and_meddle(world: World) -> None:
            end_round(world)
            if world.round == number:
                what(world)

        monkeypatch.setattr(World, "end_round", end_round_and_meddle)

    return meddle


def test_change_in_the_closure_is_reported(meddle: Meddle) -> None:
    meddle(5, lambda world: world.crash("n0003"))
    made, report = simulate(RING, closure=9)
    assert report.converged
    assert report.closure_ok is False
    assert not report.is_good
    assert report.violations == ["closure: the explicit state changed in round 5 of the closure"]
    assert made.world.round == 5


def test_change_for_a_single_round_is_detected(meddle: Meddle) -> None:
    """Compare the state after each round of the closure, not only after the last."""

    def change(world: World, wrap: Peer | None) -> None:
        state = world.subscribers["n0003"].state()
        world.dispatch("n0003", Overwritten(replace(state, ring=wrap)))

    meddle(5, lambda world: change(world, at("x@1")))
    meddle(6, lambda world: change(world, None))
    assert simulate(RING, closure=9)[1].closure_ok is False


def test_publication_during_the_closure_breaks_it(meddle: Meddle) -> None:
    meddle(3, lambda world: world.publish("n0001", b"late"))
    _, report = simulate(RING, closure=9)
    assert report.closure_ok is False
    assert report.violations == ["closure: the explicit state changed in round 3 of the closure"]


def test_run_without_closure_reports_none() -> None:
    made, report = simulate(RING, closure=0)
    assert report.closure_ok is None
    assert report.is_good
    assert made.world.round == 0


# --- world files -----------------------------------------------------------------------


def same_but_for_the_start(report: Report) -> dict[str, Any]:
    return asdict(report) | {"adversary": None}


# A46 is omitted: its later crashes are not part of a world. So are A36 and A45: their n counts
# crashed and departed nodes as well, and the n of a world file counts only members.
@pytest.mark.parametrize(
    "adversary",
    [
        *(
            "A00",
            "A01",
            "A05",
            "A07",
            "A08",
            "A09",
            "A18",
            "A18b",
            "A19",
            "A47",
            "A21",
            "A22",
            "A31",
        ),
        *("A10", "A11", "A12", "A13", "A14", "A15", "A16", "A17", "A32", "A41", "A43"),
    ],
)
def test_start_read_from_a_file_repeats_the_run(adversary: str) -> None:
    for seed, publications in ((0, 0), (1, 0), (2, 20)):
        made = Simulation(
            make_scenario(
                {
                    "n": 16,
                    "adversary": adversary,
                    "seed": seed,
                    "publications": publications,
                    "config": "eager",
                }
            )
        )
        start = parse_world(render_world(made.world.snapshot()))
        _, report = simulate(start, seed=seed)
        assert asdict(report) == same_but_for_the_start(made.run())
