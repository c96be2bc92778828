"""Arrivals that a node records while a monitor watches."""

import pytest

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.effects import Deliver, Origin
from skipring.core.messages import Publications, PublishMany, PublishNew
from skipring.node.arrival_tap import KEPT, PATIENCE_TICKS, ArrivalTap
from skipring.wire.limits import ARRIVALS_MAX
from skipring.wire.rpc import Arrival, FetchArrivals

TOPIC = "news"
NOW_US = 5_000


def batch(first: int, count: int = 1) -> RecordBatch:
    records = [BatchRecord(b"x", 3_000 + place) for place in range(count)]
    return RecordBatch.of(records, publisher="a", first=first, topic=TOPIC)


def watched() -> ArrivalTap:
    arrivals = ArrivalTap(clock_us=lambda: NOW_US)
    arrivals.answer(TOPIC, FetchArrivals(1, 0))
    return arrivals


def noted(arrivals: ArrivalTap, since: int = 0) -> tuple[Arrival, ...]:
    return arrivals.answer(TOPIC, FetchArrivals(2, since)).arrivals


def delivered(*batches: RecordBatch, origin: Origin = Origin.SPREAD, hops: int = 3) -> Deliver:
    return Deliver(
        batches,
        tuple(each.records() for each in batches),
        0,
        sum(each.count for each in batches),
        origin,
        hops,
    )


def test_nothing_is_recorded_without_requests() -> None:
    arrivals = ArrivalTap()
    assert not arrivals.watched
    with arrivals.handling(TOPIC, "b", PublishNew(batch(1), 2)):
        arrivals.on_delivered(TOPIC, delivered(batch(1)))
    arrivals.on_delivered(TOPIC, delivered(batch(2), origin=Origin.OWN))
    assert noted(arrivals) == ()


def test_message_is_recorded_with_sender_hops_and_new_publications() -> None:
    arrivals = watched()
    with arrivals.handling(TOPIC, "b", PublishMany((batch(7), batch(8)), 2)):
        arrivals.on_delivered(TOPIC, delivered(batch(8)))
    assert noted(arrivals) == (
        Arrival(
            time=NOW_US,
            sender="b",
            hops=3,
            origin=list(Origin).index(Origin.SPREAD),
            count=2,
            fresh=1,
            publisher="a",
            seq=7,
            published=3_000,
        ),
    )


def test_records_of_batches_are_counted() -> None:
    arrivals = watched()
    with arrivals.handling(TOPIC, "b", PublishMany((batch(7, 3), batch(10, 5)), 0)):
        arrivals.on_delivered(TOPIC, delivered(batch(10, 5)))
    arrivals.on_delivered(TOPIC, delivered(batch(20, 2), batch(22, 4), origin=Origin.OWN))
    received, own = noted(arrivals)
    assert (received.count, received.fresh, received.seq, received.published) == (8, 5, 7, 3_000)
    assert (own.count, own.fresh, own.seq) == (6, 6, 20)


@pytest.mark.parametrize("body", [b"", b"\xc1"], ids=["none", "unreadable"])
def test_batch_without_readable_records_has_no_time(body: bytes) -> None:
    arrivals = watched()
    received = RecordBatch("a", 7, 2, body, id=bytes(32))
    with arrivals.handling(TOPIC, "b", PublishNew(received, 0)):
        pass
    (seen,) = noted(arrivals)
    assert (seen.count, seen.fresh, seen.published) == (2, 0, 0)


def test_known_publication_is_recorded_as_not_new() -> None:
    arrivals = watched()
    with arrivals.handling(TOPIC, "b", PublishNew(batch(7), 255)):
        pass
    (seen,) = noted(arrivals)
    assert (seen.fresh, seen.count, seen.hops) == (0, 1, 255)


def test_repaired_publication_is_recorded_as_repair() -> None:
    arrivals = watched()
    with arrivals.handling(TOPIC, "b", Publications((batch(7),), 0)):
        arrivals.on_delivered(TOPIC, delivered(batch(7), origin=Origin.REPAIR, hops=0))
    (seen,) = noted(arrivals)
    assert list(Origin)[seen.origin] is Origin.REPAIR


def test_failing_handler_does_not_affect_the_next_message() -> None:
    arrivals = watched()

    def fail() -> None:
        with arrivals.handling(TOPIC, "b", PublishNew(batch(1), 0)):
            raise ArithmeticError("broken")

    with pytest.raises(ArithmeticError, match="broken"):
        fail()
    arrivals.on_delivered(TOPIC, delivered(batch(2), origin=Origin.OWN))
    assert [each.seq for each in noted(arrivals)] == [2]


def test_next_request_returns_later_arrivals() -> None:
    arrivals = watched()
    for seq in range(ARRIVALS_MAX + 3):
        arrivals.on_delivered(TOPIC, delivered(batch(seq), origin=Origin.OWN))
    first = arrivals.answer(TOPIC, FetchArrivals(9, 0))
    rest = arrivals.answer(TOPIC, FetchArrivals(9, first.next))
    assert first.request == 9
    assert [each.seq for each in first.arrivals] == list(range(ARRIVALS_MAX))
    assert [each.seq for each in rest.arrivals] == [
        ARRIVALS_MAX,
        ARRIVALS_MAX + 1,
        ARRIVALS_MAX + 2,
    ]
    assert noted(arrivals, rest.next) == ()


def test_only_the_last_arrivals_are_kept() -> None:
    arrivals = watched()
    for seq in range(KEPT + 5):
        arrivals.on_delivered(TOPIC, delivered(batch(seq), origin=Origin.OWN))
    assert noted(arrivals)[0].seq == 5


def test_recording_ends_after_a_while_without_requests() -> None:
    arrivals = watched()
    for _ in range(PATIENCE_TICKS):
        arrivals.on_tick()
    assert arrivals.watched
    noted(arrivals)
    for _ in range(PATIENCE_TICKS + 1):
        arrivals.on_tick()
    assert not arrivals.watched
