"""Host of a supervisor process, which admits members and handles no publications."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from random import Random
from typing import Final, Self, assert_never, cast

from skipring.core.effects import (
    Backfilled,
    Deliver,
    Discard,
    Drained,
    Drop,
    Effect,
    Evicted,
    HeldBy,
    PeerInSync,
    Rejected,
    SaveTerms,
    Send,
    SendSynced,
    Store,
    Unsubscribed,
)
from skipring.core.events import Event, Flush, Overwritten, Received, Tick
from skipring.core.log_messages import Refused
from skipring.core.messages import (
    CLAIMS,
    SUPERVISOR_REQUESTS,
    UNRECORDED,
    GetConfiguration,
    Message,
    Ping,
    Subscribe,
    Unsubscribe,
)
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.core.state import SupervisorState
from skipring.core.topics import Quotas, SupervisorTopics
from skipring.errors import StorageError
from skipring.net.addresses import AddressBook
from skipring.net.event_loop import Timer
from skipring.net.transport import Transport
from skipring.node.chaos_server import DAMAGES, SupervisorChaos, kill_process
from skipring.node.sender import Sender
from skipring.node.settings import NodeSettings
from skipring.node.status_server import database_page
from skipring.observability.logs import logger
from skipring.storage.supervisor_store import SupervisorStore
from skipring.wire.codec import Envelope
from skipring.wire.framing import Frame
from skipring.wire.handshake import Hello, Role
from skipring.wire.limits import TOPICS_MAX as TOPICS_IN_A_PAGE
from skipring.wire.rpc import (
    RUNTIME_TYPES,
    Address,
    FetchDatabase,
    FindMembers,
    GetSupervisorStatus,
    MemberList,
    RuntimeMessage,
    SupervisorStatus,
    TopicStatus,
    WireMessage,
)

NOT_ALLOWED: Final = "this supervisor does not allow the topic"

_LOG: Final = logger("supervisor")


class SupervisorHost:
    """Host of one supervisor, which serves its topics over sockets."""

    def __init__(
        self,
        settings: NodeSettings,
        *,
        rng: Random,
        store: SupervisorStore | None = None,
        crash: Callable[[], None] = kill_process,
    ) -> None:
        self._store = store
        self._allowed = settings.allowed_topics
        self._advertised = settings.advertised
        self.counts: Counter[str] = Counter()  # received messages, probes and evictions
        self._requests: Counter[TopicId] = Counter()  # protocol requests in known topics
        self._topics = SupervisorTopics(config=settings.config)
        self._quotas = Quotas()
        self._accounts: dict[TopicId, NodeId] = {}  # account that each topic is charged to
        self._stored: dict[TopicId, tuple[int, int]] = {}  # size and digest on disk (R14)
        self._rng = rng
        book = self._book = AddressBook()
        greeting = Hello(node=SUPERVISOR, address="", role=Role.SUPERVISOR)
        self.links = Transport(
            greeting, book, self._receive, rng, credentials=settings.credentials, dials=False
        )
        self._sender = Sender(self.links, node=SUPERVISOR)
        self.chaos = SupervisorChaos(
            SUPERVISOR, self.links, self.dispatch, crash, is_enabled=settings.is_chaotic
        )
        self.ticker = Timer(self._tick, settings.tick_s, rng)
        self._answer_s = settings.answer_s
        self._asked: set[TopicId] = set()  # topics with unanswered requests
        self._flushing: asyncio.TimerHandle | None = None  # timer of their answers
        self.address: Address = ""

    async def start(self, host: str, port: int) -> Self:
        """Listen, on a free port if it is 0; stored databases may be corrupt and are repaired."""
        for topic, state in (self._store.load() if self._store is not None else {}).items():
            self.dispatch(topic, Overwritten(state))
        self._quotas.on_tick(self._owners())
        self.address = await self.links.listen(host, port, self._advertised)
        self.ticker.start()
        return self

    def _receive(self, sender: NodeId, envelope: Envelope[WireMessage], _: Frame) -> None:
        message = envelope.message
        self.counts[type(message).__name__] += 1
        if isinstance(message, GetSupervisorStatus):  # concerns no topic
            self._sender.send_message(envelope.topic, sender, self._status(message))
            return
        if self._allowed and not any(fnmatchcase(envelope.topic, glob) for glob in self._allowed):
            self._turn_away(sender, envelope, "topic not allowed", NOT_ALLOWED)
            return
        claim = CLAIMS.get(type(message))
        if claim is not None and not claim(message, sender):  # decision 0045
            self.links.counts["sender mismatch"] += 1
            return
        if self._is_over_quota(sender, envelope):
            return
        if type(message) is Unsubscribe and envelope.topic not in self._topics:
            self._sender.send_message(envelope.topic, sender, UNRECORDED)  # nothing waits (S2)
            return
        if type(message) in RUNTIME_TYPES:
            self._on_runtime_message(sender, envelope.topic, cast("RuntimeMessage", message))
            return
        self.dispatch(envelope.topic, Received(cast("Message", message), sender))
        if isinstance(message, SUPERVISOR_REQUESTS) and envelope.topic in self._topics:
            self._requests[envelope.topic] += 1
            self._flush_soon(envelope.topic)

    def dispatch(self, topic: TopicId, event: Event) -> list[Effect]:
        """Run one event and apply its effects, in order; return them."""
        effects = self._topics.handle(topic, event)
        for effect in effects:
            match effect:
                case Send():
                    self.counts["probes"] += type(effect.message) is Ping
                    self._sender.send(topic, effect, event)
                case Evicted():
                    self._on_evicted(topic, effect.node)
                case (
                    Deliver()
                    | Rejected()
                    | Store()
                    | Discard()
                    | Drop()
                    | SaveTerms()
                    | SendSynced()
                    | PeerInSync()
                    | HeldBy()
                    | Drained()
                    | Backfilled()
                    | Unsubscribed()
                ):
                    raise AssertionError(f"a supervisor only sends, not {effect}")
                case _:
                    assert_never(effect)
        return effects

    def _is_over_quota(self, sender: NodeId, envelope: Envelope[WireMessage]) -> bool:
        """Return True, and send the reason, if a name exceeds its quota at this supervisor.

        No other message begins a topic. A member can make others send the other messages, so these
        are not charged to them.
        """
        message = envelope.message
        if envelope.topic not in self._topics and isinstance(message, Subscribe | GetConfiguration):
            account = self.links.account_of(sender)
            why = self._quotas.refuse_topic(account)
            if why is not None:
                self._turn_away(sender, envelope, "too many topics", why)
                return True
            self._accounts[envelope.topic] = account
        if isinstance(message, GetConfiguration) and message.node != sender:
            account = self.links.account_of(sender)
            why = self._quotas.refuse_subject(account)
            if why is not None:
                self.links.counts["too many subjects"] += 1
                if self._quotas.is_first_excess(account):
                    self._sender.send_message(envelope.topic, sender, Refused(0, why))
                return True
        return False

    def _owners(self) -> Iterator[NodeId]:
        """Return the account that each topic is charged to.

        A topic keeps its account while its owner is not connected: the name of the certificate is
        known from a connection only.
        """
        accounts, self._accounts = self._accounts, {}
        for topic, machine in self._topics.machines():
            owner = machine.owner
            if owner is not None:
                is_known = self.links.is_linked(owner) or topic not in accounts
                account = self.links.account_of(owner) if is_known else accounts[topic]
                self._accounts[topic] = account
                yield account

    def _status(self, question: GetSupervisorStatus) -> SupervisorStatus:
        """Return the counters of this supervisor and a page of its topics."""
        topics = sorted((topic, len(each.roster)) for topic, each in self._topics.machines())
        end = question.start + TOPICS_IN_A_PAGE
        return SupervisorStatus(
            request=question.request,
            ticks=self.ticker.calls,
            suspects=self.suspects,
            evictions=self.counts["evictions"],
            total=len(topics),
            next=end if end < len(topics) else None,
            topics=tuple(
                TopicStatus(topic, members, self._requests[topic])
                for topic, members in topics[question.start : end]
            ),
        )

    def _turn_away(
        self, sender: NodeId, envelope: Envelope[WireMessage], counted: str, why: str
    ) -> None:
        """Count a refused message; send the reason if its sender waits for a response."""
        self.links.counts[counted] += 1
        message = envelope.message
        if isinstance(message, Subscribe | FindMembers | FetchDatabase):
            request = 0 if isinstance(message, Subscribe) else message.request
            self._sender.send_message(envelope.topic, sender, Refused(request, why))

    def _on_runtime_message(self, sender: NodeId, topic: TopicId, message: RuntimeMessage) -> None:
        match message:
            case FindMembers(request=request, count=count):
                self._sender.send_message(
                    topic, sender, MemberList(request, self._members(topic, count))
                )
            case FetchDatabase():
                page = database_page(self._topics.machine(topic), message, self.links.conflicts())
                self._sender.send_message(topic, sender, page)
            case _ if isinstance(message, DAMAGES):
                self._sender.send_message(topic, sender, self.chaos.handle(topic, message))
            case _:
                pass  # a response without a request

    def _members(self, topic: TopicId, count: int) -> dict[NodeId, Address]:
        """Return random members of a topic with their addresses."""
        machine = self._topics.machine(topic)
        nodes = list(machine.roster.nodes) if machine is not None else []
        chosen = self._rng.sample(nodes, min(count, len(nodes)))
        return self._book.hints(chosen)

    def _tick(self) -> None:
        """Run the periodic actions of every topic and of the process."""
        for topic in self._topics.begin_tick():
            self.dispatch(topic, Tick())
        self._quotas.on_tick(self._owners())
        for topic in [each for each in self._requests if each not in self._topics]:
            del self._requests[topic]
        self._remember()
        self.links.sweep()

    def _flush_soon(self, topic: TopicId) -> None:
        """Schedule the answers of a topic after ``answer_s``; without it they wait for a tick."""
        if self._answer_s is None:
            return
        self._asked.add(topic)
        if self._flushing is None and not self.links.is_closed:
            loop = asyncio.get_running_loop()
            self._flushing = loop.call_later(self._answer_s, self._flush)

    def _flush(self) -> None:
        self._flushing = None
        topics, self._asked = self._asked, set()
        for topic in self._topics.to_flush(topics):
            self.dispatch(topic, Flush())

    def _on_evicted(self, topic: TopicId, node: NodeId) -> None:
        self.counts["evictions"] += 1
        _LOG.warning("evicted", topic=topic, node=node)
        self._flush_soon(topic)

    def _remember(self) -> None:
        """Store changed databases: a restart with them does not disturb the rings."""
        if self._store is None:
            return
        try:
            rosters = {topic: machine.roster for topic, machine in self._topics.machines()}
            marks = {topic: (len(each), each.digest()) for topic, each in rosters.items()}
            for topic, mark in marks.items():
                if self._stored.get(topic) != mark:  # the cursor may be lost
                    self._store.save(topic, self.state(topic))
            for topic in self._stored.keys() - marks.keys():
                self._store.forget(topic)
            self._stored = marks
        except StorageError:
            self.links.counts["not stored"] += 1  # a lost database is rebuilt from the ring

    # -- inspection --------------------------------------------------------------------------

    @property
    def suspects(self) -> int:
        """Return the number of accused members, summed over topics."""
        return sum(machine.accused for _, machine in self._topics.machines())

    def members(self) -> dict[TopicId, int]:
        """Return the number of members of each topic."""
        return {topic: len(machine.roster) for topic, machine in self._topics.machines()}

    def state(self, topic: TopicId) -> SupervisorState:
        """Return the database of a topic as a value."""
        machine = self._topics.machine(topic)
        return machine.state() if machine is not None else SupervisorState()

    async def close(self) -> None:
        """Stop serving."""
        self.ticker.stop()
        if self._flushing is not None:
            self._flushing.cancel()
        await self.links.close()
