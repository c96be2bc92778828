"""Source of a backfill in tests: begins a backfill at a FakeHost, feeds it pages and ends it."""

from __future__ import annotations

from skipring.core.batches import RecordBatch
from skipring.core.effects import Backfilled, Effect, Send
from skipring.core.events import Received, SubscribeRequested
from skipring.core.log_messages import FetchLog, GetLogInfo, LogInfo, LogPage, Refused
from skipring.core.messages import SetConfiguration
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.subscriber import Subscriber
from tests.support.fake_host import FakeHost

COUNT = 10**6  # publications that the source claims to have


def begin(host: FakeHost[Subscriber]) -> None:
    """Begin a backfill from one neighbour of a member; the others refuse."""
    machine = host.machine
    pred, succ = machine.left or machine.ring, machine.right or machine.ring
    host.handle(SubscribeRequested())
    messages = host.receive(SetConfiguration(pred, machine.label, succ), SUPERVISOR)
    asked = [(to, message.request) for to, message in messages if isinstance(message, GetLogInfo)]
    (source, request), *others = asked
    for node, number in others:
        host.receive(Refused(number, "busy"), node)
    host.receive(LogInfo(request, "", 0, 0, COUNT, COUNT, (), b""), source)


def feed(host: FakeHost[Subscriber], *batches: RecordBatch) -> list[Effect]:
    """Deliver a page of a backfill, which begins with the first page; return other effects."""
    if not host.machine.replication.is_backfilling:
        begin(host)
    source, fetch = _open_request(host)
    places = tuple(range(fetch.start, fetch.start + len(batches)))
    answer = LogPage(fetch.request, fetch.start + 1, places, batches)
    return _without_requests(host.handle(Received(answer, source)))


def end(host: FakeHost[Subscriber]) -> list[Effect]:
    """End a backfill with an empty page; return other effects."""
    source, fetch = _open_request(host)
    answer = LogPage(fetch.request, None, (), ())
    return _without_requests(host.handle(Received(answer, source)))


def _open_request(host: FakeHost[Subscriber]) -> tuple[NodeId, FetchLog]:
    requests = [each for each in host.all(Send) if isinstance(each.message, FetchLog)]
    assert requests, "a backfill has begun"
    message = requests[-1].message
    assert isinstance(message, FetchLog)
    return requests[-1].to, message


def _without_requests(effects: list[Effect]) -> list[Effect]:
    return [
        each
        for each in effects
        if not isinstance(each, Backfilled)
        and not (isinstance(each, Send) and isinstance(each.message, FetchLog))
    ]
