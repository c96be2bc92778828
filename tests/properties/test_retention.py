"""Retention in rings: agreed floors, wrong clocks, members that return, and members that leave."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from skipring.core.messages import CheckAndPublish, Publications, Terms
from skipring.core.peers import NodeId
from skipring.core.retention.charter import US, Policy
from skipring.core.state import SubscriberMemory, SubscriberState
from skipring.sim.runner import Simulation
from skipring.sim.scenario import make_scenario
from skipring.world.adversaries import ADVERSARIES
from skipring.world.legitimacy import has_all_publications
from skipring.world.retained_rows import retention_of
from tests.support.retention import Ring
from tools.retention_table import run

in_full = pytest.mark.slow
FORGOTTEN_S = 200  # tombstones are removed after this time
KEYED = Policy(compact=True, tombstones_s=FORGOTTEN_S)
KEYS = [b"key %d" % number for number in range(12)]
DELETED = KEYS[:6]
YEARS = 10 * 365 * 86_400 * US


@pytest.mark.parametrize(
    ("code", "n", "seeds"),
    [
        *((code, 5, 1) for code in ADVERSARIES if code.startswith("A5")),
        ("A47", 5, 1),
        *(pytest.param(code, n, 3, marks=in_full) for code in ADVERSARIES for n in (5, 16, 64)),
    ],
)
def test_every_adversary_keeps_what_the_policy_keeps_with_wrong_clocks(
    code: str, n: int, seeds: int
) -> None:
    for seed in range(seeds):
        found = run(code, n, seed)
        assert found.rounds is not None, (code, n, seed)
        assert (found.is_closed, found.lost, found.surplus) == (True, 0, 0), (code, n, seed)


TIMES = {"off_s": 300.0, "broken": True, "round_s": 5.0}  # time passes: rows of fast clocks wait


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("code", [f"A5{number}" for number in range(8)])
@pytest.mark.parametrize(
    "more",
    [
        {"publications": 6},
        {"publications": 6, "clocks": TIMES},
        {"publish": {"rounds": 3}, "clocks": TIMES},
    ],
    ids=["scattered", "scattered with time", "published with time"],
)
def test_adversaries_with_publications_converge_and_send_little_twice(
    code: str, batch: int, more: dict[str, object]
) -> None:
    """All clocks differ by 10 minutes at most: a published row waits for 120 rounds at most."""
    values = {"adversary": code, "n": 8, "batch": batch, "max_rounds": 200, "closure": 0, **more}
    report = Simulation(make_scenario(values)).run()
    assert report.converged, report.violations
    assert report.duplicates < 4000  # at most 2,495; 12,779 if refused rows are sent each round


# -- floors that move ----------------------------------------------------------------------------


def moving(policy: Policy, rounds: int, *, n: int = 8) -> tuple[Ring, int]:
    """Publish for 100 rounds, wait for 60; count the later rounds with equal tries."""
    ring = Ring(n, policy)
    for number in range(100):
        ring.put(ring.rng.choice(ring.nodes), b"key %d" % (number % 30))
        ring.run(1)
    ring.run(60)
    ring.world.sent.clear()
    equal = 0
    for _ in range(rounds):
        ring.run(1)
        equal += ring.roots == 1
    return ring, equal


def test_floors_move_and_members_agree_on_them_without_sending_publications() -> None:
    ring, equal = moving(Policy(max_age_s=150), 200)
    sent = ring.world.sent
    assert sent[Publications] == 0
    assert equal >= 150  # measured: 168; the floor moves three times
    assert ring.counts == {1}  # all but the charter has expired


def test_members_with_equal_terms_and_rows_send_only_questions_and_terms() -> None:
    ring, equal = moving(Policy(max_count=20), 130)
    sent = ring.world.sent
    assert equal == 130
    assert (sent[Publications], sent[CheckAndPublish]) == (0, 0)
    assert sent[Terms] <= 3 * 2 * len(ring.nodes)


@pytest.mark.parametrize("jumps", [False, True])
def test_two_broken_clocks_destroy_nothing_and_stamps_stay_right(jumps: bool) -> None:
    ring = Ring(16, Policy(max_age_s=86_400))
    clocks = {ring.nodes[3]: YEARS, ring.nodes[9]: -YEARS}
    if not jumps:
        ring.world.set_clocks(clocks)
    ring.run(3)
    for node in ring.nodes:
        ring.put(node)
    ring.run(20)
    ring.world.set_clocks(clocks)
    ring.run(90)
    assert ring.counts == {17}
    machine = ring.world.subscribers[ring.nodes[0]]
    stamps = [batch.records()[0].time for batch in machine.batches()]
    assert max(stamps) <= ring.world.clocks.now + 60 * US


# -- members that were away (rules 9 to 11) --------------------------------------------------------


def leaves(ring: Ring, nodes: list[NodeId]) -> dict[NodeId, SubscriberState]:
    """Crash nodes; return their stored states, with what a disk keeps."""
    stored: dict[NodeId, SubscriberState] = {}
    for node in nodes:
        machine = ring.world.subscribers[node]
        terms = retention_of(machine)
        memory = SubscriberMemory(terms=terms.state() if terms is not None else None)
        stored[node] = SubscriberState(member=False, publications=machine.batches(), memory=memory)
        ring.world.crash(node)
    return stored


def return_(ring: Ring, stored: dict[NodeId, SubscriberState]) -> None:
    for number, (node, state) in enumerate(stored.items(), start=1):
        del ring.world.crashed[node]
        ring.world.add(node, state, incarnation=number)
        ring.world.subscribe(node)


def with_keys(n: int, seed: int) -> Ring:
    """Return a ring in which every key has a value at every member, and all are fresh."""
    ring = Ring(n, KEYED, seed)
    for key in KEYS:
        ring.put(ring.rng.choice(ring.nodes), key)
    for _ in range(20):
        ring.run(10)
        if not any(stale(ring, node) for node in ring.nodes):
            return ring
    raise AssertionError("members are still stale")


def stale(ring: Ring, node: NodeId) -> bool:
    retention = retention_of(ring.world.subscribers[node])
    return retention is None or retention.is_stale


def delete(ring: Ring, nodes: list[NodeId]) -> None:
    """Delete half of the keys at some nodes; wait until the tombstones are forgotten."""
    for key in DELETED:
        ring.put(ring.rng.choice(nodes), key, is_deleted=True)
    ring.run(40)
    for _ in range(8):
        ring.world.pass_time(60 * US)
        ring.run(10)
    ring.run(100)  # a jump of time is longer than members usually wait for a confirmation
    assert not any(stale(ring, node) for node in nodes)


def away(n: int, share: float, seed: int) -> tuple[int, int]:
    """Let a share return after tombstones are forgotten; count keys that are back, and lost."""
    ring = with_keys(n, seed)
    back = ring.rng.sample(ring.nodes[1:], min(max(round(n * share), 1), n - 2))
    here = [node for node in ring.nodes if node not in back]
    stored = leaves(ring, back)
    ring.run(30)
    delete(ring, here)
    return_(ring, stored)
    ring.run(150)
    assert ring.roots == 1
    live = ring.live_keys(here[0])
    return len(live & set(DELETED)), len(set(KEYS[6:]) - live)


@pytest.mark.parametrize(
    ("n", "share"),
    [
        (8, 0.25),
        (8, 0.9),
        *(
            pytest.param(n, share, marks=in_full)
            for n in (8, 16, 64)
            for share in (0.25, 0.5, 0.75, 0.9)
        ),
    ],
)
def test_returning_members_restore_no_deleted_key_and_lose_none(n: int, share: float) -> None:
    for seed in range(2):
        assert away(n, share, seed) == (0, 0), seed


def test_clock_step_and_a_crash_of_all_members_lose_no_publication() -> None:
    ring = Ring(8, Policy(max_age_s=86_400), off=0)
    ahead = dict.fromkeys(ring.nodes, 3600 * US)
    ring.world.set_clocks(ahead)
    ring.run(70)
    for node in ring.nodes:
        ring.put(node)
    ring.run(20)
    ring.world.set_clocks(dict.fromkeys(ring.nodes, 0))
    ring.run(70)
    assert ring.counts == {1}  # the charter
    stored = {
        node: SubscriberState(member=False, publications=state.publications)
        for node, state in leaves(ring, ring.nodes).items()
    }
    return_(ring, stored)
    ring.run(70)
    assert ring.counts == {1}
    ring.world.set_clocks(ahead)
    ring.run(70)
    assert ring.counts == {9}
    assert has_all_publications(ring.world)


def test_cluster_that_slept_for_longer_than_tombstones_last_loses_nothing() -> None:
    ring = with_keys(8, 0)
    ring.put(ring.nodes[4], b"late")
    stored = leaves(ring, ring.nodes)
    ring.world.pass_time(10 * FORGOTTEN_S * US)
    return_(ring, stored)
    ring.run(150)
    assert all(ring.live_keys(node) == {*KEYS, b"late", b"\0charter"} for node in ring.nodes)
    assert not any(stale(ring, node) for node in ring.nodes)


def own_ring(rounds: int, seed: int) -> int:
    """Let stale members run alone for some rounds before the others return; count keys back."""
    ring = with_keys(8, seed)
    early, others = ring.nodes[:3], ring.nodes[3:]
    old = leaves(ring, early)
    ring.run(30)
    delete(ring, others)
    new = leaves(ring, others)
    return_(ring, old)
    ring.run(rounds)
    return_(ring, new)
    ring.run(200)
    assert ring.roots == 1
    return len(ring.live_keys(others[0]) & set(DELETED))


def test_stale_members_that_run_alone_restore_deleted_keys_only_once_they_count_as_fresh() -> None:
    """The second open point of documents 0 and 1: a limit, which decision 0057 states."""
    assert [own_ring(rounds, seed) for rounds in (5, 20) for seed in range(2)] == [0] * 4
    assert [own_ring(150, seed) for seed in range(2)] == [6, 6]


# -- new and leaving members -----------------------------------------------------------------------


def test_new_member_gets_what_the_policy_keeps() -> None:
    ring = Ring(8, Policy(max_count=40))
    for number in range(120):
        ring.put(ring.nodes[number % 8])
        if number == 60:
            ring.world.subscribe("newcomer")
        ring.run(1)
    ring.run(80)
    assert has_all_publications(ring.world)
    assert ring.world.subscribers["newcomer"].count <= 40 * 17 // 16 + 1


def test_drain_ends_although_rows_of_the_leaving_member_have_expired() -> None:
    ring = Ring(5, Policy(max_age_s=100))
    leaver = ring.nodes[2]
    for _ in range(60):
        ring.put(leaver)
        ring.run(1)
    ring.world.pass_time(90 * US)
    ring.world.drain(leaver)
    ring.run(20)
    assert ring.world.drained[leaver] is not None


def test_state_of_a_ring_under_a_policy_continues_from_its_snapshot() -> None:
    ring, _ = moving(Policy(max_count=20), 3)
    copy = ring.world.snapshot()
    assert has_all_publications(copy)
    assert replace(copy, clocks=ring.world.clocks) == copy
