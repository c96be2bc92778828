"""Faults of messages in flight, alone and combined."""

from collections import Counter
from random import Random

import pytest

from skipring.core.config import ProtocolConfig
from skipring.core.messages import Subscribe
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.state import SubscriberState
from skipring.sim.engine import World
from skipring.sim.network_faults import (
    DELIVERED,
    DOUBLED,
    LOST,
    Delay,
    Duplication,
    Fault,
    Loss,
    Partition,
    Verdict,
)
from skipring.world.snapshot import Parcel, Snapshot

DRAWS = 4000
PARCEL = Parcel(SUPERVISOR, Subscribe("a"), "a", 0)


def verdicts(fault: Fault) -> Counter[Verdict]:
    rng = Random(1)
    return Counter(fault.verdict(PARCEL, 0, rng) for _ in range(DRAWS))


def shares(fault: Fault) -> dict[Verdict, float]:
    return {verdict: count / DRAWS for verdict, count in verdicts(fault).items()}


def world_of(*faults: Fault) -> World:
    """Return a world without labels, in which a tick sends one message to the supervisor."""
    start = Snapshot(subscribers={node: SubscriberState() for node in "abc"})
    return World(start, seed=1, config=ProtocolConfig(), faults=faults)


# --- single faults ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Loss(0), {DELIVERED: 1}),
        (Loss(1), {LOST: 1}),
        (Loss(0.2), {LOST: 0.2, DELIVERED: 0.8}),
        (Duplication(0), {DELIVERED: 1}),
        (Duplication(1), {DOUBLED: 1}),
        (Duplication(0.3), {DOUBLED: 0.3, DELIVERED: 0.7}),
        (Delay(0, 3), {DELIVERED: 1}),
        (Delay(1, 1), {(1,): 1}),
        (Delay(0.6, 3), {DELIVERED: 0.4, (1,): 0.2, (2,): 0.2, (3,): 0.2}),
        (Partition(frozenset("a"), 0, 1), {LOST: 1}),
    ],
)
def test_each_verdict_has_the_expected_frequency(
    fault: Fault, expected: dict[Verdict, float]
) -> None:
    assert shares(fault) == pytest.approx(expected, abs=0.04)


def test_verdict_contains_the_delay_of_each_delivered_copy() -> None:
    assert DELIVERED == (0,)
    assert LOST == ()
    assert DOUBLED == (0, 0)


@pytest.mark.parametrize(
    ("sender", "to", "crosses"),
    [
        ("a", "b", False),
        ("a", "c", True),
        ("c", "a", True),
        ("c", "d", False),
        ("a", SUPERVISOR, True),
        (SUPERVISOR, "a", True),
        ("c", SUPERVISOR, False),
        ("a", "a", False),
    ],
)
def test_partition_drops_only_crossing_messages(sender: NodeId, to: NodeId, crosses: bool) -> None:
    cut = Partition(frozenset("ab"), 3, 5)
    parcel = Parcel(to, Subscribe("a"), sender)
    for now, lasts in enumerate([False, False, False, True, True, False]):
        assert cut.verdict(parcel, now, Random(0)) == (LOST if crosses and lasts else DELIVERED)


# --- in a world ------------------------------------------------------------------------


def test_partition_lasts_from_its_first_round_until_before_its_end() -> None:
    world = world_of(Partition(frozenset("ab"), 2, 4))
    for _ in range(6):
        for node in "abc":
            world.tick(node)
        world.end_round()
    arrived = {(parcel.sender, parcel.serial // 3) for parcel in world.channels}  # 3 a round
    assert arrived == {(node, r) for node in "ab" for r in (0, 1, 4, 5)} | {
        ("c", r) for r in range(6)
    }


def test_message_sent_before_a_partition_still_arrives() -> None:
    world = world_of(Partition(frozenset("a"), 1, 9))
    world.tick("a")
    world.end_round()
    world.begin_round()
    (parcel,) = world.channels
    world.deliver(parcel)
    assert "a" in world.roster


def test_delayed_message_arrives_in_its_delayed_round() -> None:
    world = world_of(Delay(1, 3))
    for _ in range(300):
        world.tick("a")
    came: Counter[int] = Counter()
    for _ in range(5):
        world.begin_round()
        came[world.round] += len(world.channels)
        world.channels.clear()
        world.end_round()
    assert set(came) == set(range(5))
    assert came[0] == came[4] == 0
    assert came.total() == 300
    assert all(70 < came[number] < 130 for number in (1, 2, 3))


# --- combined faults -------------------------------------------------------------------


def counts(*faults: Fault) -> dict[int, float]:
    """Return the share of messages by number of copies in flight."""
    world, found = world_of(*faults), Counter[int]()
    for _ in range(DRAWS):
        before = len(world.channels)
        world.tick("a")
        found[len(world.channels) - before] += 1
    return {number: count / DRAWS for number, count in found.items()}


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ((), {1: 1}),
        # Each copy has its own chance: one may be lost while the other arrives.
        ((Duplication(1), Loss(0.5)), {0: 0.25, 1: 0.5, 2: 0.25}),
        ((Loss(0.5), Duplication(1)), {0: 0.5, 2: 0.5}),
        ((Duplication(1), Duplication(1)), {4: 1}),
        ((Loss(0.5), Loss(0.5)), {0: 0.75, 1: 0.25}),
        ((Partition(frozenset("a"), 0, 1), Duplication(1)), {0: 1}),
        ((Duplication(1), Partition(frozenset("b"), 0, 1)), {2: 1}),
    ],
)
def test_each_fault_decides_about_every_remaining_copy(
    faults: tuple[Fault, ...], expected: dict[int, float]
) -> None:
    assert counts(*faults) == pytest.approx(expected, abs=0.04)


def test_copies_are_delayed_independently() -> None:
    apart = 0
    for seed in range(200):
        start = Snapshot(subscribers={"a": SubscriberState()})
        faults = (Duplication(1), Delay(1, 2))
        world = World(start, seed=seed, config=ProtocolConfig(), faults=faults)
        world.tick("a")
        world.end_round()
        world.begin_round()
        apart += len(world.channels) == 1
    assert 60 < apart < 140
