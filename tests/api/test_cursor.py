"""Cursors as text, with and without the state of an order; start positions."""

from __future__ import annotations

import doctest
import shutil
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import pytest

from skipring.api import cursor as cursor_module
from skipring.api.cursor import Cursor, checked_start
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.limits import TRIMMED_CHAIN, UNKNOWN_DIGEST, is_same_chain
from skipring.errors import CursorError, InputError
from skipring.order.gaps import Order
from skipring.order.saved_order import SavedOrder
from skipring.storage.store import LogStore
from skipring.storage.topic_log import SegmentLog

SMALL = 1 << 16  # bytes of a segment
EARLIER = [
    (b"eightbyt", b"eightbytesof", True),
    (b"eightbyt", b"eightbutesof", False),
    (b"eightbyt", b"eigh" + UNKNOWN_DIGEST, True),
    (b"eightbyt", b"nine" + UNKNOWN_DIGEST, False),
    (b"eightbyt", TRIMMED_CHAIN, False),
]
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


def keyed(number: int) -> RecordBatch:
    record = BatchRecord(b"%03d" % number + bytes(2000), 1, b"k%d" % number)
    return RecordBatch.of([record], publisher="a", first=number, topic="news")


def stored(log: SegmentLog, numbers: Iterable[int]) -> None:
    for number in numbers:
        log.append(keyed(number))


def removed(store: LogStore, offsets: Iterable[int]) -> None:
    """Remove batches, and reclaim their space: later batches begin new segments."""
    log = store.log("news")
    for offset in offsets:
        log.remove(offset)
    for _ in range(4):
        store.commit()


@pytest.mark.parametrize("is_restored", [False, True])
def test_cursor_among_removed_publications_is_refused_after_a_restore_only(
    tmp_path: Path, is_restored: bool
) -> None:
    path, copy = tmp_path / "a", tmp_path / "backup"
    with LogStore.open(path, segment_bytes_max=SMALL) as store:
        stored(store.log("news"), range(100))
        store.commit()
    shutil.copytree(path, copy)
    with LogStore.open(path, segment_bytes_max=SMALL) as store:
        log = store.log("news")
        stored(log, range(100, 200))
        store.commit()
        cursor = Cursor(store.id, "news", log.epoch, 180, log.chain_at(180))
        if not is_restored:
            removed(store, range(150, 199))
            cursor.check(store, "news", Order.ARRIVAL)
            among = Cursor(store.id, "news", log.epoch, 180, log.chain_at(180))
            among.check(store, "news", Order.ARRIVAL)
    if is_restored:
        shutil.rmtree(path)
        copy.rename(path)
    with LogStore.open(path, segment_bytes_max=SMALL) as store:
        if not is_restored:
            assert store.log("news").chain_at(180) != cursor.chain, "it is among removed ones"
            cursor.check(store, "news", Order.ARRIVAL)
            return
        stored(store.log("news"), [*range(180, 200), *range(100, 180)])
        store.commit()
        removed(store, range(150, 199))
        with pytest.raises(CursorError, match="restored from a copy"):
            cursor.check(store, "news", Order.ARRIVAL)


def test_cursor_below_the_first_retained_publication_is_accepted(tmp_path: Path) -> None:
    with LogStore.open(tmp_path, segment_bytes_max=SMALL) as store:
        log = store.log("news")
        stored(log, range(100))
        store.commit()
        cursor = Cursor(store.id, "news", log.epoch, 40, log.chain_at(40))
        log.trim(80)
        below = Cursor(store.id, "news", log.epoch, 40, log.chain_at(40))
        store.commit()
        unknown = Cursor(store.id, "news", log.epoch, 40, log.chain_at(40))
        assert (below.chain, unknown.chain) == (cursor.chain, TRIMMED_CHAIN)
        for each in (cursor, unknown):
            each.check(store, "news", Order.ARRIVAL)


def test_cursor_of_an_unknown_place_is_refused_where_publications_are_retained(
    tmp_path: Path,
) -> None:
    with LogStore.open(tmp_path) as store:
        stored(store.log("news"), range(4))
        store.commit()
        with pytest.raises(CursorError, match="restored from a copy"):
            Cursor(store.id, "news", store.log("news").epoch, 2, TRIMMED_CHAIN).check(
                store, "news", Order.ARRIVAL
            )


@pytest.mark.parametrize(("earlier", "now", "is_same"), EARLIER)
def test_position_of_an_earlier_version_is_compared_by_its_digest(
    earlier: bytes, now: bytes, is_same: bool
) -> None:
    assert is_same_chain(earlier, now) is is_same
