"""Host of a node process: the subscriber machines of all topics, over sockets and logs."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from random import Random
from time import time_ns
from typing import Final, Self

from skipring.core.effects import (
    Deliver,
    Drained,
    Effect,
    HeldBy,
    Origin,
    PeerInSync,
    Send,
    SendSynced,
    Unsubscribed,
)
from skipring.core.events import (
    CompletenessRequested,
    HistoryRead,
    PublishManyRequested,
    PublishRequested,
    Received,
    SubscribeRequested,
    SyncRequested,
    UnsubscribeRequested,
)
from skipring.core.messages import (
    CheckAndPublish,
    CheckHeld,
    CheckTrie,
    Message,
    Publications,
    PublishMany,
    PublishNew,
    RequestHandover,
    SetConfiguration,
)
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.core.sequences import RANDOM_BITS, incarnation_at
from skipring.core.state import SubscriberState
from skipring.core.subscriber import Subscriber
from skipring.core.topics import SubscriberTopics
from skipring.errors import SkipringError, StorageError
from skipring.net.addresses import AddressBook, supervisor_at
from skipring.net.transport import Transport
from skipring.net.work_budget import time_limit
from skipring.node.backfill import BackfillClient
from skipring.node.change_log import ChangeLog
from skipring.node.chaos_server import DAMAGES, PartitionableTransport, damage_node, kill_process
from skipring.node.drain import UNLINKED_S, Departure, Departures
from skipring.node.failure_detector import NeighbourWatch
from skipring.node.group_commit import GroupCommit
from skipring.node.index_slices import StatusServer
from skipring.node.keeping import Deliverer, Keeping
from skipring.node.log_server import handle_deliveries_request, handle_log_request
from skipring.node.membership import Membership
from skipring.node.outgoing import Outgoing
from skipring.node.publish_proxy import PublishProxy
from skipring.node.replication_wait import Replications
from skipring.node.sender import Driver
from skipring.node.settings import NodeSettings
from skipring.node.status_server import NOT_A_MEMBER, handle_status_request, node_status
from skipring.node.timer import Timer
from skipring.observability.logs import RateLimitedLogger, logger
from skipring.storage.delivery_log import DeliveryLog
from skipring.storage.store import PublicationStore
from skipring.wire.codec import Envelope
from skipring.wire.framing import Frame
from skipring.wire.handshake import Hello, Role
from skipring.wire.limits import LOCATED_MAX, shown
from skipring.wire.monitor_rpc import FetchArrivals
from skipring.wire.rpc import (
    BUSY,
    REQUEST_TYPES,
    Address,
    FetchChanges,
    FetchDeliveries,
    FetchLog,
    FetchPublications,
    FindMembers,
    GetLogInfo,
    GetNodeStatus,
    LogInfo,
    LogPage,
    MemberList,
    NodeHealth,
    Ping,
    Pong,
    Publish,
    Refused,
    ReportUnresponsive,
    RuntimeMessage,
    WireMessage,
    is_request,
)

LINK_POLL_S: Final = 0.05  # Guess: short beside UNLINKED_S.
LATE: Final = 2  # Our guess: whose own clock stood still for so many ticks accuses nobody.

# What is not taken from everybody at all times: what brings something to be stored, and what asks
# for much.
_BRINGING: Final = frozenset({PublishNew, PublishMany, Publications})
_ASKING: Final = frozenset({CheckTrie, CheckAndPublish, CheckHeld, RequestHandover, *REQUEST_TYPES})

_LOG: Final = logger("node")

Confirmer = Callable[[TopicId, PeerInSync], None]


class NodeHost:
    """One node over sockets, with its publications in memory or in a store."""

    def __init__(
        self,
        name: NodeId,
        settings: NodeSettings,
        *,
        rng: Random,
        deliver: Deliverer,
        store: PublicationStore | None = None,
        trace: DeliveryLog | None = None,
    ) -> None:
        self.name = name
        incarnation = incarnation_at(time_ns() // 1000, secrets.randbits(RANDOM_BITS))
        self._advertised = settings.advertised
        self._keeping = Keeping(deliver, self._on_effect, store, trace)
        self.on_confirmed: Confirmer | None = None  # who wants to hear of confirmations
        self._topics = SubscriberTopics(
            name,
            rng=rng,
            config=settings.config,
            open_archive=self._keeping.open_archive,
            incarnation=incarnation,
        )
        book = AddressBook()
        self._journals = ChangeLog(self._topics)
        self._driver = Driver(
            self._journals,
            node=name,
            book=book,
            supervisors=settings.supervisors,
            keep=self._keeping.carry_out,
            answer=self._on_runtime_message,
        )
        self._rarely = RateLimitedLogger(_LOG)
        self._watch = NeighbourWatch()
        self._tick_s = settings.tick_s
        self._last_tick: float | None = None
        greeting = Hello(node=name, address="", role=Role.NODE, incarnation=incarnation)
        self.is_chaotic = settings.is_chaotic
        self.on_crash: Callable[[], None] = kill_process  # who is told to end at once
        make_links = PartitionableTransport if settings.is_chaotic else Transport
        self.links: Transport = make_links(
            greeting, book, self._receive, rng, credentials=settings.credentials
        )
        self._driver.links = self.links
        self._outgoing = Outgoing(self._driver.perform)
        self.durability.on_durable = self._outgoing.release
        self._catching_up = BackfillClient(
            self._driver.say, self._on_history, lambda: not self.durability.is_backpressured
        )
        self.membership = Membership(name, self._topics, self._driver, self.links)
        self.ticker = Timer(self._tick, settings.tick_s, rng)
        self._flusher = Timer(self._flush, settings.flush_s, rng)
        self._status_server = StatusServer(self._topics, self._status, self._driver.say)
        self.address: Address = ""
        self._left: dict[TopicId, asyncio.Event] = {}
        self._departures = Departures(
            self._topics,
            self._driver.give,
            self.links.is_linked,
            self._is_linked_to_supervisor,
            has_disk=store is not None,
        )
        self.replications = Replications(
            self._topics, self._driver.give, self._locate, settings.tick_s
        )
        self.errands = PublishProxy(
            self._topics,
            self._driver,
            self.durability,
            self.publish,
            has_disk=store is not None,
        )

    async def start(self, host: str, port: int) -> Self:
        """Listen; port 0 picks a free one."""
        self.address = await self.links.listen(host, port, self._advertised)
        for ticker in (self.ticker, self._flusher):
            ticker.start()
        return self

    # -- what the application wants ----------------------------------------------------------

    def subscribe(self, topic: TopicId) -> None:
        """Become a member of a topic."""
        self._driver.give(topic, SubscribeRequested())
        machine = self._topics.machine(topic)
        self._catching_up.on_joined(topic, machine.count if machine is not None else 0)

    async def drain(
        self, topic: TopicId, timeout_s: float, *, waits_alone: bool = False
    ) -> Departure:
        """Hand over to a remaining member what is held of a topic, before leaving it.

        ``waits_alone``: with own publications and without a disk, wait for a neighbour.
        """
        is_first = self._catching_up.is_first(topic)
        return await self._departures.drain(
            topic, timeout_s, waits_alone=waits_alone, only_own=is_first
        )

    def not_handed_over(self, topic: TopicId) -> int:
        """Return how many publications a drain in progress has not handed over yet, at most."""
        return self._departures.not_handed_over(topic)

    async def unsubscribe(self, topic: TopicId, timeout_s: float) -> bool:
        """Leave a topic; return True if its supervisor confirms that in time.

        Without a link to the supervisor for UNLINKED_S the node stops waiting: the supervisor has
        ended or cannot be reached, and evicts the node once it is back.
        """
        left = self._left.setdefault(topic, asyncio.Event())
        try:
            async with asyncio.timeout(timeout_s):
                return await self._is_released(topic, left)
        except TimeoutError:
            return False
        finally:
            self._left.pop(topic, None)

    async def _is_released(self, topic: TopicId, left: asyncio.Event) -> bool:
        """Ask to leave once a tick, since a message may be lost, and when a link is lost."""
        wait_s = min(self._tick_s, LINK_POLL_S)
        asked_s = unlinked_s = 0.0  # sums of waits: a stalled loop does not shorten them
        self._driver.give(topic, UnsubscribeRequested())
        while not left.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(left.wait(), wait_s)
            asked_s += wait_s
            if self._is_linked_to_supervisor(topic):
                unlinked_s = 0.0
            elif unlinked_s >= UNLINKED_S:
                return left.is_set()
            else:
                asked_s = self._tick_s if not unlinked_s else asked_s  # what was sent may be lost
                unlinked_s += wait_s
            if asked_s >= self._tick_s and not left.is_set():
                asked_s = 0.0
                self._driver.give(topic, UnsubscribeRequested())
        return True

    def _is_linked_to_supervisor(self, topic: TopicId) -> bool:
        address = self.supervisor_of(topic)
        return address is not None and self.links.is_linked(supervisor_at(address))

    async def publish(self, topic: TopicId, *requests: PublishRequested) -> list[bytes]:
        """Publish in a topic we are in; return the ids once they are durable here and spread.

        StorageError if it cannot be made durable now. It is then kept in memory, written once there
        is room, and others may get it by repair; who publishes after that is told before anything
        is kept.
        """
        await self.durability.raise_if_failing()
        if topic not in self._topics:
            raise SkipringError(f"not subscribed to {shown(topic)}: it was left meanwhile")
        effects = self._topics.handle(topic, PublishManyRequested(requests))
        made = [
            publication.id
            for e in effects
            if isinstance(e, Deliver)
            for publication in e.publications
        ]
        self._driver.perform(topic, [e for e in effects if not isinstance(e, Send)])
        sends = [e for e in effects if isinstance(e, Send)]
        number = self._outgoing.add(topic, sends, self.durability.next_commit)
        self._departures.on_published(topic, made)
        try:
            await self.durability.wait_durable()
        except StorageError:
            self._outgoing.drop(number)
            raise
        self._outgoing.release(self.durability.durable)
        self._report_incarnations(topic)
        return made

    def _report_incarnations(self, topic: TopicId) -> None:
        machine = self._topics.machine(topic)
        if machine is not None and machine.incarnations_ahead:
            self._rarely.warn(
                "incarnations_ahead",
                reason="numbers of this node's name are ahead of the clock and are ignored",
                topic=topic,
                count=machine.incarnations_ahead,
            )

    def _locate(self, topic: TopicId) -> None:
        self._driver.say(topic, SUPERVISOR, FindMembers(0, LOCATED_MAX))

    def confirm(self, topic: TopicId) -> None:
        """Ask the ring neighbours in a topic whether they have all that we have (T19)."""
        self._driver.give(topic, SyncRequested())

    async def close(self) -> None:
        """Stop at once, as a crash would, but leave the store in order."""
        for ticker in (self.ticker, self._flusher):
            ticker.stop()
        self._status_server.close()
        await self.links.close()
        self._driver.perform_all(self._topics.persist_deferred())
        with suppress(StorageError):  # what is not durable comes again from others
            await self.durability.wait_durable()
        await self._keeping.close()

    # -- time and messages ---------------------------------------------------------------------

    def _receive(self, sender: NodeId, envelope: Envelope[WireMessage], frame: Frame) -> None:
        topic, message = envelope.topic, envelope.message
        if self.membership.is_supervisor(sender):
            if not self.membership.is_obeyed(sender, topic, message):
                return
            sender = SUPERVISOR
        elif (why := self._why_dropped(sender, message)) is not None:
            self.links.counts[why] += 1
            if is_request(message):
                self._driver.say(topic, sender, Refused(message.request, BUSY))
            return
        if topic in self._topics:
            self._watch.on_heard(topic, sender)
        arrivals = self._keeping.arrivals
        if arrivals.is_watched:
            with arrivals.handling(topic, sender, message):
                self._driver.receive(sender, envelope, frame)
        else:
            self._driver.receive(sender, envelope, frame)
        if sender == SUPERVISOR:
            self.membership.on_heard(topic, message)
            self._catching_up.maybe_start(topic, self._topics.machine(topic))

    def _why_dropped(self, sender: NodeId, message: WireMessage) -> str | None:
        """Why we take nothing of this kind from a node now, or None."""
        kind = type(message)
        if kind in _BRINGING:
            if self._keeping.durability.is_backpressured:
                return "store full"
        elif kind in _ASKING:
            if self.links.is_behind(sender):
                return "partner behind"  # it has to read first what it was sent already
        elif kind is SetConfiguration:
            return "not the supervisor"
        return None

    def _on_runtime_message(self, sender: NodeId, topic: TopicId, message: RuntimeMessage) -> None:
        match message:
            case Ping(nonce=nonce) if sender == SUPERVISOR:
                self._driver.say(topic, SUPERVISOR, Pong(nonce))
            case Publish():
                self.errands.begin(sender, topic, message)
            case GetNodeStatus() | GetLogInfo():
                self._status_server.handle(sender, topic, message)
            case (
                FetchPublications()
                | FetchChanges()
                | FetchLog()
                | FetchDeliveries()
                | FetchArrivals()
            ):
                self._driver.say(topic, sender, self._page(topic, message))
            case Refused(reason=reason) if sender == SUPERVISOR:
                self.membership.on_refused(topic, reason)
            case MemberList(members=members) if sender == SUPERVISOR:
                self.links.book.learn(members)
                self.replications.on_members(topic, members)
            case LogInfo() | LogPage() | Refused():
                self._catching_up.on_answer(sender, topic, message, self._topics.machine(topic))
            case _ if isinstance(message, DAMAGES):
                self._driver.say(topic, sender, damage_node(self, topic, message))
            case _:
                pass  # an answer to nobody

    def _status(
        self, topic: TopicId, machine: Subscriber | None, question: GetNodeStatus | GetLogInfo
    ) -> RuntimeMessage:
        if isinstance(question, GetNodeStatus):
            if machine is None:
                return Refused(question.request, NOT_A_MEMBER)
            return node_status(machine, question.request, self._health(topic, machine))
        return handle_log_request(self._keeping.store_id, machine, question)

    def _health(self, topic: TopicId, machine: Subscriber) -> NodeHealth:
        neighbours, error = machine.ring_neighbours(), self.durability.error
        return NodeHealth(
            time=max(time_ns() // 1000, 0),
            silent=self._watch.silent_ticks(topic),
            unlinked=tuple(node for node in neighbours if not self.links.is_linked(node)),
            not_ready=self.incompleteness(topic) or "",
            ahead=machine.incarnations_ahead,
            quarantined=self.put_aside,
            disk_error=shown(str(error)) if error is not None else "",
            clones=self.links.clones,
        )

    def _page(
        self,
        topic: TopicId,
        question: FetchPublications | FetchChanges | FetchLog | FetchDeliveries | FetchArrivals,
    ) -> RuntimeMessage:
        """Answer with a page; a scan that takes longer than a turn continues with the next one."""
        machine, is_spent = self._topics.machine(topic), time_limit()
        match question:
            case FetchLog():
                return handle_log_request(self._keeping.store_id, machine, question, is_spent)
            case FetchDeliveries():
                return handle_deliveries_request(
                    self._keeping.trace, topic, machine, question, is_spent
                )
            case FetchArrivals():
                if machine is None:
                    return Refused(question.request, NOT_A_MEMBER)
                return self._keeping.arrivals.answer(topic, question)
            case _:
                return handle_status_request(topic, machine, self._journals, question, is_spent)

    def _on_history(self, topic: TopicId, part: HistoryRead) -> None:
        """A part of a history has come; all of it, if there is nothing in it."""
        self._driver.give(topic, part)
        if not part.publications:
            self.durability.request_commit()

    def _tick(self) -> None:
        """Run the machines, and report neighbours that have gone silent (section 3.3)."""
        now = asyncio.get_running_loop().time()
        is_late = self._last_tick is None or now - self._last_tick > LATE * self._tick_s
        self._last_tick = now
        self._driver.tick()
        for topic, machine in self._topics.machines():
            self._catching_up.on_tick(topic, machine)
            if not self._catching_up.is_awaited(topic):
                self._driver.give(topic, CompletenessRequested())
        self.membership.on_tick()
        self.links.sweep()
        self._keeping.on_tick(self.ticker.calls)
        self._outgoing.release(self.durability.durable)  # also of those who did not wait for it
        for topic, node in self._watch.tick(self._topics.ring_neighbours(), is_late=is_late):
            self._driver.say(topic, SUPERVISOR, ReportUnresponsive(node))

    def set_supervisors(self, supervisors: Sequence[Address]) -> None:
        """Take another list of supervisors; topics that belong to another one now move to it."""
        self.membership.set_supervisors(supervisors)

    # -- effects -----------------------------------------------------------------------------

    def _on_effect(self, topic: TopicId, effect: Effect) -> None:
        """Carry out what is neither to be sent nor to be kept."""
        match effect:
            case Unsubscribed():
                self._on_left(topic)
            case PeerInSync() if self.on_confirmed is not None:
                self.on_confirmed(topic, effect)
            case SendSynced():
                sends = [Send(effect.to, effect.message)]
                self._outgoing.add(topic, sends, self.durability.next_commit)
                self.durability.hurry()
            case HeldBy():
                self._departures.on_held(topic, effect)
                self.replications.on_held(topic, effect)
            case Drained():
                self._departures.on_drained(topic, effect)
            case _:
                pass  # nobody wants to know

    def _on_left(self, topic: TopicId) -> None:
        self._catching_up.forget(topic)
        self._keeping.forget(topic)
        if topic in self._left:
            self._left[topic].set()

    def _flush(self) -> None:
        """Say what was put off, and keep what has come meanwhile."""
        self._driver.perform_all(self._topics.flush())

    # -- damage on purpose -------------------------------------------------------------------

    def forge(self, topic: TopicId, message: Message) -> None:
        """Take a message for one that has come."""
        self._driver.give(topic, Received(message))

    def settle(self, topic: TopicId) -> None:
        """Keep what has arrived in a topic."""
        machine = self._topics.machine(topic)
        if machine is not None:
            self._driver.perform(topic, machine.persist_deferred())

    def lose(self, topic: TopicId, offsets: Iterable[int]) -> None:
        """Forget what is stored at these offsets, and notice nothing."""
        self._keeping.lose(topic, offsets)

    def isolate(self, nodes: Iterable[NodeId], ticks: int) -> None:
        """Drop all traffic with these nodes for so many ticks."""
        assert isinstance(self.links, PartitionableTransport), "only a chaotic process is damaged"
        self.links.sever(nodes, ticks)

    def crash(self) -> None:
        """End at once."""
        self.on_crash()

    # -- what can be seen --------------------------------------------------------------------

    @property
    def durability(self) -> GroupCommit:
        """What of it is on the disk."""
        return self._keeping.durability

    @property
    def deliveries(self) -> Counter[tuple[TopicId, Origin]]:
        """How many publications have come, in which topic and how."""
        return self._keeping.deliveries

    @property
    def put_aside(self) -> int:
        """How many publications turned out to be spoilt."""
        return self._keeping.put_aside

    @property
    def refusals(self) -> Mapping[TopicId, str]:
        """Why supervisors do not let us in."""
        return self.membership.refusals

    def incompleteness(self, topic: TopicId) -> str | None:
        """Why a node with a place in the ring may lack publications that others have, or None."""
        machine = self._topics.machine(topic)
        if machine is None or machine.is_complete:
            return None
        if self._catching_up.is_reading(topic):
            return "the backfill is in progress"
        return "no neighbour has confirmed yet that this node has everything"

    @property
    def topics(self) -> list[TopicId]:
        """The topics we take part in."""
        return [topic for topic, _ in self._topics.machines()]

    def supervisor_of(self, topic: TopicId) -> Address | None:
        """Where the supervisor of a topic is; None if there are no supervisors."""
        return self._driver.supervisor_of(topic) if self._driver.supervisors else None

    def machine(self, topic: TopicId) -> Subscriber | None:
        """The machine of a topic we are in, to be looked at only."""
        return self._topics.machine(topic)

    def states(self) -> Mapping[TopicId, SubscriberState]:
        """The machines of all topics as values."""
        return self._topics.states()
