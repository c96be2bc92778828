"""A history goes over once, and keeps nobody waiting for long (T8)."""

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


def test_T8_who_is_sent_a_history_takes_none_from_others() -> None:
    histories = receiving("a")
    assert histories.is_receiving
    assert not histories.is_other("a", 1)
    assert histories.is_other("b", 1)


def test_T8_who_sends_a_history_talks_with_its_receiver_in_no_other_session() -> None:
    histories = serving("a", 5)
    assert not histories.is_receiving
    assert not histories.is_other("a", 5)
    assert histories.is_other("a", 6)


def test_T8_who_sends_a_history_is_free_for_others() -> None:
    histories = serving("a", 5)
    histories.on_sent("b", 7, MANY)
    assert not histories.is_other("b", 7)
    assert not histories.is_other("c", 9)


def test_T8_a_few_publications_are_no_history() -> None:
    histories = TransferTracker(CONFIG)
    histories.on_received("a", FEW, is_last=False)
    histories.on_sent("a", 5, FEW)
    assert not histories.is_receiving
    assert not histories.is_other("a", 6)
    assert not histories.is_other("b", 6)


def test_T8_what_came_from_nobody_binds_us_to_nobody() -> None:
    histories = TransferTracker(CONFIG)
    histories.on_received(None, MANY, is_last=False)
    assert not histories.is_receiving


def test_T8_after_the_last_part_others_may_send() -> None:
    histories = receiving("a")
    histories.on_received("b", FEW, is_last=True)  # of another session
    assert histories.is_receiving
    histories.on_received("a", MANY, is_last=True)
    assert not histories.is_receiving
    assert not histories.is_other("b", 1)


@pytest.mark.parametrize(("ticks", "is_over"), [(2, False), (3, True)])
def test_T8_a_history_that_stops_is_over_after_some_ticks(ticks: int, is_over: bool) -> None:
    assert after(ticks, receiving()).is_receiving is not is_over
    assert after(ticks, serving("a", 5)).is_other("a", 6) is not is_over


def test_T8_every_part_begins_the_wait_anew() -> None:
    histories = receiving("a")
    for _ in range(5):
        after(2, histories).on_received("a", MANY, is_last=False)
    assert histories.is_receiving


def test_corrupted_counters_keep_nobody_waiting_for_long() -> None:
    histories = serving("a", 5)
    histories.on_received("b", MANY, is_last=False)
    histories._source_ticks = 10**9
    (served,) = histories._served.values()
    histories._served["a"] = type(served)(5, 10**9)
    after(CONFIG.history_ticks, histories)
    assert not histories.is_receiving
    assert not histories.is_other("a", 6)


# -- read from several at once -------------------------------------------------------------------


def reading() -> TransferTracker:
    histories = TransferTracker(CONFIG)
    histories.on_page(is_last=False)
    return histories


def test_T8_who_reads_a_history_from_several_takes_none_from_anybody() -> None:
    histories = reading()
    assert histories.is_reading
    assert histories.is_receiving
    assert histories.is_other("a", 1)
    assert histories.is_other("b", 2)


def test_T8_who_is_sent_a_history_does_not_read_one() -> None:
    assert not receiving("a").is_reading
    assert not TransferTracker(CONFIG).is_reading
    assert not serving("a").is_reading


def test_T8_who_has_read_the_last_part_takes_others_from_the_next_tick_on() -> None:
    histories = reading()
    histories.on_page(is_last=True)
    after(1, histories)
    assert not histories.is_reading
    assert not histories.is_receiving
    assert not histories.is_other("a", 1)


@pytest.mark.parametrize(("ticks", "is_over"), [(2, False), (3, True)])
def test_T8_reading_that_stops_is_over_after_some_ticks(ticks: int, is_over: bool) -> None:
    assert after(ticks, reading()).is_reading is not is_over


def test_T8_every_part_that_is_read_begins_the_wait_anew() -> None:
    histories = reading()
    for _ in range(5):
        after(2, histories).on_page(is_last=False)
    assert histories.is_reading


def test_T8_reading_goes_before_being_sent() -> None:
    histories = receiving("a")
    histories.on_page(is_last=False)
    assert histories.is_reading
    assert histories.is_other("a", 1)


def test_a_corrupted_counter_does_not_make_reading_last_for_ever() -> None:
    histories = reading()
    histories._source_ticks = 10**9
    assert not after(CONFIG.history_ticks, histories).is_reading


# -- a source that sends too little (P6) ---------------------------------------------------------


def test_source_that_never_ends_lets_others_in_after_a_bounded_number_of_ticks() -> None:
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


def test_corrupted_rest_ends() -> None:
    histories = TransferTracker(CONFIG)
    histories.load(TransferState(received_ticks=-(1 << 40), rest_ticks=1 << 40))
    after(CONFIG.history_rest_ticks, histories)
    histories.on_page(is_last=False)
    assert histories.is_receiving


def test_neighbour_that_drips_a_history_does_not_keep_others_out() -> None:
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
    world.crash("b")  # another process speaks for it
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
        if set(newcomer.trie.keys()) >= {each.id for each in made}:
            return
    raise AssertionError(f"{newcomer.count} publications")
