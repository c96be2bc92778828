"""Host of a node process: the subscriber machines of all topics, over sockets and logs."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from random import Random
from time import time_ns
from typing import Final, Self, assert_never, cast

from skipring.core.effects import (
    Backfilled,
    Deliver,
    Discard,
    Drained,
    Effect,
    Evicted,
    HeldBy,
    Origin,
    PeerInSync,
    Send,
    SendSynced,
    Store,
    Unsubscribed,
)
from skipring.core.events import (
    Event,
    Flush,
    PublishManyRequested,
    PublishRequested,
    Received,
    ResendRequested,
    Shutdown,
    SubscribeRequested,
    SyncRequested,
    Tick,
)
from skipring.core.limits import shown
from skipring.core.log_messages import FetchLog, GetLogInfo, LogInfo, LogPage, Refused
from skipring.core.messages import (
    CLAIMS,
    CheckAndPublish,
    CheckHeld,
    CheckTrie,
    GetConfiguration,
    Message,
    Publications,
    PublishMany,
    PublishNew,
    RequestHandover,
    SetConfiguration,
    Unsubscribe,
)
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.core.publications import RANDOM_BITS, incarnation_at
from skipring.core.state import SubscriberState
from skipring.core.subscriber import Subscriber
from skipring.core.topics import SubscriberTopics
from skipring.errors import SkipringError, StorageError
from skipring.net.addresses import AddressBook
from skipring.net.transport import Transport
from skipring.node.arrival_tap import ArrivalTap
from skipring.node.change_log import ChangeLog
from skipring.node.chaos_server import DAMAGES, NodeChaos, PartitionableTransport, kill_process
from skipring.node.drain import Departure, Departures
from skipring.node.group_commit import GroupCommit
from skipring.node.membership import Membership
from skipring.node.publish_batch import PublishBatches
from skipring.node.publish_proxy import PublishProxy
from skipring.node.replication_wait import Replications
from skipring.node.request_server import RequestServer
from skipring.node.sender import Sender
from skipring.node.settings import NodeSettings
from skipring.node.timer import Timer
from skipring.node.topic_logs import TopicLogs
from skipring.observability.logs import RateLimitedLogger, logger
from skipring.storage.delivery_log import DeliveryLog
from skipring.storage.store import PublicationStore
from skipring.wire.codec import Envelope
from skipring.wire.framing import Frame
from skipring.wire.handshake import Hello, Role
from skipring.wire.limits import LOCATED_MAX
from skipring.wire.rpc import (
    BUSY,
    REQUEST_TYPES,
    RUNTIME_TYPES,
    Address,
    FetchArrivals,
    FetchChanges,
    FetchDeliveries,
    FetchPublications,
    FindMembers,
    GetNodeStatus,
    MemberList,
    NodeHealth,
    Publish,
    RuntimeMessage,
    WireMessage,
    is_request,
)

LATE_TICKS: Final = 2  # Guess: a node whose own timer stood still for longer reports no neighbour.

# Refused under back-pressure: messages that bring publications, and requests for much data.
_CARRIERS: Final = frozenset({PublishNew, PublishMany, Publications})
_REQUESTS: Final = frozenset(
    {CheckTrie, CheckAndPublish, CheckHeld, RequestHandover, *REQUEST_TYPES}
)

_LOG: Final = logger("node")

Deliverer = Callable[[TopicId, Deliver], None]
SyncObserver = Callable[[TopicId, PeerInSync], None]


def _ignore(_topic: TopicId, _effect: PeerInSync) -> None:
    """Ignore a confirmation: the default of a node without an application."""


class NodeHost:
    """Host of all machines of one node process; applies every effect, in order."""

    def __init__(  # noqa: PLR0913  (keyword-only, and most are optional)
        self,
        name: NodeId,
        settings: NodeSettings,
        *,
        rng: Random,
        deliver: Deliverer,
        on_in_sync: SyncObserver = _ignore,
        crash: Callable[[], None] = kill_process,
        store: PublicationStore | None = None,
        trace: DeliveryLog | None = None,
    ) -> None:
        self.name = name
        self.address: Address = ""
        self._advertised = settings.advertised
        self._tick_s = settings.tick_s
        self._last_tick_s: float | None = None
        self._deliver = deliver
        self._on_in_sync = on_in_sync
        self._rate_limited = RateLimitedLogger(_LOG)
        incarnation = incarnation_at(time_ns() // 1000, secrets.randbits(RANDOM_BITS))
        self.arrivals = ArrivalTap()
        self.durability = GroupCommit(store, self._on_durable)
        self._logs = TopicLogs(self.durability, self.arrivals, store, trace)
        self._topics = SubscriberTopics(
            name,
            rng=rng,
            config=settings.config,
            open_archive=self._logs.open,
            incarnation=incarnation,
        )
        self._changes = ChangeLog(self._topics)
        self.links: Transport = (PartitionableTransport if settings.is_chaotic else Transport)(
            Hello(node=name, address="", role=Role.NODE, incarnation=incarnation),
            AddressBook(),
            self._receive,
            rng,
            credentials=settings.credentials,
            on_unreachable=self._on_unreachable,
        )
        self.membership = Membership(name, self._topics, self.links, settings.supervisors)
        self._sender = Sender(self.links, node=name, supervisor_of=self.membership.supervisor_of)
        self._after_commit: deque[tuple[int, TopicId, Send]] = deque()
        self._departures = Departures(
            self._topics,
            self.dispatch,
            self.links.is_linked,
            self.membership.is_connected_to_supervisor,
            tick_s=settings.tick_s,
            has_disk=store is not None,
        )
        self.replications = Replications(
            self._topics, self.dispatch, self._find_members, settings.tick_s
        )
        self._requests = RequestServer(
            self._topics,
            self._logs,
            self._changes,
            self.arrivals,
            self._sender,
            dispatch=self.dispatch,
            health_of=self._health,
        )
        self.chaos = NodeChaos(
            name,
            self.links,
            self.dispatch,
            crash,
            topics=self._topics,
            logs=self._logs,
            is_enabled=settings.is_chaotic,
        )
        self._batches = PublishBatches(self._publish_now, waits=store is not None)
        self.errands = PublishProxy(
            self._topics,
            self._sender,
            self.durability,
            self.publish,
            has_disk=store is not None,
        )
        self.ticker = Timer(self._tick, settings.tick_s, rng)
        self._flusher = Timer(self._flush, settings.flush_s, rng)

    async def start(self, host: str, port: int) -> Self:
        """Listen; port 0 picks a free one."""
        self.address = await self.links.listen(host, port, self._advertised)
        for timer in (self.ticker, self._flusher):
            timer.start()
        return self

    async def close(self) -> None:
        """Stop at once, as a crash would, but commit what is stored."""
        for timer in (self.ticker, self._flusher):
            timer.stop()
        self._requests.close()
        await self.links.close()
        for topic in self._topics.names():
            self.dispatch(topic, Shutdown())
        with suppress(StorageError):  # anti-entropy repeats what is not durable
            await self.durability.wait_durable()
        await self._logs.close()

    # -- events and effects ----------------------------------------------------------------------

    def dispatch(self, topic: TopicId, event: Event) -> list[Effect]:  # noqa: C901, PLR0912  (one match)
        """Run one event and apply its effects, in order; return them."""
        effects = self._changes.handle(topic, event)
        for effect in effects:
            match effect:
                case Send():
                    self._sender.send(topic, effect, event)
                case Deliver():
                    self._logs.record(topic, effect)
                    self._deliver(topic, effect)
                case Store():
                    self._logs.append(topic, effect)
                case Discard():
                    self._logs.quarantine(topic, effect.offset)
                case SendSynced():
                    self._send_after_commit(topic, Send(effect.to, effect.message))
                case PeerInSync():
                    self._on_in_sync(topic, effect)
                case HeldBy():
                    self._departures.on_held(topic, effect)
                    self.replications.on_held(topic, effect)
                case Drained():
                    self._departures.on_drained(topic, effect)
                case Unsubscribed():
                    self._on_unsubscribed(topic)
                case Backfilled():
                    self.durability.request_commit()
                case Evicted():
                    raise AssertionError("only a supervisor evicts")
                case _:
                    assert_never(effect)
        return effects

    def _send_after_commit(self, topic: TopicId, send: Send) -> None:
        """Queue a message until everything stored so far is on disk, and commit early for it."""
        self._after_commit.append((self.durability.next_commit, topic, send))
        self.durability.commit_early()

    def _on_durable(self, commit: int) -> None:
        """Send the messages that waited for a commit, or for an earlier one."""
        while self._after_commit and self._after_commit[0][0] <= commit:
            _, topic, send = self._after_commit.popleft()
            self._sender.send_message(topic, send.to, send.message)

    def _on_unsubscribed(self, topic: TopicId) -> None:
        self._logs.forget(topic)
        self._departures.on_unsubscribed(topic)

    # -- timers ----------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Run the periodic actions of every topic and of the process."""
        now_s = asyncio.get_running_loop().time()
        last_s, self._last_tick_s = self._last_tick_s, now_s
        is_late = last_s is None or now_s - last_s > LATE_TICKS * self._tick_s
        self._changes.on_tick()
        for topic in self._topics.names():
            self.dispatch(topic, Tick(is_late, self.durability.is_backpressured))
        for topic in self.membership.on_tick():
            self._sender.send_message(topic, SUPERVISOR, GetConfiguration(self.name))
        self.links.sweep()
        self.arrivals.on_tick()
        self._logs.on_tick(self.ticker.calls)
        self._on_durable(self.durability.durable)  # a commit may have included later data

    def _flush(self) -> None:
        """Run the deferred work of every topic that has some."""
        for topic in self._topics.to_flush():
            self.dispatch(topic, Flush())

    # -- messages --------------------------------------------------------------------------------

    def _receive(self, sender: NodeId, envelope: Envelope[WireMessage], frame: Frame) -> None:
        """Handle a message of a peer, unless the peer may not send it now."""
        topic, message = envelope.topic, envelope.message
        if self.membership.is_supervisor(sender):
            if not self.membership.is_obeyed(sender, topic, message):
                return
            sender = SUPERVISOR
        elif (why := self._why_refused(sender, message)) is not None:
            self.links.counts[why] += 1
            if is_request(message):
                self._sender.send_message(topic, sender, Refused(message.request, BUSY))
            return
        claim = CLAIMS.get(type(message))
        if claim is not None and not claim(message, sender):  # decision 0045
            self.links.counts["speaks for another"] += 1
            return
        if type(message) in RUNTIME_TYPES:
            self._on_request(sender, topic, cast("RuntimeMessage", message))
            return
        event = Received(cast("Message", message), sender, frame)
        if self.arrivals.is_watched:
            with self.arrivals.handling(topic, sender, message):
                self.dispatch(topic, event)
        else:
            self.dispatch(topic, event)
        if sender == SUPERVISOR:
            self.membership.on_message(topic, message)

    def _why_refused(self, sender: NodeId, message: WireMessage) -> str | None:
        """Return the reason why a message of this type is dropped now, or None."""
        kind = type(message)
        if kind in _CARRIERS:
            if self.durability.is_backpressured:
                return "store full"
        elif kind in _REQUESTS:
            if self.links.is_behind(sender):
                return "partner behind"  # it must first read the responses that it has
        elif kind is SetConfiguration:
            return "not the supervisor"
        return None

    def _on_request(self, sender: NodeId, topic: TopicId, message: RuntimeMessage) -> None:
        match message:
            case Publish():
                self.errands.begin(sender, topic, message)
            case GetNodeStatus() | GetLogInfo():
                self._requests.send_status(sender, topic, message)
            case FetchPublications() | FetchChanges() | FetchDeliveries() | FetchArrivals():
                self._requests.send_page(sender, topic, message)
            case Refused() if sender == SUPERVISOR:
                self.membership.on_message(topic, message)
            case FetchLog() | LogInfo() | LogPage() | Refused():
                throttled = self.durability.is_backpressured
                self.dispatch(topic, Received(message, sender, throttled=throttled))
            case MemberList(members=members) if sender == SUPERVISOR:
                self.links.book.learn(members)
                self.replications.on_members(topic, members)
            case _ if isinstance(message, DAMAGES):
                self._sender.send_message(topic, sender, self.chaos.handle(topic, message))
            case _:
                pass  # a response without a request

    def _on_unreachable(self, name: NodeId) -> None:
        self.membership.on_unreachable(name)

    # -- requests of the application -------------------------------------------------------------

    def subscribe(self, topic: TopicId) -> None:
        """Become a member of a topic."""
        self.dispatch(topic, SubscribeRequested())

    async def drain(
        self, topic: TopicId, timeout_s: float, *, waits_alone: bool = False
    ) -> Departure:
        """Hand over the publications of a topic to a remaining member, before leaving it.

        ``waits_alone``: with own publications and without a disk, wait for a neighbour.
        """
        machine = self._topics.machine(topic)
        is_first = machine is not None and machine.replication.is_first_backfill
        return await self._departures.drain(
            topic, timeout_s, waits_alone=waits_alone, only_own=is_first
        )

    def not_handed_over(self, topic: TopicId) -> int:
        """Return an upper bound of the publications that a drain has not handed over yet."""
        return self._departures.not_handed_over(topic)

    async def unsubscribe(self, topic: TopicId, timeout_s: float) -> bool:
        """Leave a topic; return True if its supervisor confirms that in time."""
        return await self._departures.unsubscribe(topic, timeout_s)

    async def publish(self, topic: TopicId, *requests: PublishRequested) -> list[bytes]:
        """Publish; return the ids once they are on the disk of this node.

        Neighbours receive the publications at once. Raise StorageError with their ids if the
        commit fails: ``resend`` sends the same publications again. Raise it without ids, and
        publish nothing, if an earlier commit has failed and fails again.
        """
        await self.durability.raise_if_failing()
        ids = await self._batches.publish(topic, requests)
        try:
            await self.durability.wait_durable()
        except StorageError as error:
            raise type(error)(str(error), ids=tuple(ids)) from error
        self._report_incarnations(topic)
        return ids

    def _publish_now(self, topic: TopicId, requests: Sequence[PublishRequested]) -> list[bytes]:
        if topic not in self._topics:
            raise SkipringError(f"not subscribed to {shown(topic)}: it was left meanwhile")
        effects = self.dispatch(topic, PublishManyRequested(tuple(requests)))
        deliveries = (effect for effect in effects if isinstance(effect, Deliver))
        ids = [each.id for deliver in deliveries for each in deliver.publications]
        self._departures.on_published(topic, ids)
        return ids

    async def resend(self, topic: TopicId, ids: Sequence[bytes]) -> None:
        """Commit and broadcast publications again whose commit has failed before."""
        if topic not in self._topics:
            raise SkipringError(f"not subscribed to {shown(topic)}: it was left meanwhile")
        self.dispatch(topic, ResendRequested(tuple(ids)))
        try:
            await self.durability.wait_durable()
        except StorageError as error:
            raise type(error)(str(error), ids=tuple(ids)) from error

    def _report_incarnations(self, topic: TopicId) -> None:
        machine = self._topics.machine(topic)
        if machine is not None and machine.replica.own.ahead:
            self._rate_limited.warn(
                "incarnations_ahead",
                reason="numbers of this node's name are ahead of the clock and are ignored",
                topic=topic,
                count=machine.replica.own.ahead,
            )

    def _find_members(self, topic: TopicId) -> None:
        self._sender.send_message(topic, SUPERVISOR, FindMembers(0, LOCATED_MAX))

    def confirm(self, topic: TopicId) -> None:
        """Ask the ring neighbours in a topic whether they are in sync (T19)."""
        self.dispatch(topic, SyncRequested())

    def set_supervisors(self, supervisors: Sequence[Address]) -> None:
        """Replace the list of supervisors; move topics that belong to another one now."""
        moved = self.membership.moved_to(supervisors)
        for topic in moved:
            self._sender.send_message(topic, SUPERVISOR, Unsubscribe(self.name))
        self.membership.set_supervisors(supervisors)
        for topic in moved:
            self._sender.send_message(topic, SUPERVISOR, GetConfiguration(self.name))

    # -- queries ---------------------------------------------------------------------------------

    def _health(self, topic: TopicId, machine: Subscriber) -> NodeHealth:
        neighbours, error = machine.ring_neighbours(), self.durability.error
        return NodeHealth(
            time=max(time_ns() // 1000, 0),
            silent={node: ticks for node, ticks in machine.unheard.items() if ticks > 0},
            unlinked=tuple(node for node in neighbours if not self.links.is_linked(node)),
            not_ready=self.incompleteness(topic) or "",
            ahead=machine.replica.own.ahead,
            quarantined=self.put_aside,
            disk_error=shown(str(error)) if error is not None else "",
            clones=self.links.clones,
        )

    @property
    def deliveries(self) -> Counter[tuple[TopicId, Origin]]:
        """Return the number of delivered publications by topic and origin."""
        return self._logs.deliveries

    @property
    def put_aside(self) -> int:
        """Return the number of quarantined records."""
        return self._logs.quarantined

    @property
    def refusals(self) -> Mapping[TopicId, str]:
        """Return the reasons of supervisors that refuse a join."""
        return self.membership.refusals

    def incompleteness(self, topic: TopicId) -> str | None:
        """Return why a member may lack publications that others have, or None."""
        machine = self._topics.machine(topic)
        if machine is None or machine.replication.is_complete:
            return None
        if machine.replication.is_backfilling:
            return "the backfill is in progress"
        return "no neighbour has confirmed yet that this node has everything"

    @property
    def topics(self) -> list[TopicId]:
        """Return the subscribed topics."""
        return self._topics.names()

    def supervisor_of(self, topic: TopicId) -> Address | None:
        """Return the address of a topic's supervisor; None without supervisors."""
        return self.membership.supervisor_of(topic)

    def machine(self, topic: TopicId) -> Subscriber | None:
        """Return the machine of a subscribed topic, for queries only."""
        return self._topics.machine(topic)

    def states(self) -> Mapping[TopicId, SubscriberState]:
        """Return the machines of all topics as values."""
        return self._topics.states()
