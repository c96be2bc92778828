"""Backfill: slow sources are replaced; a transfer delays other sessions for a bounded time (T8)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from skipring.core.backfill import (
    PATIENCE_TICKS,
    SHARES,
    TICK_BYTES_MIN,
    PageRead,
    SourceProgress,
    TransferTracker,
)
from skipring.core.config import ProtocolConfig
from skipring.core.messages import Publications
from skipring.core.publications import Publication
from skipring.core.state import TransferState
from skipring.sim.engine import World
from skipring.sim.schedulers import Synchronous, run_rounds
from skipring.world.snapshot import Parcel
from tests.support.conversations import standing_ring


def ticks_kept(every: int, page: PageRead, count: int, limit: int = 1000) -> int:
    """Return for how many ticks a source is kept that sends such a page every ``every`` ticks."""
    progress, held = SourceProgress(), 0
    for tick in range(limit):
        if tick % every == 0:
            held += page.new
            progress = progress.after_page(page, held, count)
        progress = progress.after_tick()
        if progress.is_too_slow:
            return tick + 1
    return limit


def test_silent_source_is_replaced_after_its_patience() -> None:
    progress = SourceProgress()
    for _ in range(PATIENCE_TICKS):
        progress = progress.after_tick()
        assert not progress.is_too_slow
    assert progress.after_tick().is_too_slow


@pytest.mark.parametrize("every", [1, 2])
def test_source_with_one_publication_every_few_ticks_is_replaced_soon(every: int) -> None:
    assert ticks_kept(every, PageRead(1024, 1, 1), 20_000) <= 2 * PATIENCE_TICKS


@pytest.mark.parametrize("every", [1, 2, 3])
def test_source_with_enough_bytes_is_kept(every: int) -> None:
    assert ticks_kept(every, PageRead(every * TICK_BYTES_MIN, 1, 1), 1 << 30) == 1000


def test_source_with_small_rows_is_kept_for_their_number() -> None:
    page = PageRead(1000, 100, 100)
    assert ticks_kept(1, page, 100 * SHARES, SHARES) == SHARES
    assert ticks_kept(1, page, 100 * SHARES) <= SHARES + 2 * PATIENCE_TICKS


def test_source_that_repeats_a_known_row_is_replaced() -> None:
    page = PageRead(TICK_BYTES_MIN, 64, 0)
    assert ticks_kept(1, page, 1 << 30) <= 2 * PATIENCE_TICKS


def test_known_publications_count_once() -> None:
    progress = SourceProgress(credit=0.0)
    page = PageRead(TICK_BYTES_MIN, 64, 0)
    once = progress.after_page(page, 64, 1 << 30)
    assert once.credit == 1.0
    assert once.after_page(page, 64, 1 << 30).credit == 1.0


def test_large_page_earns_no_credit_for_later() -> None:
    progress = SourceProgress().after_page(PageRead(1 << 40, 1, 1), 1, 1)
    assert progress.credit == SourceProgress().credit


def test_empty_log_causes_no_division_by_zero() -> None:
    assert not SourceProgress().after_page(PageRead(0, 0, 0), 0, 0).is_too_slow


# -- transfers (T8) ----------------------------------------------------------------------------


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
def test_T8_transfer_or_read_that_stops_ends_after_some_ticks(ticks: int, is_over: bool) -> None:
    assert after(ticks, receiving()).is_receiving is not is_over
    assert after(ticks, reading()).is_reading is not is_over
    assert after(ticks, serving("a", 5)).is_other("a", 6) is not is_over


def test_T8_every_part_and_every_page_restarts_the_wait() -> None:
    parts, pages = receiving("a"), reading()
    for _ in range(5):
        after(2, parts).on_received("a", MANY, is_last=False)
        after(2, pages).on_page(is_last=False)
    assert parts.is_receiving
    assert pages.is_reading


def test_corrupted_counters_delay_other_sessions_for_a_bounded_time_only() -> None:
    histories = TransferTracker(CONFIG)
    served = {"a": (5, 10**9)}
    histories.load(TransferState(source="b", source_ticks=10**9, served=served))
    assert histories.is_receiving
    assert histories.is_other("a", 6)
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


def test_T8_read_has_priority_over_a_transfer() -> None:
    histories = receiving("a")
    histories.on_page(is_last=False)
    assert histories.is_reading
    assert histories.is_other("a", 1)


def test_corrupted_counter_extends_a_read_for_a_bounded_time_only() -> None:
    histories = reading()
    histories.load(replace(histories.state(), source_ticks=10**9))
    assert histories.is_reading
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
