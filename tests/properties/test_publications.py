"""Publications: they reach all members from any place, and then only periodic requests remain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from skipring.core.batches import RecordBatch
from skipring.core.config import Mode, ProtocolConfig, Rules, Spread
from skipring.core.messages import (
    CheckAndPublish,
    CheckTrie,
    IHave,
    Publications,
    PublishNew,
    TrieEqual,
    Want,
)
from skipring.core.peers import NodeId, TopicId
from skipring.sim.engine import World
from skipring.sim.runner import Simulation
from skipring.sim.scenario import make_scenario
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.world.adversaries import ADVERSARIES
from skipring.world.adversaries.builders import made_publications, with_states
from skipring.world.snapshot import Parcel, Snapshot, publications_in
from tests.support.conversations import standing_ring
from tests.support.retention import CHARTERED
from tests.support.runs import replay, run

ALL = [code for code in ADVERSARIES if code not in CHARTERED]


SEEDS = range(3)


QUICK = {(2, 0), (5, 1), (16, 2)}
SIZES_AND_SEEDS = [
    pytest.param(n, seed, marks=() if (n, seed) in QUICK else pytest.mark.slow)
    for n in (2, 5, 16, 64)
    for seed in SEEDS
]


# All messages about publications, except the request at every Timeout.
ANSWERS = (CheckAndPublish, Publications, TrieEqual, PublishNew, IHave, Want)


# A18b waits for a silence threshold that was corrupted to its largest value, 64 rounds.
ROUNDS_MAX = {"A18b": 120}


# A node may believe for up to 64 ticks that it waits for an answer.
PATIENCE = {"A64": 64, "A66": 64}


def members_of(world: World) -> list[NodeId]:
    return [node for node, machine in world.subscribers.items() if machine.wants]


def genuine_ids(start: Snapshot) -> set[bytes]:
    """Return the ids of all valid publications that members hold or that are in flight to one."""
    held = [p for s in start.subscribers.values() if s.member for p in s.publications]
    members = {node for node, state in start.subscribers.items() if state.member}
    arriving = [parcel.message for parcel in start.channels if parcel.to in members]
    on_their_way = [p for message in arriving for p in publications_in(message)]
    return {p.id for p in (*held, *on_their_way) if is_valid(p, start.topic)}


def is_valid(batch: RecordBatch, topic: TopicId) -> bool:
    """Return True if the id is right and the records can be read."""
    try:
        return batch.is_genuine(topic) and len(batch.records()) == batch.count
    except ValueError:
        return False


def roots(world: World) -> set[bytes]:
    return {world.subscribers[node].trie().root() for node in members_of(world)}


# -- convergence and closure -------------------------------------------------------------------


@pytest.mark.parametrize(("n", "seed"), SIZES_AND_SEEDS)
@pytest.mark.parametrize("adversary", ALL)
def test_all_publications_reach_all_members_and_then_messages_stop(
    adversary: str, n: int, seed: int
) -> None:
    """Scattered, in flight and published during repair: the theorems of convergence and closure.

    At the end only the periodic request is left: one for each member in each round.
    """
    values: dict[str, Any] = {
        "config": "eager",
        "n": n,
        "adversary": adversary,
        "seed": seed,
        "publications": 30,
        "publish": {"rounds": 6, "per_round": 2},
        "max_rounds": ROUNDS_MAX.get(adversary, 60),
        "closure": 10,
    }
    scenario = make_scenario(values)
    simulation = Simulation(scenario)
    report = simulation.run()
    how, world = replay(**values), simulation.world
    assert report.is_good, f"{how}\n{report.violations}"
    assert len(roots(world)) == 1, how

    held = [set(world.subscribers[node].trie().keys()) for node in members_of(world)]
    before = genuine_ids(scenario.start())
    if not ADVERSARIES[adversary].crash_rounds:  # crashed nodes lose what they alone held
        assert all(ids >= before for ids in held), how
        assert len(held[0]) == len(before) + report.published, how

    for _ in range(PATIENCE.get(adversary, 0)):
        simulation.run_round()
    world.sent.clear()
    for _ in range(5):
        simulation.run_round()
    assert {kind: world.sent[kind] for kind in ANSWERS} == dict.fromkeys(ANSWERS, 0), how
    members = len(members_of(world))
    assert world.sent[CheckTrie] == (5 * members if members > 1 else 0), how


@pytest.mark.parametrize("mode", [Mode.FAST, Mode.FIXED, Mode.PAPER])
def test_no_trie_changes_once_all_are_equal(mode: Mode) -> None:
    """The theorem of closure: no publish request, no newcomer, no change."""
    start = holding(standing_ring(16), news(40))
    world = World(start, seed=1, config=ProtocolConfig(rules=Rules.of(mode)))
    before = {node: list(machine.trie().entries()) for node, machine in world.subscribers.items()}
    assert len(roots(world)) == 1
    run_rounds(world, RandomOrder(), 50)
    after = {node: list(machine.trie().entries()) for node, machine in world.subscribers.items()}
    assert after == before
    assert [kind for kind in ANSWERS if world.sent[kind]] == []
    assert world.sent[CheckTrie] == 50 * 16


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
@pytest.mark.parametrize("adversary", ["A00", "A05", "A11", "A13", "A15", "A19", "A47"])
def test_publications_converge_with_the_repairs_of_fixed_mode(adversary: str, seed: int) -> None:
    values: dict[str, Any] = {
        "config": "eager",
        "n": 16,
        "adversary": adversary,
        "seed": seed,
        "mode": "fixed",
        "publications": 30,
        "publish": {"rounds": 6, "per_round": 2},
        "max_rounds": 300,
    }
    report = run(**values)
    assert report.is_good, f"{replay(**values)}\n{report.violations}"


@pytest.mark.parametrize("seed", SEEDS)
def test_pseudocode_of_the_paper_sends_a_few_publications_to_all_in_a_legitimate_ring(
    seed: int,
) -> None:
    values: dict[str, Any] = {
        "config": "eager",
        "n": 8,
        "adversary": "A19",
        "seed": seed,
        "mode": "paper",
        "spread": "flood",
        "publish": {"rounds": 3},
        "max_rounds": 200,
    }
    report = run(**values)
    assert report.is_good, f"{replay(**values)}\n{report.violations}"


@pytest.mark.parametrize(
    "on", [pytest.param(True, id="on"), pytest.param(False, id="off", marks=pytest.mark.heavy)]
)
@pytest.mark.parametrize("seed", SEEDS)
def test_T10_corrupted_caches_are_repaired_by_the_scrub_only(seed: int, on: bool) -> None:
    values: dict[str, Any] = {
        "config": "eager",
        "n": 16,
        "adversary": "A47",
        "seed": seed,
        "without": [] if on else ["T10"],
        "max_rounds": 50 if on else 200,
    }
    report = run(**values)
    assert report.converged is on, f"{replay(**values)}\n{report.violations}"


# -- speed -------------------------------------------------------------------------------------


def news(count: int) -> list[RecordBatch]:
    return made_publications("news", count, ["n0000"], Random(0))


def holding(
    start: Snapshot, publications: Sequence[RecordBatch], only: Iterable[NodeId] | None = None
) -> Snapshot:
    """Return the world in which all subscribers, or only these, hold the publications."""
    nodes = set(start.subscribers if only is None else only)
    return with_states(
        start,
        lambda node, state: (
            replace(state, publications=tuple(publications)) if node in nodes else state
        ),
    )


def rounds_until(world: World, is_done: Callable[[], bool], rounds_max: int) -> int:
    scheduler = RandomOrder()
    for number in range(rounds_max):
        if is_done():
            return number
        run_rounds(world, scheduler, 1)
    raise AssertionError(f"not done after {rounds_max} rounds")


def has_all(world: World, node: NodeId) -> bool:
    return world.subscribers[node].trie().root() == world.subscribers["n0000"].trie().root()


@pytest.mark.parametrize("n", [8, 32, 128])
def test_history_reaches_a_newcomer_in_a_few_rounds_at_any_size(n: int) -> None:
    """Section 4.3: "it has to rely on the core BuildSR protocol to receive all publications"."""
    rounds = []
    for seed in SEEDS:
        start = holding(standing_ring(n), news(60))
        world = World(start, seed=seed, config=ProtocolConfig())
        world.subscribe("newcomer")
        rounds.append(rounds_until(world, lambda world=world: has_all(world, "newcomer"), 20))
    assert max(rounds) <= 6


# -- potentials --------------------------------------------------------------------------------


class Watched(World):
    """World with a measurement after every single step."""

    measure: Callable[[], int]

    def watch(self, measure: Callable[[], int]) -> list[int]:
        self.measure, self.measured = measure, [measure()]
        return self.measured

    def deliver(self, parcel: Parcel) -> None:
        super().deliver(parcel)
        self.measured.append(self.measure())

    def tick(self, node: NodeId) -> None:
        super().tick(node)
        self.measured.append(self.measure())


def missing_everywhere(world: World, everything: set[bytes]) -> int:
    """Return the potential of this implementation: the sum over all members of |P minus P_v|."""
    tries = [world.subscribers[node].trie() for node in members_of(world)]
    return sum(len(everything.difference(trie.keys())) for trie in tries)


def missing_beside(world: World) -> int:
    """Return the paper's Phi: the sum over all ring edges (u, v) of |P_u minus P_v|."""
    held = {node: set(world.subscribers[node].trie().keys()) for node in members_of(world)}
    total = 0
    for node, ids in held.items():
        machine = world.subscribers[node]
        for peer in (machine.left, machine.right, machine.ring):
            if peer is not None:
                total += len(ids - held[peer.node])
    return total


def never_grows(values: Sequence[int]) -> bool:
    return all(later <= earlier for earlier, later in pairwise(values))


@pytest.mark.parametrize("spread", Spread)
@pytest.mark.parametrize("adversary", ["A05", "A15", "A19"])
def test_number_of_missing_publications_over_all_members_never_increases(
    adversary: str, spread: Spread
) -> None:
    """After every single step, on every path of a publication, without crashes and new ones."""
    values = {"n": 12, "adversary": adversary, "publications": 25, "seed": 3, "spread": str(spread)}
    scenario = make_scenario(values)
    start = scenario.start()
    world = Watched(start, seed=3, config=scenario.protocol)
    everything = genuine_ids(start)
    measured = world.watch(lambda: missing_everywhere(world, everything))
    run_rounds(world, RandomOrder(), 25)
    assert measured[0] > 0
    assert never_grows(measured), replay(**values)
    assert measured[-1] == 0, replay(**values)


def test_potential_of_the_paper_grows_when_a_publication_is_flooded_over_a_shortcut() -> None:
    """The lemma "Phi never increases" is about ring edges; section 4.3 uses others."""
    world = Watched(standing_ring(16), seed=0, config=ProtocolConfig(spread=Spread.FLOOD))
    world.publish("n0000", b"news")
    everything = set(world.subscribers["n0000"].trie().keys())
    phi = world.watch(lambda: missing_beside(world))
    ours = [missing_everywhere(world, everything)]
    run_rounds(world, RandomOrder(), 10)
    assert phi[-1] == 0
    assert not never_grows(phi)
    assert [*ours, missing_everywhere(world, everything)] == [15, 0]


@pytest.mark.parametrize("seed", SEEDS)
def test_potential_of_the_paper_never_grows_if_only_ring_neighbours_compare(seed: int) -> None:
    """The lemma as stated: a legitimate ring, no flood, no repair over shortcuts."""
    start = ADVERSARIES["A19"].build(12, Random(seed))
    config = ProtocolConfig(rules=Rules.of(Mode.FIXED), spread=Spread.FLOOD)
    world = Watched(start, seed=seed, config=config)
    phi = world.watch(lambda: missing_beside(world))
    run_rounds(world, RandomOrder(), 40)
    assert phi[0] > 0
    assert never_grows(phi)
    assert phi[-1] == 0
