"""A history goes over once, and keeps nobody waiting for long (T8)."""

from __future__ import annotations

import pytest

from skipring.core.config import ProtocolConfig
from skipring.core.histories import Histories

CONFIG = ProtocolConfig(rumours_max=10, history_ticks=3)
MANY, FEW = 11, 10


def receiving(sender: str = "a") -> Histories:
    histories = Histories(CONFIG)
    histories.note_taken(sender, MANY, is_last=False)
    return histories


def serving(to: str = "a", session: int = 5) -> Histories:
    histories = Histories(CONFIG)
    histories.note_sent(to, session, MANY)
    return histories


def after(ticks: int, histories: Histories) -> Histories:
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
    histories.note_sent("b", 7, MANY)
    assert not histories.is_other("b", 7)
    assert not histories.is_other("c", 9)


def test_T8_a_few_publications_are_no_history() -> None:
    histories = Histories(CONFIG)
    histories.note_taken("a", FEW, is_last=False)
    histories.note_sent("a", 5, FEW)
    assert not histories.is_receiving
    assert not histories.is_other("a", 6)
    assert not histories.is_other("b", 6)


def test_T8_what_came_from_nobody_binds_us_to_nobody() -> None:
    histories = Histories(CONFIG)
    histories.note_taken(None, MANY, is_last=False)
    assert not histories.is_receiving


def test_T8_after_the_last_part_others_may_send() -> None:
    histories = receiving("a")
    histories.note_taken("b", FEW, is_last=True)  # of another session
    assert histories.is_receiving
    histories.note_taken("a", MANY, is_last=True)
    assert not histories.is_receiving
    assert not histories.is_other("b", 1)


@pytest.mark.parametrize(("ticks", "is_over"), [(2, False), (3, True)])
def test_T8_a_history_that_stops_is_over_after_some_ticks(ticks: int, is_over: bool) -> None:
    assert after(ticks, receiving()).is_receiving is not is_over
    assert after(ticks, serving("a", 5)).is_other("a", 6) is not is_over


def test_T8_every_part_begins_the_wait_anew() -> None:
    histories = receiving("a")
    for _ in range(5):
        after(2, histories).note_taken("a", MANY, is_last=False)
    assert histories.is_receiving


def test_corrupted_counters_keep_nobody_waiting_for_long() -> None:
    histories = serving("a", 5)
    histories.note_taken("b", MANY, is_last=False)
    histories._source_ticks = 10**9
    (served,) = histories._served.values()
    histories._served["a"] = type(served)(5, 10**9)
    after(CONFIG.history_ticks, histories)
    assert not histories.is_receiving
    assert not histories.is_other("a", 6)


# -- read from several at once -------------------------------------------------------------------


def reading() -> Histories:
    histories = Histories(CONFIG)
    histories.note_read(is_last=False)
    return histories


def test_T8_who_reads_a_history_from_several_takes_none_from_anybody() -> None:
    histories = reading()
    assert histories.is_reading
    assert histories.is_receiving
    assert histories.is_other("a", 1)
    assert histories.is_other("b", 2)


def test_T8_who_is_sent_a_history_does_not_read_one() -> None:
    assert not receiving("a").is_reading
    assert not Histories(CONFIG).is_reading
    assert not serving("a").is_reading


def test_T8_who_has_read_the_last_part_takes_others_from_the_next_tick_on() -> None:
    histories = reading()
    histories.note_read(is_last=True)
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
        after(2, histories).note_read(is_last=False)
    assert histories.is_reading


def test_T8_reading_goes_before_being_sent() -> None:
    histories = receiving("a")
    histories.note_read(is_last=False)
    assert histories.is_reading
    assert histories.is_other("a", 1)


def test_a_corrupted_counter_does_not_make_reading_last_for_ever() -> None:
    histories = reading()
    histories._source_ticks = 10**9
    assert not after(CONFIG.history_ticks, histories).is_reading
