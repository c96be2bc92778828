"""Measures of hypotheses and lemmas: facts about a start, livelocks, potential, trie sessions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from skipring.core.batches import RecordBatch
from skipring.core.config import Mode, ProtocolConfig, Rule
from skipring.core.events import Event
from skipring.core.labels import Label
from skipring.core.messages import CheckAndPublish, CheckTrie, Publications
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.publications import ID_BITS
from skipring.core.state import SubscriberState
from skipring.sim.engine import World
from skipring.sim.livelock import Lockstep, is_strict, pseudocode, run_in_lockstep
from skipring.sim.schedulers import SCHEDULERS
from skipring.world.adversaries import legitimate_world, scatter
from skipring.world.legitimacy import Layer, has_all_publications, violations
from skipring.world.snapshot import Snapshot, View

LAYERS: Final = (Layer.DATABASE, Layer.LABELS, Layer.RING, Layer.SHORTCUTS, Layer.LEAVERS)


def layers_holding(view: View) -> int:
    """Return the number of layers that hold, from L0 up to the first that does not."""
    first = next(violations(view), None)
    return len(LAYERS) if first is None else LAYERS.index(first.layer)


def is_database_valid(view: View) -> bool:
    """Return True if none of the conditions (i) to (iv) of section 3.1 holds for the database."""
    if not view.roster.is_loaded:
        return True  # stored as the list of nodes under l(0), l(1), ...
    labels, nodes = (
        zip(*view.roster.database(), strict=True) if view.roster.database() else ((), ())
    )
    should = {Label.nth(index).bits for index in range(len(nodes))}
    return None not in nodes and len(set(nodes)) == len(nodes) and set(labels) == should


# --- hypotheses ------------------------------------------------------------------------


class StartFacts(Struct, frozen=True):
    """Facts about an initial state that hypotheses of the paper refer to."""

    start_connected: bool = True  # the subscribers, by explicit edges
    start_crashed: bool = False  # there are references to crashed nodes
    start_leavers: bool = False  # a subscriber does not want to be a member
    start_tries_wrong: bool = False  # stored hashes, ids or bodies do not match


def start_facts(start: Snapshot) -> StartFacts:
    """Return the facts about an initial state."""
    states = start.subscribers
    recorded = {node for _, node in start.supervisor.database if node is not None}
    edges = [*start.explicit_edges(), *start.implicit_edges()]
    known = {*states, SUPERVISOR}
    return StartFacts(
        start_connected=_is_connected(states, start.explicit_edges()),
        start_crashed=bool(start.crashed)
        or not known.issuperset({*recorded, *(v for _, v in edges)}),
        start_leavers=not all(state.member for state in states.values()),
        start_tries_wrong=any(
            state.hashes or state.misplaced() or not _are_genuine(state.publications, start.topic)
            for state in states.values()
        ),
    )


def _are_genuine(publications: Iterable[RecordBatch], topic: str) -> bool:
    return all(batch.is_genuine(topic) for batch in publications)


def _is_connected(nodes: Collection[NodeId], edges: Iterable[tuple[NodeId, NodeId]]) -> bool:
    """Return True if the nodes are weakly connected by the edges between them."""
    beside: dict[NodeId, set[NodeId]] = {node: set() for node in nodes}
    for one, other in edges:
        if one in beside and other in beside:
            beside[one].add(other)
            beside[other].add(one)
    reached, waiting = set[NodeId](), [min(beside)]
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting.extend(beside[node] - reached)
    return len(reached) == len(beside)


# --- livelocks of the pseudocode -------------------------------------------------------

VARIABLES: Final = ("database", "label", "left", "right", "ring", "shortcuts")


# Rules that remove the suspected causes of livelocks (decisions 0003 and 0012).
SUSPECTED: Final[Mapping[str, tuple[Rule, ...]]] = {
    "R1": (Rule.PROBE,),
    "B13": (Rule.OVERWRITE,),
    "both": (Rule.PROBE, Rule.OVERWRITE),
}


def livelock_measures(
    start: Snapshot, rounds_max: int
) -> tuple[Lockstep, dict[str, float], list[dict[str, Any]]]:
    """Run the lockstep computation; return its end, the livelock, and the rounds."""
    samples: list[dict[str, Any]] = []

    def observe(state: Snapshot) -> int:
        layers = layers_holding(state)
        samples.append(_sample(len(samples), state, layers))
        return layers

    found = run_in_lockstep(start, rounds_max, observe)
    if found.cycle is None:
        return found, {}, samples
    cycle = found.cycle
    measures = {
        "cycle_start": float(cycle.start),
        "cycle_length": float(cycle.length),
        "coin_period": float(cycle.coin_period),
        "layers_least": float(cycle.layers_least),
        "layers_most": float(cycle.layers_most),
        **{f"changing_{name}": float(cycle.changing.get(name, 0)) for name in VARIABLES},
        **{
            f"healed_by_{name}": _is_healed_by(rules, start, rounds_max)
            for name, rules in SUSPECTED.items()
        },
    }
    return found, measures, samples


def _is_healed_by(rules: Sequence[Rule], start: Snapshot, rounds_max: int) -> float:
    """Return 1 if the same computation with these rules alone becomes legitimate, else 0."""
    found = run_in_lockstep(start, rounds_max, layers_holding, pseudocode(*rules))
    return float(found.is_legitimate)


def _sample(number: int, state: Snapshot, layers: int) -> dict[str, Any]:
    is_explicit = layers == len(LAYERS)
    return {
        "round": number,
        "explicit": is_explicit,
        "strict": is_explicit and is_strict(state),
        "publications": has_all_publications(state),
        "layers": layers,
        "database_valid": is_database_valid(state),
        "messages": 0,
        "supervisor_requests": 0,
        "degree_max": 0,
        "in_flight": len(state.channels),
    }


# --- the potential of section 5 --------------------------------------------------------


class Potential:
    """Publications missing along ring edges: Φ of section 5, updated after every step."""

    def __init__(self, order: Sequence[NodeId], held: Mapping[NodeId, Collection[bytes]]) -> None:
        self._held = {node: set(held[node]) for node in order}
        self._all = set[bytes]().union(*self._held.values())
        after = [*order[1:], order[0]]
        pairs = {pair for u, v in zip(order, after, strict=True) for pair in ((u, v), (v, u))}
        self._edges = sorted((u, v) for u, v in pairs if u != v)
        self.rises = 0  # steps after which Φ is larger
        self.missing_rises = 0  # steps after which the members together lack more
        self.mismatches = 0  # steps after which Φ = 0 and completeness differ
        self.total = self._sum()
        self._missing = self._lacking()

    def on_step(self, node: NodeId, held: Collection[bytes]) -> None:
        """Compare the potential with that before a step of a node."""
        if len(held) == len(self._held[node]):
            return
        self._held[node] = set(held)
        total, missing = self._sum(), self._lacking()
        self.rises += total > self.total
        self.missing_rises += missing > self._missing
        self.mismatches += (total == 0) != (missing == 0)
        self.total, self._missing = total, missing

    def positive_edges(self) -> int:
        """Return the number of edges (u, v) of which v lacks a publication of u."""
        return sum(not self._held[u] <= self._held[v] for u, v in self._edges)

    def _sum(self) -> int:
        return sum(len(self._held[u] - self._held[v]) for u, v in self._edges)

    def _lacking(self) -> int:
        return sum(len(self._all) - len(held) for held in self._held.values())


class _WatchedWorld(World):
    """World that reports every step to a potential."""

    def __init__(self, start: Snapshot, potential: Potential, **more: Any) -> None:  # noqa: ANN401
        super().__init__(start, **more)
        self._potential = potential

    def dispatch(self, node: NodeId, event: Event) -> None:
        """Run one event of a node and compare the potential."""
        super().dispatch(node, event)
        if node in self.subscribers:
            self._potential.on_step(node, list(self.subscribers[node].trie().keys()))


def potential_measures(
    config: ProtocolConfig, n: int, publications: int, seed: int, rounds_max: int
) -> tuple[int | None, dict[str, float]]:
    """Repair scattered publications in a legitimate ring; watch the potential after every step."""
    rng = Random(f"potential/{seed}")
    start = replace(scatter(legitimate_world(n, rng), publications, rng), channels=())
    order = [node for _, node in start.supervisor.database if node is not None]
    ring = sorted(order, key=lambda node: start.subscribers[node].label or Label.nth(0))
    held = {
        node: {batch.id for batch in state.publications}
        for node, state in start.subscribers.items()
    }
    potential = Potential(ring, held)
    begin, edges = potential.total, potential.positive_edges()
    world = _WatchedWorld(start, potential, seed=seed, config=config)
    scheduler, rounds = SCHEDULERS["random"](), 0
    while potential.total and rounds < rounds_max:
        scheduler.run_round(world)
        world.end_round()
        rounds += 1
    return (None if potential.total else rounds), {
        "phi_start": float(begin),
        "phi_end": float(potential.total),
        "phi_rises": float(potential.rises),
        "missing_rises": float(potential.missing_rises),
        "phi_mismatches": float(potential.mismatches),
        "edges_start": float(edges),
        "edges_end": float(potential.positive_edges()),
    }


# --- the two claims about a session ----------------------------------------------------


# Guess: sessions from each side; a side that lacks nothing needs two to find all differences.
_SESSION_PAIRS: Final = 8


def session_measures(publications: int, seed: int) -> dict[str, float]:
    """Compare two tries with the pseudocode, in turn from each side; measure the two claims.

    The names are those of the proof: u holds publications that v lacks, p is the highest node of u
    below which v lacks everything, and t the highest node above p that v does not have.
    """
    rng = Random(f"session/{seed}")
    start = replace(scatter(legitimate_world(2, rng), publications, rng), channels=())
    u, v = sorted(start.subscribers, key=lambda node: -len(start.subscribers[node].publications))
    own, other = (_bits(start.subscribers[node]) for node in (u, v))
    if own <= other:
        return {"differs": 0.0}
    inner, theirs = _labels(own), _labels(other)
    p = min(
        (label for label in inner if not any(key.startswith(label) for key in other)),
        key=lambda label: (len(label), label),
    )
    t = min((label for label in inner if p.startswith(label) and label not in theirs), key=len)
    asked, wanted = set[str](), set[str]()
    world = World(start, seed=0, config=ProtocolConfig.of(Mode.PAPER))
    for first in (u, v) * _SESSION_PAIRS:
        for message in _conversation(world, first):
            if message.sender == u:  # CheckAndPublish(u, c, p) calls CheckTrie(u, c)
                asked |= {it.prefix.bits for claim in message.claims for it in claim.summaries()}
            elif isinstance(message, CheckAndPublish):
                wanted |= {claim.prefix.bits for claim in message.wanted}
    left = own - set(map(_text, world.subscribers[v].trie().keys()))
    return {
        "differs": 1.0,
        "asked": float(t in asked),
        "covered": float(any(p.startswith(prefix) for prefix in wanted)),
        "equal": float(p in wanted),
        "missing_start": float(len(own - other)),
        "missing_end": float(len(left)),
    }


def _bits(state: SubscriberState) -> set[str]:
    return {_text(batch.id) for batch in state.publications}


def _text(key: bytes) -> str:
    return f"{int.from_bytes(key):0{ID_BITS}b}"


def _labels(keys: Collection[str]) -> set[str]:
    """Return the labels of all nodes of the Patricia trie of these keys."""
    return {*keys, *(_common(one, other) for one, other in pairwise(sorted(keys)))}


def _common(one: str, other: str) -> str:
    length = next(place for place, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    return one[:length]


def _conversation(world: World, first: NodeId) -> Iterator[CheckTrie | CheckAndPublish]:
    """Yield the messages of the session that a node starts, until there are no more."""
    world.tick(first)
    while world.channels:
        parcel = world.channels.pop(0)
        match parcel.message:
            case CheckTrie() | CheckAndPublish():
                yield parcel.message
            case Publications():
                pass
            case _:
                continue  # of the ring, which is legitimate
        world.deliver(parcel)
