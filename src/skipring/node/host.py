"""Host of a node process: the subscriber machines of all topics, over sockets and logs."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
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
    Tick,
)
from skipring.core.limits import shown
from skipring.core.log_messages import FetchLog, LogInfo, LogPage, Refused
from skipring.core.messages import CLAIMS, GetConfiguration, Message, SetConfiguration
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.core.publications import RANDOM_BITS, incarnation_at
from skipring.core.subscriber import Subscriber
from skipring.core.topics import SubscriberTopics
from skipring.errors import SkipringError, StorageError
from skipring.net.addresses import AddressBook
from skipring.net.event_loop import Timer
from skipring.net.transport import SUPERVISORS, Transport
from skipring.node.arrival_tap import ArrivalTap
from skipring.node.change_log import CAUSES, ChangeLog
from skipring.node.chaos_server import NodeChaos, PartitionableTransport, kill_process
from skipring.node.drain import OWN_MAX, Departures
from skipring.node.group_commit import DeliveryLogFlusher, GroupCommit, TopicLogs
from skipring.node.membership import CARRIERS, REQUESTS, Membership
from skipring.node.publisher import PublishProxy, Replications
from skipring.node.sender import Sender
from skipring.node.settings import NodeSettings
from skipring.node.status_server import RequestServer, incompleteness, node_health
from skipring.storage.delivery_log import DeliveryLog
from skipring.storage.store import PublicationStore
from skipring.wire.codec import Envelope
from skipring.wire.framing import Frame
from skipring.wire.handshake import Hello, Role
from skipring.wire.limits import LOCATED_MAX
from skipring.wire.rpc import (
    BUSY,
    RUNTIME_TYPES,
    Address,
    FindMembers,
    MemberList,
    NodeHealth,
    RuntimeMessage,
    WireMessage,
    is_request,
)

LATE_TICKS: Final = 2  # Guess: a node whose own timer stood still for longer reports no neighbour.
DELIVERY_LOG_TICKS: Final = 8  # Guess: deliveries are telemetry, and a write takes 0.3 ms.

Deliverer = Callable[[Deliver], None]
SyncObserver = Callable[[PeerInSync], None]
Batch = list[tuple[Sequence[PublishRequested], asyncio.Future[list[bytes]]]]


def _ignore(_: PeerInSync) -> None:
    """Ignore a confirmation: the default callback."""


class NodeHost:
    """Host of all machines of one node process; applies every effect, in order."""

    def __init__(
        self,
        name: NodeId,
        settings: NodeSettings,
        *,
        rng: Random,
        crash: Callable[[], None] = kill_process,
        store: PublicationStore | None = None,
        trace: DeliveryLog | None = None,
    ) -> None:
        self.name = name
        self.address: Address = ""
        self.deliveries: Counter[tuple[TopicId, Origin]] = Counter()  # publications
        self.quarantined = 0  # corrupt records
        self.arrivals = ArrivalTap()
        self.durability = GroupCommit(store)
        self._settings = settings
        self._has_disk = store is not None
        self._last_tick_s: float | None = None
        self._receivers: dict[TopicId, tuple[Deliverer, SyncObserver]] = {}  # applications
        self._batches: dict[TopicId, Batch] = {}  # publish calls of this loop iteration
        self.logs = TopicLogs(store, trace)
        self._trace_writes = DeliveryLogFlusher(self.logs.trace)
        incarnation = incarnation_at(time_ns() // 1000, secrets.randbits(RANDOM_BITS))
        self._topics = SubscriberTopics(
            name,
            rng=rng,
            config=settings.config,
            open_log=self.logs.open,
            incarnation=incarnation,
        )
        self.machine, self.states = self._topics.machine, self._topics.states  # for queries
        self._changes = ChangeLog(self._topics)
        self._connect(incarnation, rng)
        self._serve(crash)
        self.ticker = Timer(self._tick, settings.tick_s, rng)
        self._flusher = Timer(self._flush, settings.flush_s, rng)

    def _connect(self, incarnation: int, rng: Random) -> None:
        """Create the parts that reach other processes."""
        settings = self._settings
        kind = PartitionableTransport if settings.is_chaotic else Transport
        self.links: Transport = kind(
            Hello(node=self.name, address="", role=Role.NODE, incarnation=incarnation),
            AddressBook(),
            self._receive,
            rng,
            credentials=settings.credentials,
            on_unreachable=self._on_unreachable,
        )
        members = Membership(self.name, self._topics, self.links, settings.supervisors)
        self.membership, self.refusals = members, members.refusals
        self.supervisor_of = members.supervisor_of
        self._sender = Sender(self.links, node=self.name, supervisor_of=self.supervisor_of)

    def _serve(self, crash: Callable[[], None]) -> None:
        """Create the parts that answer requests and dispatch events for them."""
        topics, dispatch, tick_s = self._topics, self.dispatch, self._settings.tick_s
        self.departures = Departures(
            topics,
            dispatch,
            self.links.is_linked,
            self.membership.is_connected_to_supervisor,
            tick_s=tick_s,
            has_disk=self._has_disk,
        )
        self.drain, self.unsubscribe = self.departures.drain, self.departures.unsubscribe
        self.replications = Replications(topics, dispatch, self._find_members, tick_s)
        self.errands = PublishProxy(
            topics, self._sender, self.durability, self.publish, has_disk=self._has_disk
        )
        self.chaos = NodeChaos(
            self.name,
            self.links,
            dispatch,
            crash,
            topics=topics,
            logs=self.logs,
            is_enabled=self._settings.is_chaotic,
        )
        self._requests = RequestServer(
            topics,
            self.logs.trace,
            self._changes,
            self.arrivals,
            self._sender,
            dispatch=dispatch,
            health_of=self._health,
            errands=self.errands,
            chaos=self.chaos,
        )

    async def start(self, host: str, port: int) -> Self:
        """Listen; port 0 picks a free one."""
        self.address = await self.links.listen(host, port, self._settings.advertised)
        for timer in (self.ticker, self._flusher):
            timer.start()
        return self

    async def close(self) -> None:
        """Stop at once, as a crash would, but commit the stored publications."""
        for timer in (self.ticker, self._flusher):
            timer.stop()
        self._requests.close()
        await self.links.close()
        for topic in self._topics.names():
            self.dispatch(topic, Shutdown())
        with suppress(StorageError):  # anti-entropy fetches lost publications again
            await self.durability.wait_durable()
        await self._trace_writes.close()

    # -- events and effects ----------------------------------------------------------------------

    def dispatch(self, topic: TopicId, event: Event) -> list[Effect]:  # noqa: C901, PLR0912  (one match)
        """Run one event and apply its effects, in order; return them."""
        kind = type(event.message) if type(event) is Received else type(event)
        machines = self._changes if kind in CAUSES else self._topics
        effects = machines.handle(topic, event)
        for effect in effects:
            match effect:
                case Send():
                    self._sender.send(topic, effect, event)
                case Deliver():
                    self._on_deliver(topic, effect)
                case Store():
                    log = self.logs.by_topic[topic]
                    log.write(effect.offset, *effect.publications, encoded=effect.encoded)
                    self.durability.on_written(effect.size_bytes)
                case Discard():
                    self.quarantined += 1
                    self.logs.discard(topic, (effect.offset,))
                case SendSynced():
                    send = partial(self._sender.send_message, topic, effect.to, effect.message)
                    self.durability.call_when_durable(send)
                case PeerInSync():
                    if topic in self._receivers:
                        self._receivers[topic][1](effect)
                case HeldBy():
                    self.departures.on_held(topic, effect)
                    self.replications.on_held(topic, effect)
                case Drained():
                    self.departures.on_drained(topic, effect)
                case Unsubscribed():
                    self._on_unsubscribed(topic)
                case Backfilled():
                    self.durability.request_commit()
                case Evicted():
                    raise AssertionError("only a supervisor evicts")
                case _:
                    assert_never(effect)
        return effects

    def _on_deliver(self, topic: TopicId, delivery: Deliver) -> None:
        """Record a delivery and pass it to the application."""
        count, origin = len(delivery.publications), delivery.origin
        self.deliveries[topic, origin] += count
        now_us = max(time_ns() // 1000, 0)
        self.logs.trace.record(topic, delivery.offset, now_us, delivery.hops, origin, count)
        if self.arrivals.watched:
            self.arrivals.on_delivered(topic, delivery)
        if topic in self._receivers:
            self._receivers[topic][0](delivery)

    def _on_unsubscribed(self, topic: TopicId) -> None:
        self.logs.forget(topic)
        for origin in Origin:
            self.deliveries.pop((topic, origin), None)
        self.departures.on_unsubscribed(topic)

    # -- timers ----------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Run the periodic actions of every topic and of the process."""
        now_s = asyncio.get_running_loop().time()
        last_s, self._last_tick_s = self._last_tick_s, now_s
        is_late = last_s is None or now_s - last_s > LATE_TICKS * self._settings.tick_s
        self._changes.on_tick()
        for topic in self._topics.names():
            self.dispatch(topic, Tick(is_late, self.durability.is_backpressured))
        for topic in self.membership.on_tick():
            self._sender.send_message(topic, SUPERVISOR, GetConfiguration(self.name))
        self.links.sweep()
        if self.arrivals.watched:
            self.arrivals.on_tick()
        self.durability.on_tick()
        if self.ticker.calls % DELIVERY_LOG_TICKS == 0:
            self._trace_writes.request_write()

    def _flush(self) -> None:
        """Run the deferred work of every topic."""
        for topic in self._topics.to_flush():
            self.dispatch(topic, Flush())

    # -- messages --------------------------------------------------------------------------------

    def _receive(self, sender: NodeId, envelope: Envelope[WireMessage], frame: Frame) -> None:
        """Handle a message of a peer, unless the peer may not send it now."""
        topic, message = envelope.topic, envelope.message
        kind = type(message)
        if sender.startswith(SUPERVISORS):
            if not self.membership.is_obeyed(sender, topic, message):
                return
            sender = SUPERVISOR
        elif (why := self._why_refused(sender, kind)) is not None:
            self.links.counts[why] += 1
            if is_request(message):
                self._sender.send_message(topic, sender, Refused(message.request, BUSY))
            return
        claim = CLAIMS.get(kind)
        if claim is not None and not claim(message, sender):  # decision 0045
            self.links.counts["sender mismatch"] += 1
            return
        if kind in RUNTIME_TYPES:
            self._on_runtime_message(sender, topic, cast("RuntimeMessage", message))
            return
        event = Received(cast("Message", message), sender, frame)
        if self.arrivals.watched:
            with self.arrivals.handling(topic, sender, message):
                self.dispatch(topic, event)
        else:
            self.dispatch(topic, event)
        if sender == SUPERVISOR:
            self.membership.on_message(topic, message)

    def _why_refused(self, sender: NodeId, kind: type[WireMessage]) -> str | None:
        """Return the reason why a message of this type is dropped now, or None."""
        if kind in CARRIERS:
            if self.durability.is_backpressured:
                return "store full"
        elif kind in REQUESTS:
            if self.links.is_behind(sender):
                return "unread responses"  # it must first read the responses that it has
        elif kind is SetConfiguration:
            return "not the supervisor"
        return None

    def _on_runtime_message(self, sender: NodeId, topic: TopicId, message: RuntimeMessage) -> None:
        match message:
            case Refused() if sender == SUPERVISOR:
                self.membership.on_message(topic, message)
            case FetchLog() | LogInfo() | LogPage() | Refused():
                throttled = self.durability.is_backpressured
                self.dispatch(topic, Received(message, sender, throttled=throttled))
            case MemberList(members=members):
                if sender == SUPERVISOR:
                    self.links.book.learn(members)
                    self.replications.on_members(topic, members)
            case _:
                self._requests.handle(sender, topic, message)

    def _on_unreachable(self, name: NodeId) -> None:
        self.membership.on_unreachable(name)

    # -- requests of the application -------------------------------------------------------------

    def subscribe(self, topic: TopicId) -> None:
        """Become a member of a topic."""
        self.dispatch(topic, SubscribeRequested())

    def attach(
        self, topic: TopicId, deliver: Deliverer, on_in_sync: SyncObserver = _ignore
    ) -> None:
        """Pass the deliveries and confirmations of a topic to the application from now on."""
        self._receivers[topic] = deliver, on_in_sync

    def detach(self, topic: TopicId) -> None:
        """Stop passing deliveries and confirmations of a topic to the application."""
        self._receivers.pop(topic, None)

    async def publish(self, topic: TopicId, *requests: PublishRequested) -> list[bytes]:
        """Publish; return the ids once they are on the disk of this node.

        Neighbours receive the publications at once. Raise StorageError with their ids if the
        commit fails: ``resend`` sends the same publications again. Raise it without ids, and
        publish nothing, if an earlier commit has failed and fails again.
        """
        if self.durability.error is not None:
            await self.durability.wait_durable()
        ids = await self._published(topic, requests)
        try:
            await self.durability.wait_durable()
        except StorageError as error:
            raise type(error)(str(error), ids=tuple(ids)) from error
        return ids

    async def _published(self, topic: TopicId, requests: Sequence[PublishRequested]) -> list[bytes]:
        """Publish with the other calls of this loop iteration; return the ids of ``requests``.

        Without a disk a call does not wait: it would cost more than it saves. Requests that name
        another publisher are published alone: a duplicate gets no id.
        """
        if not self._has_disk or any(each.publisher is not None for each in requests):
            return self._publish_now(topic, requests)
        loop = asyncio.get_running_loop()
        batch = self._batches.get(topic)
        if batch is None:
            batch = self._batches[topic] = []
            loop.call_soon(self._publish_batch, topic)
        ids: asyncio.Future[list[bytes]] = loop.create_future()
        batch.append((requests, ids))
        return await ids

    def _publish_batch(self, topic: TopicId) -> None:
        """Publish the requests of one loop iteration; a caller may be cancelled meanwhile."""
        batch = self._batches.pop(topic)
        try:
            ids = self._publish_now(topic, [each for requests, _ in batch for each in requests])
        except Exception as error:  # noqa: BLE001  (each caller gets it)
            for _, result in batch:
                if not result.done():
                    result.set_exception(error)
            return
        start = 0
        for requests, result in batch:
            end = start + len(requests)
            if not result.done():
                result.set_result(ids[start:end])
            start = end

    def _publish_now(self, topic: TopicId, requests: Sequence[PublishRequested]) -> list[bytes]:
        if topic not in self.logs.by_topic:
            raise SkipringError(f"not subscribed to {shown(topic)}: it was left during the call")
        effects = self.dispatch(topic, PublishManyRequested(tuple(requests)))
        deliveries = [effect for effect in effects if type(effect) is Deliver]
        ids = [each.id for deliver in deliveries for each in deliver.publications]
        own = self.departures.own_ids[topic]
        if len(own) < OWN_MAX:
            own.update(dict.fromkeys(ids))
        self.departures.own_counts[topic] += len(ids)
        return ids

    async def resend(self, topic: TopicId, ids: Sequence[bytes]) -> None:
        """Commit and broadcast again the publications whose commit failed."""
        if topic not in self.logs.by_topic:
            raise SkipringError(f"not subscribed to {shown(topic)}: it was left during the call")
        self.dispatch(topic, ResendRequested(tuple(ids)))
        try:
            await self.durability.wait_durable()
        except StorageError as error:
            raise type(error)(str(error), ids=tuple(ids)) from error

    def _find_members(self, topic: TopicId) -> None:
        self._sender.send_message(topic, SUPERVISOR, FindMembers(0, LOCATED_MAX))

    def _health(self, machine: Subscriber) -> NodeHealth:
        return node_health(machine, self.links, self.durability, self.quarantined)

    def incompleteness(self, topic: TopicId) -> str | None:
        """Return why a member may lack publications that others have, or None."""
        machine = self._topics.machine(topic)
        return incompleteness(machine) if machine is not None else None

    @property
    def topics(self) -> list[TopicId]:
        """Return the subscribed topics."""
        return self._topics.names()
