"""Host of a node process: the subscriber machines of all topics, over sockets and logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from time import time_ns
from typing import Any, Final, Self, assert_never, cast

from msgspec.structs import replace

from skipring.core.effects import (
    Backfilled,
    Deliver,
    Discard,
    Drained,
    Drop,
    Effect,
    Evicted,
    HeldBy,
    Origin,
    PeerInSync,
    Rejected,
    SaveTerms,
    Send,
    SendSynced,
    Store,
    Unsubscribed,
)
from skipring.core.events import Event, Flush, Received, RoutineReceived, SubscribeRequested, Tick
from skipring.core.log_messages import FetchLog, LogInfo, LogPage, Refused
from skipring.core.messages import (
    CARRIERS,
    CLAIMS,
    ROUTINE_TYPES,
    GetConfiguration,
    SetConfiguration,
)
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.core.subscriber import Subscriber
from skipring.core.topics import SubscriberTopics
from skipring.errors import StorageError
from skipring.net.addresses import AddressBook
from skipring.net.event_loop import Timer
from skipring.net.transport import SUPERVISORS, Transport
from skipring.node.arrival_tap import ArrivalTap
from skipring.node.change_log import CAUSES, ChangeLog
from skipring.node.chaos_server import NodeChaos, PartitionableTransport, kill_process
from skipring.node.drain import Departures
from skipring.node.group_commit import DeliveryLogFlusher, GroupCommit, TopicLogs
from skipring.node.membership import REQUESTS, Incarnations, Membership
from skipring.node.publisher import Publisher, PublishProxy, Replications
from skipring.node.sender import Sender
from skipring.node.settings import NodeSettings
from skipring.node.status_server import RequestServer, incompleteness, node_health, topic_terms
from skipring.storage.delivery_log import DeliveryLog
from skipring.storage.store import LogStore
from skipring.wire.bundle import SMALL_TYPES, TopicMessages
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

LATE_TICKS: Final = 2  # Guess: after a longer pause of its own timer a node reports no neighbour.
TICK_SLICES: Final = 16  # Guess: with 1,000 topics a group takes 2 ms of the loop.
TOPICS_AT_ONCE: Final = 16  # Guess: fewer topics tick together, and scrub at a tick.
# Guess: slices that index a large log after a start take 8 ms each; the loop serves in between.
URGENT_FLUSHES: Final = 50  # in one flush interval
_NEVER_DEFERRED: Final = frozenset({RoutineReceived, *SMALL_TYPES})  # need no Flush
DELIVERY_LOG_TICKS: Final = 8  # Guess: deliveries are telemetry, and a write takes 0.3 ms.

Deliverer = Callable[[Deliver], None]
SyncObserver = Callable[[PeerInSync], None]


class NodeHost:
    """Host of all machines of one node process; applies every effect, in order."""

    def __init__(
        self,
        name: NodeId,
        settings: NodeSettings,
        *,
        rng: Random,
        crash: Callable[[], None] = kill_process,
        store: LogStore | None = None,
        trace: DeliveryLog | None = None,
    ) -> None:
        self.name = name
        self.address: Address = ""
        self._discarded = 0  # records of corrupt batches
        self._overlapping = 0  # batches with numbers of this process that arrived from others
        self.arrivals = ArrivalTap()
        self.durability = GroupCommit(store)
        self._settings = settings
        self._has_disk = store is not None
        self._last_tick_s: float | None = None
        self._unticked: list[TopicId] = []  # topics whose tick follows in this interval
        self._to_scrub: frozenset[TopicId] = frozenset()  # topics whose turn it is
        self._slice_timer: asyncio.TimerHandle | None = None
        self._to_flush: dict[TopicId, None] = {}  # topics that wait for a Flush
        self._flush_timer: asyncio.TimerHandle | None = None  # None while no topic waits
        self._receivers: dict[TopicId, tuple[Deliverer, SyncObserver]] = {}  # applications
        self.logs = TopicLogs(store, trace)
        self._trace, self._record = self.logs.trace, self.logs.trace.record
        self._trace_writes = DeliveryLogFlusher(self._trace)
        self._incarnations = Incarnations()
        self._topics = SubscriberTopics(
            name, rng=rng, config=settings.protocol, open_log=self.logs.open
        )
        self._machines = self._topics.by_topic
        self.machine, self.states = self._topics.machine, self._topics.states  # for queries
        self._changes = ChangeLog(self._topics)
        self._connect(rng)
        self._serve(crash)
        self.ticker = Timer(self._tick, settings.tick_s, rng)

    def _connect(self, rng: Random) -> None:
        """Create the parts that reach other processes."""
        settings = self._settings
        kind = PartitionableTransport if settings.is_chaotic else Transport
        own = self._incarnations.issue()
        self.links: Transport = kind(
            Hello(node=self.name, address="", role=Role.NODE, incarnation=own),
            AddressBook(),
            self._receive,
            rng,
            credentials=settings.credentials,
            on_unreachable=lambda peer: self.membership.on_unreachable(peer),  # noqa: PLW0108  (made later)
            receive_group=self._receive_group,
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
        question = FindMembers(0, LOCATED_MAX)
        find = partial(self._sender.send_message, to=SUPERVISOR, message=question)
        self.replications = Replications(topics, dispatch, find, tick_s)
        own = Publisher(dispatch, self.durability, self.departures, self.logs)
        self.publish, self.submit, self.resend = own.publish, own.submit, own.resend
        disk = self._has_disk
        self.publish_proxy = PublishProxy(topics, self._sender, self.durability, own, has_disk=disk)
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
            publish_proxy=self.publish_proxy,
            chaos=self.chaos,
        )

    async def start(self, host: str, port: int) -> Self:
        """Listen; port 0 picks a free one."""
        self.address = await self.links.listen(host, port, self._settings.advertised)
        self.ticker.start()
        return self

    async def close(self) -> None:
        """Stop at once, as a crash would, but commit the stored publications."""
        self.ticker.stop()
        self._requests.close()
        await self.links.close()
        for timer in filter(None, (self._flush_timer, self._slice_timer)):  # they start last
            timer.cancel()
        with suppress(StorageError):  # anti-entropy fetches lost publications again
            await self.durability.wait_durable()
        await self._trace_writes.close()

    # -- events and effects ----------------------------------------------------------------------

    def dispatch(self, topic: TopicId, event: Event) -> list[Effect]:  # noqa: C901, PLR0912  (one match)
        """Run one event and apply its effects, in order; return them."""
        effects = self._handle(topic, event)
        for effect in effects:
            match effect:
                case Send():
                    self._sender.send(topic, effect, event)
                case Deliver():
                    self._on_deliver(topic, effect)
                case Store():
                    log = self.logs.by_topic[topic]
                    for batch in effect.batches:
                        log.append(batch)
                    self.durability.on_written(effect.size_bytes)
                case Rejected():
                    self.links.counts["invalid batch"] += effect.count
                case Discard():
                    self._discarded += self.logs.discard(topic, effect.offset)
                case Drop() | SaveTerms():
                    self.logs.drop(topic, effect)
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

    def _handle(self, topic: TopicId, event: Event) -> list[Effect]:
        """Run one event; record a change of the node's place, and schedule a Flush if needed."""
        kind = type(event.message) if type(event) is Received else type(event)
        machine = self._machines.get(topic)
        if machine is None or (kind in CAUSES and not machine.knows(event)):
            effects = self._changes.handle(topic, event)
            machine = self._machines.get(topic)
        else:
            effects = machine.handle(event)
        may_wait = kind not in _NEVER_DEFERRED and topic not in self._to_flush
        if may_wait and machine is not None and machine.has_to_flush:
            self._flush_later(topic, machine)
        return effects

    def _on_deliver(self, topic: TopicId, delivery: Deliver) -> None:
        """Record a delivery and pass it to the application."""
        offset, hops, origin = delivery.offset, delivery.hops, delivery.origin
        self._record((topic, offset, time_ns() // 1000, hops, origin, delivery.end - offset))
        if origin is not Origin.OWN:
            for batch in delivery.batches:
                if batch.publisher == self.name:
                    self._overlapping += self._machines[topic].replica.overlaps(batch)
        if self.arrivals.watched:
            self.arrivals.on_delivered(topic, delivery)
        if (receiver := self._receivers.get(topic)) is not None:
            receiver[0](delivery)

    def _on_unsubscribed(self, topic: TopicId) -> None:
        self.logs.forget(topic)
        self.departures.on_unsubscribed(topic)

    # -- timers ----------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Run the periodic actions of every topic and of the process."""
        now_s = asyncio.get_running_loop().time()
        last_s, self._last_tick_s = self._last_tick_s, now_s
        is_late = last_s is None or now_s - last_s > LATE_TICKS * self._settings.tick_s
        self._changes.on_tick()
        if self._slice_timer is not None:
            self._slice_timer.cancel()
        self._tick_topics(self._unticked, len(self._unticked), is_late=is_late)
        names, turns = list(self._machines), 1 + len(self._machines) // TOPICS_AT_ONCE
        self._to_scrub = frozenset(names[self.ticker.calls % turns :: turns])
        self._tick_topics(names, max(TOPICS_AT_ONCE, len(names) // TICK_SLICES), is_late=is_late)
        for topic in self.membership.on_tick():
            self._sender.send_message(topic, SUPERVISOR, GetConfiguration(self.name))
        self.links.sweep()
        if self.arrivals.watched:
            self.arrivals.on_tick()
        self.durability.on_tick()
        if self._trace.unpacked:
            self._trace.pack()
        if self.ticker.calls % DELIVERY_LOG_TICKS == 0:
            self._trace_writes.request_write()

    def _tick_topics(self, topics: list[TopicId], count: int, *, is_late: bool) -> None:
        """Tick the first topics, and the others in groups that are spread over the interval.

        The messages of a group to one peer share a write.
        """
        is_throttled, to_scrub = self.durability.is_backpressured, self._to_scrub
        times = self._settings.clocks()
        ticks = [Tick(is_late, is_throttled, scrubs, *times) for scrubs in (False, True)]
        for topic in topics[:count]:
            if topic in self._machines:  # it may have been left
                self.dispatch(topic, ticks[topic in to_scrub])
        self._unticked, self._slice_timer = topics[count:], None
        if self._unticked:
            delay_s = self._settings.tick_s / (TICK_SLICES + 2)  # the timer has a jitter of 10 %
            tick = partial(self._tick_topics, self._unticked, count, is_late=is_late)
            self._slice_timer = asyncio.get_running_loop().call_later(delay_s, tick)

    def _flush(self) -> None:
        """Run the deferred work of the topics that have some."""
        topics, self._to_flush, self._flush_timer = self._to_flush, {}, None
        for topic in topics:
            machine = self._machines.get(topic)
            if machine is not None and machine.has_to_flush:
                self.dispatch(topic, Flush())
        self._trace.pack()

    def _flush_later(self, topic: TopicId, machine: Subscriber) -> None:
        """Flush a topic soon, one with slices of work sooner; one timer serves all topics."""
        self._to_flush[topic] = None
        is_urgent = machine.replica.has_slices
        if self._flush_timer is not None and is_urgent:  # another topic may have a long delay
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._flush_timer is None:
            delay_s = self._settings.flush_s / (URGENT_FLUSHES if is_urgent else 1)
            self._flush_timer = asyncio.get_running_loop().call_later(delay_s, self._flush)

    # -- messages --------------------------------------------------------------------------------

    def _receive(self, sender: NodeId, envelope: Envelope[WireMessage], frame: Frame) -> None:
        """Handle a message of a peer, unless the peer may not send it now."""
        topic, message = envelope.topic, envelope.message
        kind = type(message)
        if sender.startswith(SUPERVISORS):
            if not self.membership.is_obeyed(sender, topic, message):
                return
            sender = SUPERVISOR
        elif self.durability.is_backpressured or kind not in CARRIERS:
            why = self._why_refused(sender, kind)
            if why is not None:
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
        inner: Any = message
        is_routine = kind in ROUTINE_TYPES
        event = RoutineReceived((inner,), sender) if is_routine else Received(inner, sender, frame)
        if self.arrivals.watched:
            with self.arrivals.handling(topic, sender, message):
                self.dispatch(topic, event)
        else:
            self.dispatch(topic, event)
        if sender == SUPERVISOR:
            self.membership.on_message(topic, message)

    def _receive_group(self, sender: NodeId, group: TopicMessages) -> None:
        """Handle the messages of a group: routine messages of a member in one event."""
        is_watched = self.arrivals.watched or sender.startswith(SUPERVISORS)
        if is_watched or not group.is_routine or not group.is_claimed_by(sender):
            self.links.receive_each(sender, group)
            return
        machine = self._machines.get(group.topic)
        event = RoutineReceived(group.messages, sender)  # type: ignore[arg-type]
        if machine is None or not machine.repeat(event):
            self.dispatch(group.topic, event)

    def _why_refused(self, sender: NodeId, kind: type[WireMessage]) -> str | None:
        """Return the reason why a message of this type is dropped now, or None."""
        if kind in CARRIERS:
            return "store full"
        if kind in REQUESTS:
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

    # -- requests of the application -------------------------------------------------------------

    def subscribe(self, topic: TopicId) -> None:
        """Become a member of a topic."""
        self.dispatch(topic, SubscribeRequested(self._incarnations.issue()))

    def attach(
        self, topic: TopicId, deliver: Deliverer, on_in_sync: SyncObserver = lambda _: None
    ) -> None:
        """Pass the deliveries and confirmations of a topic to the application from now on."""
        self._receivers[topic] = deliver, on_in_sync

    def detach(self, topic: TopicId) -> None:
        """Stop passing deliveries and confirmations of a topic to the application."""
        self._receivers.pop(topic, None)

    def _health(self, machine: Subscriber) -> NodeHealth:
        health = node_health(machine, self.links, self.durability, self.quarantined)
        topic, delay_us = machine.replica.topic, round(self._settings.policy_delay_s * 1_000_000)
        terms = topic_terms(machine, self.logs.dropped[topic], delay_us)
        return replace(health, overlapping=self._overlapping, terms=terms)

    @property
    def quarantined(self) -> int:
        """Return the number of stored records found damaged or missing since the start."""
        return self._discarded + self.logs.lost

    def incompleteness(self, topic: TopicId) -> str | None:
        """Return why a member may lack publications that others have, or None."""
        return incompleteness(found) if (found := self._topics.machine(topic)) else None

    @property
    def topics(self) -> list[TopicId]:
        """Return the subscribed topics."""
        return self._topics.names()
