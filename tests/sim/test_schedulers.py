"""Rounds under each scheduler: every process takes part (section 1.1)."""

from collections import Counter
from collections.abc import Callable
from itertools import groupby, pairwise

import pytest
from msgspec.structs import replace

from skipring.core.config import ProtocolConfig
from skipring.core.messages import UNRECORDED, Digest, SetConfiguration
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.sim.engine import World
from skipring.sim.network_faults import Delay, Duplication, Fault
from skipring.sim.schedulers import (
    SCHEDULERS,
    Delaying,
    RandomOrder,
    Scheduler,
    SwizzleClog,
    Synchronous,
)
from skipring.world.snapshot import Parcel, Snapshot
from tests.support.conversations import standing_ring

RING = replace(standing_ring(15), crashed=("x",))
PROCESSES = {SUPERVISOR, *RING.subscribers}

every_scheduler = pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)


class Diary(World):
    """A world that records the ticks and deliveries of each round."""

    def __init__(self, start: Snapshot, *faults: Fault, seed: int = 1) -> None:
        super().__init__(start, seed=seed, config=ProtocolConfig(), faults=faults)
        self.today: list[NodeId | Parcel] = []

    def tick(self, node: NodeId) -> None:
        self.today.append(node)
        super().tick(node)

    def deliver(self, parcel: Parcel) -> None:
        self.today.append(parcel)
        super().deliver(parcel)

    def pass_round(self, scheduler: Scheduler) -> list[NodeId | Parcel]:
        """Run a round; return its events in order."""
        self.today = []
        self.begin_round()
        scheduler.run_round(self)
        self.end_round()
        return self.today


def ticks(day: list[NodeId | Parcel]) -> list[NodeId]:
    return [entry for entry in day if isinstance(entry, str)]


def deliveries(day: list[NodeId | Parcel]) -> list[Parcel]:
    return [entry for entry in day if isinstance(entry, Parcel)]


def numbered(count: int, to: NodeId = "x") -> tuple[Parcel, ...]:
    """Return distinguishable messages to dead nodes, which do not react."""
    return tuple(Parcel(to, Digest("x", number)) for number in range(count))


def number_of(parcel: Parcel) -> int:
    assert isinstance(parcel.message, Digest)
    return parcel.message.digest


# --- random ----------------------------------------------------------------------------


@pytest.mark.parametrize("faults", [(), (Duplication(0.3), Delay(0.5, 4))], ids=["calm", "delays"])
def test_random_ticks_every_process_once_and_delivers_all_present_messages(
    faults: tuple[Fault, ...],
) -> None:
    world, scheduler = Diary(replace(RING, channels=numbered(30)), *faults), RandomOrder()
    old = 0
    for _ in range(20):
        world.begin_round()  # releases delayed messages; a second call finds none
        present = {id(parcel): parcel for parcel in world.channels}
        old += len(present)
        first_new = world.next_serial
        day = world.pass_round(scheduler)
        assert Counter(ticks(day)) == Counter(PROCESSES)
        assert present.keys() <= {id(parcel) for parcel in deliveries(day)}
        assert all(parcel.serial >= first_new for parcel in world.channels)
    assert old > 100


def test_random_lets_a_new_message_overtake_an_old_one() -> None:
    world, scheduler = Diary(RING), RandomOrder()
    world.pass_round(scheduler)
    present, first_new = len(world.channels), world.next_serial
    is_new = [p.serial >= first_new for p in deliveries(world.pass_round(scheduler))]
    assert is_new.count(False) == present > 0
    assert is_new != sorted(is_new)


def test_random_mixes_ticks_with_deliveries_uniformly() -> None:
    first: Counter[NodeId] = Counter()
    for seed in range(200):
        world = Diary(replace(RING, channels=numbered(16)), seed=seed)
        day = world.pass_round(RandomOrder())
        first["a message" if isinstance(day[0], Parcel) else "a tick"] += 1
        first[ticks(day)[0]] += 1
    assert 60 < first["a message"] < 140
    assert set(first) == {"a message", "a tick", *PROCESSES}


# --- sync ------------------------------------------------------------------------------


def test_sync_delivers_all_present_messages_then_ticks_every_process() -> None:
    world, scheduler = Diary(replace(RING, channels=numbered(30))), Synchronous()
    for _ in range(10):
        present = [id(parcel) for parcel in world.channels]
        day = world.pass_round(scheduler)
        messages, processes = day[: len(present)], day[len(present) :]
        assert sorted(id(parcel) for parcel in messages) == sorted(present)
        assert Counter(processes) == Counter(PROCESSES)


# --- delay -----------------------------------------------------------------------------


def test_delay_makes_one_tick_per_process_in_a_round() -> None:
    world, scheduler = Diary(RING), Delaying()
    total, counts = 0, set[int]()
    for rounds in range(1, 200):
        count = len(ticks(world.pass_round(scheduler)))
        total += count
        counts.add(count)
        # Excess ticks of one round count for the next.
        assert rounds * len(PROCESSES) <= total < (rounds + 1) * len(PROCESSES)
    assert len(counts) > 1


def test_delay_ticks_every_process_equally_often_in_the_long_run() -> None:
    world, scheduler = Diary(RING), Delaying()
    counts: Counter[NodeId] = Counter()
    for _ in range(400):
        counts.update(ticks(world.pass_round(scheduler)))
    assert set(counts) == PROCESSES
    assert all(300 < count < 500 for count in counts.values())


def test_delay_still_ticks_when_most_nodes_have_crashed() -> None:
    for rounds in range(1, 6):
        world, scheduler = Diary(standing_ring(100)), Delaying()
        for _ in range(rounds):
            world.pass_round(scheduler)
        for node in sorted(world.subscribers)[1:]:
            world.crash(node)
        for _ in range(5):
            assert ticks(world.pass_round(scheduler))


def passes(world: Diary, rounds: int) -> list[list[Parcel]]:
    """Return the deliveries between two runs of ticks."""
    scheduler = Delaying()
    days = [entry for _ in range(rounds) for entry in world.pass_round(scheduler)]
    return [
        [parcel for parcel in group if isinstance(parcel, Parcel)]
        for is_tick, group in groupby(days, key=lambda entry: isinstance(entry, str))
        if not is_tick
    ]


def test_delay_delivers_the_newest_first() -> None:
    world = Diary(replace(RING, channels=numbered(300)))
    for delivered in passes(world, 20):
        serials = [parcel.serial for parcel in delivered]
        assert all(one >= other for one, other in pairwise(serials))
        numbers = [number_of(parcel) for parcel in delivered if parcel.to == "x"]
        assert numbers == sorted(numbers, reverse=True)


def test_delay_holds_back_messages_and_configurations_longer() -> None:
    count = 400
    configurations = (Parcel("x", UNRECORDED),) * count
    world = Diary(replace(RING, channels=(*numbered(count), *configurations)))
    waited: dict[type, list[int]] = {Digest: [], SetConfiguration: []}
    for number, delivered in enumerate(passes(world, 150), 1):
        for parcel in delivered:
            if parcel.to == "x":
                waited[type(parcel.message)].append(number)
    assert {kind: len(passed) for kind, passed in waited.items()} == dict.fromkeys(waited, count)
    assert 5 < sum(waited[Digest]) / count < 7  # 6 passes on average
    assert 14 < sum(waited[SetConfiguration]) / count < 22  # 18 passes


# --- swizzle-clog ----------------------------------------------------------------------


def test_swizzle_blocks_messages_of_clogged_nodes_and_ticks_every_process() -> None:
    world, scheduler = Diary(RING), SwizzleClog()
    held = 0
    for _ in range(3 * SwizzleClog.CYCLE):
        present = list(world.channels)
        day = world.pass_round(scheduler)
        clogged = scheduler.clogged
        stuck = [p for p in present if p.to in clogged or p.sender in clogged]
        assert Counter(map(id, deliveries(day))) == Counter(
            id(parcel) for parcel in present if parcel not in stuck
        )
        assert {id(parcel) for parcel in stuck} <= {id(parcel) for parcel in world.channels}
        assert Counter(ticks(day)) == Counter(PROCESSES)
        held += len(stuck)
    assert held > 0


def test_swizzle_clogs_a_quarter_in_turn_and_frees_it_again() -> None:
    world, scheduler = Diary(standing_ring(200)), SwizzleClog()
    half = SwizzleClog.CYCLE // 2
    chosen: list[set[NodeId]] = []
    for _ in range(3):
        crowds = [set[NodeId]()]
        for _ in range(SwizzleClog.CYCLE):
            world.pass_round(scheduler)
            crowds.append(set(scheduler.clogged))
        assert all(before < after for before, after in pairwise(crowds[: half + 1]))
        assert all(before > after for before, after in pairwise(crowds[half:]))
        assert crowds[-1] == set()
        assert 30 < len(crowds[half]) < 70
        assert SUPERVISOR not in crowds[half]
        chosen.append(crowds[half])
    assert chosen[0] != chosen[1] != chosen[2]


def test_swizzle_continues_after_the_crash_of_a_clogged_node() -> None:
    world, scheduler = Diary(standing_ring(20)), SwizzleClog()
    while not scheduler.clogged:
        world.pass_round(scheduler)
    for node in sorted(scheduler.clogged):
        world.crash(node)
    for _ in range(2 * SwizzleClog.CYCLE):
        world.pass_round(scheduler)
    assert not scheduler.clogged & world.crashed.keys()


# --- fairness --------------------------------------------------------------------------


@every_scheduler
def test_every_message_is_delivered_exactly_once_in_the_end(make: Callable[[], Scheduler]) -> None:
    nodes = ["x", SUPERVISOR, *RING.subscribers]
    channels = tuple(
        Parcel(to, Digest("x", 1000 * place + number), sender="n0003")
        for place, to in enumerate(nodes)
        for number in range(10)
    )
    world, scheduler = Diary(replace(RING, channels=channels)), make()
    waiting = {id(parcel) for parcel in channels}
    seen: Counter[int] = Counter()
    for _ in range(300):
        delivered = [id(parcel) for parcel in deliveries(world.pass_round(scheduler))]
        seen.update(parcel for parcel in delivered if parcel in waiting)
        if waiting <= seen.keys():
            break
    assert seen == dict.fromkeys(waiting, 1)


@every_scheduler
def test_every_sent_message_is_delivered_or_in_a_channel(make: Callable[[], Scheduler]) -> None:
    world, scheduler = Diary(RING), make()
    delivered = sum(len(deliveries(world.pass_round(scheduler))) for _ in range(50))
    assert delivered + len(world.channels) == world.messages


@every_scheduler
def test_every_process_ticks_eventually(make: Callable[[], Scheduler]) -> None:
    world, scheduler = Diary(RING), make()
    for _ in range(10):
        ticked = {node for _ in range(20) for node in ticks(world.pass_round(scheduler))}
        assert ticked == PROCESSES
