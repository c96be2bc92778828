"""Transfers of histories: other sessions wait for them, for a bounded time."""

import pytest
from msgspec.structs import replace

from skipring.core.config import ProtocolConfig
from skipring.core.messages import Publications
from skipring.core.state import TransferState
from skipring.core.transfers import TransferTracker
from skipring.sim.engine import World
from skipring.sim.schedulers import Synchronous, run_rounds
from skipring.world.snapshot import Parcel
from tests.support.batches import batch
from tests.support.conversations import standing_ring

TRACKED = ProtocolConfig(repair_announce_max=10, history_ticks=3)
MANY, FEW = 11, 10


def receiving(sender: str = "a") -> TransferTracker:
    histories = TransferTracker(TRACKED)
    histories.on_received(sender, MANY, is_last=False)
    return histories


def serving(to: str = "a", session: int = 5) -> TransferTracker:
    histories = TransferTracker(TRACKED)
    histories.on_sent(to, session, MANY)
    return histories


def after_ticks(ticks: int, histories: TransferTracker) -> TransferTracker:
    for _ in range(ticks):
        histories.on_tick()
    return histories


def test_T8_receiver_of_a_history_accepts_none_from_others() -> None:
    histories = receiving("a")
    assert histories.is_receiving
    assert not histories.is_other("a", 1)
    assert histories.is_other("b", 1)


def test_T8_sender_of_a_history_has_no_other_session_with_its_receiver() -> None:
    histories = serving("a", 5)
    assert not histories.is_receiving
    assert not histories.is_other("a", 5)
    assert histories.is_other("a", 6)


def test_T8_sender_of_a_history_serves_other_members() -> None:
    histories = serving("a", 5)
    histories.on_sent("b", 7, MANY)
    assert not histories.is_other("b", 7)
    assert not histories.is_other("c", 9)


def test_T8_few_publications_are_not_a_history() -> None:
    histories = TransferTracker(TRACKED)
    histories.on_received("a", FEW, is_last=False)
    histories.on_sent("a", 5, FEW)
    assert not histories.is_receiving
    assert not histories.is_other("a", 6)
    assert not histories.is_other("b", 6)


def test_T8_publications_without_a_sender_start_no_transfer() -> None:
    histories = TransferTracker(TRACKED)
    histories.on_received(None, MANY, is_last=False)
    assert not histories.is_receiving


def test_T8_other_members_may_send_after_the_last_part() -> None:
    histories = receiving("a")
    histories.on_received("b", FEW, is_last=True)  # from another session
    assert histories.is_receiving
    histories.on_received("a", MANY, is_last=True)
    assert not histories.is_receiving
    assert not histories.is_other("b", 1)


@pytest.mark.parametrize(("ticks", "is_over"), [(2, False), (3, True)])
def test_T8_transfer_or_read_that_stops_ends_after_some_ticks(ticks: int, is_over: bool) -> None:
    assert after_ticks(ticks, receiving()).is_receiving is not is_over
    assert after_ticks(ticks, tracker_in_backfill()).is_reading is not is_over
    assert after_ticks(ticks, serving("a", 5)).is_other("a", 6) is not is_over


def test_T8_every_part_and_every_page_restarts_the_wait() -> None:
    parts, pages = receiving("a"), tracker_in_backfill()
    for _ in range(5):
        after_ticks(2, parts).on_received("a", MANY, is_last=False)
        after_ticks(2, pages).on_page(is_last=False)
    assert parts.is_receiving
    assert pages.is_reading


@pytest.mark.parametrize("source", ["b", None])
def test_corrupted_counters_delay_other_sessions_for_a_bounded_time_only(
    source: str | None,
) -> None:
    histories = TransferTracker(TRACKED)
    served = {"a": (5, 10**9)}
    histories.load(TransferState(source=source, source_ticks=10**9, served=served))
    assert histories.is_reading is (source is None)
    assert histories.is_receiving
    assert histories.is_other("a", 6)
    after_ticks(TRACKED.history_ticks, histories)
    assert not histories.is_receiving
    assert not histories.is_other("a", 6)


# -- backfill from several sources ---------------------------------------------------------------


def tracker_in_backfill() -> TransferTracker:
    histories = TransferTracker(TRACKED)
    histories.on_page(is_last=False)
    return histories


def test_T8_reader_of_a_history_accepts_none_from_senders() -> None:
    transfer = receiving("a")
    assert not transfer.is_reading
    transfer.on_page(is_last=False)  # a read has priority over a transfer
    for histories in (tracker_in_backfill(), transfer):
        assert histories.is_reading
        assert histories.is_receiving
        assert histories.is_other("a", 1)
        assert histories.is_other("b", 2)


def test_T8_reader_accepts_other_histories_in_the_tick_after_the_last_page() -> None:
    histories = tracker_in_backfill()
    histories.on_page(is_last=True)
    after_ticks(1, histories)
    assert not histories.is_reading
    assert not histories.is_receiving
    assert not histories.is_other("a", 1)


# -- a source that sends too little (P6) ---------------------------------------------------------


def test_endless_source_lets_others_in_after_a_bounded_number_of_ticks() -> None:
    config = ProtocolConfig()
    histories = TransferTracker(config)
    free: list[int] = []
    for tick in range(3 * config.history_ticks_max):
        if tick % 2 == 0:
            histories.on_page(is_last=False)
        histories.on_tick()
        if not histories.is_receiving:
            free.append(tick)
    assert free[0] <= config.history_ticks_max
    assert len(free) >= 2 * config.history_rest_ticks


def test_corrupted_rest_period_ends() -> None:
    histories = TransferTracker(TRACKED)
    histories.load(TransferState(received_ticks=-(1 << 40), rest_ticks=1 << 40))
    after_ticks(TRACKED.history_rest_ticks, histories)
    histories.on_page(is_last=False)
    assert histories.is_receiving


def test_neighbour_that_sends_a_history_slowly_does_not_block_others() -> None:
    ring = standing_ring("abcd")
    made = tuple(
        batch(b"%d" % number, publisher="x", first=number, topic=ring.topic)
        for number in range(600)
    )
    states = {
        node: replace(state, publications=made if node in "cd" else ())
        for node, state in ring.subscribers.items()
    }
    config = ProtocolConfig(repair_announce_max=4)
    world = World(replace(ring, subscribers=states), seed=0, config=config)
    world.crash("b")  # another process sends in its name
    newcomer = world.subscribers["a"]
    for number in range(4 * config.history_ticks_max):
        dripped = tuple(
            batch(b"drip", publisher="b", first=5 * number + place, topic=ring.topic)
            for place in range(5)
        )
        if number % 2 == 0:
            world.channels.append(Parcel("a", Publications(dripped), "b", world.next_serial))
            world.next_serial += 1
        run_rounds(world, Synchronous(), 1)
        if set(newcomer.trie().keys()) >= {each.id for each in made}:
            return
    raise AssertionError(f"{newcomer.count} publications")
