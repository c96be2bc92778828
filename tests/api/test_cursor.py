"""Cursors as text, with and without the state of an order; start positions."""

from __future__ import annotations

import doctest
from datetime import datetime
from pathlib import Path

import pytest

from skipring.api import cursor as cursor_module
from skipring.api.cursor import Cursor, checked_start
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.errors import CursorError, InputError
from skipring.order.gaps import Order
from skipring.order.saved_order import SavedOrder
from skipring.storage.store import LogStore

SAVED = SavedOrder((range(1, 2),), following={("a", 0): 3}, from_start=True)


def test_docstring_examples_pass() -> None:
    assert doctest.testmod(cursor_module) == (0, 2)


def cursor(offset: int = 5, saved: SavedOrder | None = None) -> Cursor:
    return Cursor("5eed", "or.ders", 7, offset, bytes(8), saved)


@pytest.mark.parametrize("saved", [None, SAVED, SavedOrder(passed=(9, "a", 3))])
def test_cursor_is_equal_after_its_text_was_parsed(saved: SavedOrder | None) -> None:
    assert Cursor.parse(str(cursor(saved=saved))) == cursor(saved=saved)


def test_cursor_in_the_order_of_arrival_has_the_text_of_earlier_versions() -> None:
    assert str(cursor()) == "c2.5eed.7.5.0000000000000000.or.ders"


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        (datetime(2026, 1, 1), "start: .* has no time zone"),  # noqa: DTZ001
        ("yesterday", '"all" or "new"'),
        (3, "a datetime with a time zone or a cursor"),
        (None, "a datetime with a time zone or a cursor"),
        ("c1.5eed.0.1.t", "made by an earlier version.*start=.all."),
        ("c2.5eed.0.x.0123456789abcdef.t", "not a cursor"),
        ("c2.5eed.0.1.0123456789abcdef.", "not a cursor"),
        ("c2.5eed.0.1.0123456789abcde.t", "not a cursor"),
        ("c3.5eed.0.1.0123456789abcdef.t", "not a cursor"),
        ("c3.5eed.0.1.0123456789abcdef..t", "not a cursor"),
        ("c3.5eed.0.1.0123456789abcdef.AAAA.t", "state of the order .* is damaged"),
        ("c4.5eed.0.1.0123456789abcdef.t", "not a cursor"),
    ],
)
def test_invalid_start_is_refused(start: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        checked_start(start)


def test_state_behind_the_position_is_refused() -> None:
    with pytest.raises(CursorError, match=r"publications behind its position.*unchanged text"):
        Cursor.parse(str(cursor(1, SAVED)))


def test_cut_text_of_a_state_is_refused_or_another_state() -> None:
    text = str(cursor(saved=SAVED))
    start, end = text.index("AAA") if "AAA" in text else 30, text.index(".or.ders")
    for place in range(start, end):
        try:
            found = Cursor.parse(text[:place] + text[place + 1 :])
        except CursorError:
            continue
        assert found != cursor(saved=SAVED)


def test_cursor_of_another_order_is_refused(tmp_path: Path) -> None:
    with LogStore.open(tmp_path, "a") as store:
        log = store.log("news")
        log.append(RecordBatch.of([BatchRecord(b"x")], publisher="a", first=0, topic="news"))
        store.commit()
        place = (store.id, "news", log.epoch, 1, log.chain_at(1))
        plain, ordered = Cursor(*place), Cursor(*place, SavedOrder(following={}))
        plain.check(store, "news", Order.ARRIVAL)
        plain.check(store, "news", Order.TIME)  # a position is valid in any order
        ordered.check(store, "news", Order.PUBLISHER)
        for order in (Order.ARRIVAL, Order.TIME):
            with pytest.raises(CursorError, match='made with order="publisher"'):
                ordered.check(store, "news", order)
