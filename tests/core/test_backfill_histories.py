"""Bulk transfers: each history is transferred once and delays other sessions briefly (T8)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from skipring.core.backfill import TransferTracker
from skipring.core.config import ProtocolConfig
from skipring.core.messages import Publications
from skipring.core.publications import Publication
from skipring.core.state import TransferState
from skipring.sim.engine import World
from skipring.sim.schedulers import Synchronous, run_rounds
from skipring.world.snapshot import Parcel
from tests.support.conversations import standing_ring

CONFIG = ProtocolConfig(repair_announce_max=10, history_ticks=3)
MANY, FEW = 11, 10


def receiving(sender: str = "a") -> TransferTracker:
    histories = TransferTracker(CONFIG)
    histories.on_received(sender, MANY, is_last=False)
    return histories


def serving(to: str = "a", session: int = 5) -> TransferTracker:
    histories = TransferTracker(CONFIG)
    histories.on_sent(to, session, MANY)
    return histories


def after(ticks: int, histories: TransferTracker) -> TransferTracker:
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
    histories = TransferTracker(CONFIG)
    histories.on_received("a", FEW, is_last=False)
    histories.on_sent("a", 5, FEW)
    assert not histories.is_receiving
    assert not histories.is_other("a", 6)
    assert not histories.is_other("b", 6)


def test_T8_publications_without_a_sender_start_no_transfer() -> None:
    histories = TransferTracker(CONFIG)
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
def test_T8_transfer_that_stops_ends_after_some_ticks(ticks: int, is_over: bool) -> None:
    assert after(ticks, receiving()).is_receiving is not is_over
    assert after(ticks, serving("a", 5)).is_other("a", 6) is not is_over


def test_T8_every_part_restarts_the_wait() -> None:
    histories = receiving("a")
    for _ in range(5):
        after(2, histories).on_received("a", MANY, is_last=False)
    assert histories.is_receiving


def test_corrupted_counters_delay_other_sessions_for_a_bounded_time_only() -> None:
    histories = serving("a", 5)
    histories.on_received("b", MANY, is_last=False)
    histories._source_ticks = 10**9
    (served,) = histories._served.values()
    histories._served["a"] = type(served)(5, 10**9)
    after(CONFIG.history_ticks, histories)
    assert not histories.is_receiving
    assert not histories.is_other("a", 6)


# -- backfill from several sources ---------------------------------------------------------------


def reading() -> TransferTracker:
    histories = TransferTracker(CONFIG)
    histories.on_page(is_last=False)
    return histories


def test_T8_reader_of_a_history_accepts_none_from_senders() -> None:
    histories = reading()
    assert histories.is_reading
    assert histories.is_receiving
    assert histories.is_other("a", 1)
    assert histories.is_other("b", 2)


def test_T8_receiver_of_a_history_reads_none() -> None:
    assert not receiving("a").is_reading
    assert not TransferTracker(CONFIG).is_reading
    assert not serving("a").is_reading


def test_T8_reader_accepts_other_histories_in_the_tick_after_the_last_page() -> None:
    histories = reading()
    histories.on_page(is_last=True)
    after(1, histories)
    assert not histories.is_reading
    assert not histories.is_receiving
    assert not histories.is_other("a", 1)


@pytest.mark.parametrize(("ticks", "is_over"), [(2, False), (3, True)])
def test_T8_read_that_stops_ends_after_some_ticks(ticks: int, is_over: bool) -> None:
    assert after(ticks, reading()).is_reading is not is_over


def test_T8_every_page_restarts_the_wait() -> None:
    histories = reading()
    for _ in range(5):
        after(2, histories).on_page(is_last=False)
    assert histories.is_reading


def test_T8_read_has_priority_over_a_transfer() -> None:
    histories = receiving("a")
    histories.on_page(is_last=False)
    assert histories.is_reading
    assert histories.is_other("a", 1)


def test_corrupted_counter_extends_a_read_for_a_bounded_time_only() -> None:
    histories = reading()
    histories._source_ticks = 10**9
    assert not after(CONFIG.history_ticks, histories).is_reading


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
    histories = TransferTracker(CONFIG)
    histories.load(TransferState(received_ticks=-(1 << 40), rest_ticks=1 << 40))
    after(CONFIG.history_rest_ticks, histories)
    histories.on_page(is_last=False)
    assert histories.is_receiving


def test_neighbour_that_sends_a_history_slowly_does_not_block_others() -> None:
    ring = standing_ring("abcd")
    made = tuple(
        Publication(publisher="x", seq=number, payload=b"%d" % number).with_id(ring.topic)
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
            Publication(publisher="b", seq=5 * number + place, payload=b"drip").with_id(ring.topic)
            for place in range(5)
        )
        if number % 2 == 0:
            world.channels.append(Parcel("a", Publications(dripped), "b", world.next_serial))
            world.next_serial += 1
        run_rounds(world, Synchronous(), 1)
        if set(newcomer.index().keys()) >= {each.id for each in made}:
            return
    raise AssertionError(f"{newcomer.count} publications")
