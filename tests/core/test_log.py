"""Log in memory: a sequence of publications whose offsets only grow."""

from collections.abc import Callable

import pytest

from skipring.core.log import Log, MemoryLog
from skipring.core.publications import Publication
from tests.support.machines import TOPIC


def publication(publisher: str, seq: int) -> Publication:
    return Publication(publisher=publisher, seq=seq, payload=b"").with_id(TOPIC)


A0, A1, B5 = publication("a", 0), publication("a", 1), publication("b", 5)


def given_at_once() -> MemoryLog:
    return MemoryLog([A0, A1, B5])


def written_one_by_one() -> MemoryLog:
    log = MemoryLog()
    for offset, row in enumerate((A0, A1, B5)):
        log.write(offset, row)
    return log


both_ways = pytest.mark.parametrize("make", [given_at_once, written_one_by_one])


def test_empty_log_holds_nothing() -> None:
    log: Log = MemoryLog()
    assert log.end == 0
    assert log.read(0) is None
    assert list(log.entries()) == []
    assert list(log.publications()) == []
    assert log.newest() == {}


@both_ways
def test_publications_are_stored_in_order_of_arrival(
    make: Callable[[], MemoryLog],
) -> None:
    log: Log = make()
    assert log.end == 3
    assert [log.read(offset) for offset in range(4)] == [A0, A1, B5, None]
    assert list(log.publications()) == [A0, A1, B5]
    assert list(log.entries()) == [(A0.id, 0), (A1.id, 1), (B5.id, 2)]


@both_ways
def test_T12_discard_leaves_a_gap_and_keeps_offsets(
    make: Callable[[], MemoryLog],
) -> None:
    log = make()
    log.discard(1)
    assert log.end == 3
    assert [log.read(offset) for offset in range(3)] == [A0, None, B5]
    assert list(log.publications()) == [A0, B5]
    assert list(log.entries()) == [(A0.id, 0), (B5.id, 2)]
    log.write(3, A1)
    assert log.read(3) == A1


@pytest.mark.parametrize("rows", [(), (A0,)])
def test_T12_discard_of_an_unknown_offset_changes_nothing(rows: tuple[Publication, ...]) -> None:
    log = MemoryLog(rows)
    log.discard(7)
    assert (log.end, list(log.publications())) == (len(rows), list(rows))


@pytest.mark.parametrize("offset", [0, 2])
def test_row_out_of_order_is_a_bug_of_the_host(offset: int) -> None:
    with pytest.raises(AssertionError):
        MemoryLog([A0]).write(offset, A1)


def test_T10_entries_are_the_stored_ids_whether_right_or_wrong() -> None:
    wrong = Publication(publisher="a", seq=0, payload=b"", id=b"x" * 32)
    assert list(MemoryLog([wrong]).entries()) == [(b"x" * 32, 0)]


def test_newest_number_of_each_publisher_is_known() -> None:
    assert MemoryLog([A1, B5, A0]).newest() == {("a", 0): 1, ("b", 0): 5}


def test_list_passed_to_a_log_is_not_changed() -> None:
    rows = [A0]
    MemoryLog(rows).write(1, A1)
    assert rows == [A0]
