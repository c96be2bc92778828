"""Order of a tail: numbers rise, gaps are reported, times rise."""

from __future__ import annotations

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.publications import Publication
from skipring.order.gaps import Gap, GapReason, Order
from skipring.rpc.tail_order import GAP_WAIT_S, TailBatch, TailOrder
from tests.support.rings import TOPIC


def part(first: int, *times: int, publisher: str = "a", unordered: bool = False) -> TailBatch:
    batch = RecordBatch.of(
        [BatchRecord(b"x", time) for time in times or (1,)],
        publisher=publisher,
        first=first,
        topic=TOPIC,
        unordered=unordered,
    )
    return TailBatch(batch, first, batch.publications())


def added(order: TailOrder, *parts: TailBatch, now_s: float = 0.0) -> list[Publication | Gap]:
    return list(order.add(parts, now_s, is_at_end=True))


def numbers(items: list[Publication | Gap]) -> list[int]:
    return [each.seq for each in items if isinstance(each, Publication)]


def test_numbers_of_each_publisher_rise() -> None:
    order = TailOrder(Order.PUBLISHER, is_new=False)
    assert numbers(added(order, part(1), part(0, publisher="b"), part(2))) == [0]
    assert numbers(added(order, part(0))) == [0, 1, 2]


def test_missing_publications_are_reported_and_late_ones_marked() -> None:
    order = TailOrder(Order.PUBLISHER, is_new=False)
    assert added(order, part(3)) == []
    gap, *found = added(order, now_s=5 * GAP_WAIT_S)
    assert gap == Gap("a", 0, 0, 2, GapReason.TIMEOUT)
    assert numbers(found) == [3]
    (late,) = added(order, part(1))
    assert isinstance(late, Publication)
    assert (late.seq, late.late) == (1, True)


def test_publications_that_the_reader_skips_cause_no_gap() -> None:
    order = TailOrder(Order.PUBLISHER, is_new=False)
    assert added(order, part(0)._replace(publications=[])) == []
    assert numbers(added(order, part(1))) == [1]


def test_new_publications_begin_anywhere() -> None:
    assert numbers(added(TailOrder(Order.PUBLISHER, is_new=True), part(7), part(8))) == [7, 8]


def test_publications_of_a_sink_are_released_at_once() -> None:
    order = TailOrder(Order.PUBLISHER, is_new=False)
    assert numbers(added(order, part(9, unordered=True))) == [9]


def test_times_rise_and_the_end_releases_the_rest() -> None:
    order = TailOrder(Order.TIME, is_new=False)
    parts = [part(0, 5, 3), part(0, 4, publisher="b")]
    assert list(order.add(parts, 0.0, is_at_end=False)) == []
    assert [each.time for each in order.flush() if isinstance(each, Publication)] == [3, 4, 5]
    ordered = TailOrder(Order.PUBLISHER, is_new=False)
    assert added(ordered, part(1)) == []
    gap, publication = ordered.flush()
    assert isinstance(gap, Gap)
    assert isinstance(publication, Publication)
