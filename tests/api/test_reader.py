"""Reader of one log: start positions, skipped publications, lag."""

from __future__ import annotations

import doctest
from datetime import UTC, datetime, timedelta, timezone

import pytest

from skipring.api import reader as reading
from skipring.api.reader import READ_AT_ONCE, Reader, Start, checked_start
from skipring.core.effects import Deliver, Origin
from skipring.core.log import MemoryLog
from skipring.core.publications import Publication as StoredPublication
from skipring.errors import InputError

NOW = 1_000_000  # microseconds


def test_docstring_examples_pass() -> None:
    assert doctest.testmod(reading) == (0, 2)


# -- one reader and its log ------------------------------------------------------------------


class Shelf:
    """Log in memory with a reader that is notified of each stored publication."""

    def __init__(self, start: Start, times: tuple[int, ...] = ()) -> None:
        self.archive = MemoryLog([self.publication(at, when) for at, when in enumerate(times)])
        self.reader = Reader("news", self.archive, start, NOW)

    @staticmethod
    def publication(seq: int, when: int) -> StoredPublication:
        return StoredPublication(publisher="a", seq=seq, time=when, payload=b"x").with_id("t")

    def put(self, origin: Origin, when: int) -> None:
        offset = self.archive.end
        made = self.publication(offset, when)
        self.archive.write(offset, made)
        self.reader.on_deliver(Deliver((made,), offset, origin, hops=1))

    def read(self) -> list[int]:
        return [publication.offset for publication in self.reader.fetch(READ_AT_ONCE)]


def test_start_new_skips_only_old_publications_repaired_before_first_sync() -> None:
    shelf = Shelf("new", times=(NOW + 1,))  # 0: stored before the start
    shelf.put(Origin.REPAIR, 0)  # 1
    shelf.put(Origin.REPAIR, NOW - 1)  # 2
    assert (shelf.reader.lag, shelf.reader.offset) == (0, 3)
    shelf.put(Origin.SPREAD, NOW - 1)  # 3: new to all members
    shelf.put(Origin.REPAIR, NOW - 1)  # 4
    shelf.put(Origin.REPAIR, NOW - 1)  # 5
    shelf.put(Origin.REPAIR, NOW)  # 6: published since the start
    shelf.put(Origin.REPAIR, 5)  # 7
    shelf.put(Origin.OWN, NOW + 5)  # 8
    assert shelf.reader.lag == 3
    shelf.reader.end_history()
    shelf.put(Origin.REPAIR, 7)  # 9: delivered, because a doubtful case is delivered
    assert shelf.reader.lag == 4
    assert shelf.read() == [3, 6, 8, 9]
    assert shelf.reader.lag == 0


def test_start_all_skips_nothing() -> None:
    shelf = Shelf("all", times=(0, 5))
    shelf.put(Origin.REPAIR, 0)
    assert shelf.reader.lag == 3
    assert shelf.read() == [0, 1, 2]


def test_datetime_start_skips_earlier_publications_of_any_origin() -> None:
    since = datetime(1970, 1, 1, 1, 0, 1, tzinfo=timezone(timedelta(hours=1)))  # NOW
    shelf = Shelf(since, times=(0, NOW - 1, NOW))
    assert shelf.reader.lag == 3  # not examined yet
    shelf.put(Origin.SPREAD, NOW - 1)
    shelf.put(Origin.REPAIR, NOW + 1)
    assert shelf.reader.lag == 4
    assert shelf.read() == [2, 4]
    assert shelf.reader.lag == 0


async def test_reader_that_skips_many_publications_reaches_the_next() -> None:
    shelf = Shelf(datetime.fromtimestamp(1, UTC), times=(0,) * 10 * READ_AT_ONCE)
    assert await shelf.reader.next(timeout_s=0) is None
    shelf.put(Origin.SPREAD, NOW)
    found = await shelf.reader.next(timeout_s=0)
    assert found is not None
    assert found.offset == 10 * READ_AT_ONCE


async def test_available_publications_are_read_with_zero_timeout() -> None:
    shelf = Shelf("all", times=(1,) * 3 * READ_AT_ONCE)
    for offset in range(3 * READ_AT_ONCE):
        found = await shelf.reader.next(timeout_s=0)
        assert found is not None
        assert found.offset == offset


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
    ],
)
def test_invalid_start_is_refused(start: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        checked_start(start)
