"""Arrivals that a node records while a monitor watches."""

import pytest

from skipring.core.effects import Deliver, Origin
from skipring.core.messages import Publications, PublishMany, PublishNew, Subscribe
from skipring.core.publications import Publication
from skipring.node.arrival_tap import KEPT, PATIENCE_TICKS, ArrivalTap
from skipring.wire.limits import ARRIVALS_MAX
from skipring.wire.rpc import Arrival, FetchArrivals

TOPIC = "news"
NOW_US = 5_000


def publication(seq: int, publisher: str = "a", time: int = 3_000) -> Publication:
    return Publication(publisher=publisher, seq=seq, payload=b"x", time=time)


def watched() -> ArrivalTap:
    arrivals = ArrivalTap(clock_us=lambda: NOW_US)
    arrivals.answer(TOPIC, FetchArrivals(1, 0))
    return arrivals


def noted(arrivals: ArrivalTap, since: int = 0) -> tuple[Arrival, ...]:
    return arrivals.answer(TOPIC, FetchArrivals(2, since)).arrivals


def delivered(*publications: Publication, origin: Origin = Origin.SPREAD, hops: int = 3) -> Deliver:
    return Deliver(publications, 0, origin, hops)


def test_nothing_is_recorded_without_requests() -> None:
    arrivals = ArrivalTap()
    assert not arrivals.watched
    with arrivals.handling(TOPIC, "b", PublishNew(publication(1), 2)):
        arrivals.on_delivered(TOPIC, delivered(publication(1)))
    arrivals.on_delivered(TOPIC, delivered(publication(2), origin=Origin.OWN))
    assert noted(arrivals) == ()


def test_message_is_recorded_with_sender_hops_and_new_publications() -> None:
    arrivals = watched()
    with arrivals.handling(TOPIC, "b", PublishMany((publication(7), publication(8)), 2)):
        arrivals.on_delivered(TOPIC, delivered(publication(8)))
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


def test_known_publication_is_recorded_as_not_new() -> None:
    arrivals = watched()
    with arrivals.handling(TOPIC, "b", PublishNew(publication(7), 255)):
        pass
    (seen,) = noted(arrivals)
    assert (seen.fresh, seen.count, seen.hops) == (0, 1, 255)


def test_repaired_publication_is_recorded_as_repair() -> None:
    arrivals = watched()
    with arrivals.handling(TOPIC, "b", Publications((publication(7),), 0)):
        arrivals.on_delivered(TOPIC, delivered(publication(7), origin=Origin.REPAIR, hops=0))
    (seen,) = noted(arrivals)
    assert list(Origin)[seen.origin] is Origin.REPAIR


def test_own_publication_has_no_sender() -> None:
    arrivals = watched()
    arrivals.on_delivered(TOPIC, delivered(publication(7), origin=Origin.OWN, hops=0))
    (seen,) = noted(arrivals)
    assert (seen.sender, list(Origin)[seen.origin], seen.fresh) == (None, Origin.OWN, 1)


def test_messages_without_publications_and_other_topics_are_not_recorded() -> None:
    arrivals = watched()
    with arrivals.handling(TOPIC, "b", Subscribe("b")):
        pass
    with arrivals.handling("sport", "b", PublishNew(publication(1), 0)):
        arrivals.on_delivered("sport", delivered(publication(1)))
    arrivals.on_delivered("sport", delivered(publication(2)))
    assert noted(arrivals) == ()


def test_failing_handler_does_not_affect_the_next_message() -> None:
    arrivals = watched()

    def fail() -> None:
        with arrivals.handling(TOPIC, "b", PublishNew(publication(1), 0)):
            raise ArithmeticError("broken")

    with pytest.raises(ArithmeticError, match="broken"):
        fail()
    arrivals.on_delivered(TOPIC, delivered(publication(2), origin=Origin.OWN))
    assert [each.seq for each in noted(arrivals)] == [2]


def test_next_request_returns_later_arrivals() -> None:
    arrivals = watched()
    for seq in range(ARRIVALS_MAX + 3):
        arrivals.on_delivered(TOPIC, delivered(publication(seq), origin=Origin.OWN))
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
        arrivals.on_delivered(TOPIC, delivered(publication(seq), origin=Origin.OWN))
    assert noted(arrivals)[0].seq == 5


def test_request_to_a_restarted_node_starts_from_the_beginning() -> None:
    arrivals = watched()
    arrivals.on_delivered(TOPIC, delivered(publication(7), origin=Origin.OWN))
    assert [each.seq for each in noted(arrivals, since=100)] == [7]


def test_recording_ends_after_a_while_without_requests() -> None:
    arrivals = watched()
    for _ in range(PATIENCE_TICKS):
        arrivals.on_tick()
    assert arrivals.watched
    noted(arrivals)
    for _ in range(PATIENCE_TICKS + 1):
        arrivals.on_tick()
    assert not arrivals.watched
