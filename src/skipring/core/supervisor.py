"""Supervisor machine of one topic (Algorithm 3; crashes: section 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, assert_never

from skipring.core.config import ProtocolConfig
from skipring.core.effects import Effect, Evicted, Outbox
from skipring.core.events import (
    Corrupted,
    DrainRequested,
    Event,
    Flush,
    IndexRequested,
    NodeSuspected,
    Overwritten,
    PublishRequested,
    Received,
    ReplicationRequested,
    ResendRequested,
    RoutineReceived,
    SubmitRequested,
    SubscribeRequested,
    SyncRequested,
    Tick,
    UnsubscribeRequested,
)
from skipring.core.failure_detector import DetectorBudget, FailureDetector
from skipring.core.messages import (
    UNRECORDED,
    CheckAndPublish,
    CheckHeld,
    CheckLabel,
    CheckTrie,
    ConfigurationAck,
    Digest,
    Draining,
    GetConfiguration,
    HandoverDone,
    Held,
    IHave,
    Introduce,
    IntroduceShortcut,
    Ping,
    Pong,
    RemoveConnections,
    ReportUnresponsive,
    RequestHandover,
    Subscribe,
    Terms,
    TrieEqual,
    Unsubscribe,
    Want,
)
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.roster import Roster
from skipring.core.state import SupervisorMemory, SupervisorState
from skipring.core.topology import levels

_SIGNS_OF_LIFE: Final = frozenset({ConfigurationAck, Ping, Pong})  # they have no other effect


class Supervisor:
    """Supervisor of one topic: records members and sends them their configurations."""

    __slots__ = (
        "_answer_ticks",
        "_answered",
        "_calm_ticks",
        "_config",
        "_detector",
        "_mismatches",
        "_own_budget",
        "_queue",
        "_refresh_ticks",
        "_suspects",
        "_ticks",
        "roster",
    )

    def __init__(
        self,
        *,
        config: ProtocolConfig,
        state: SupervisorState | None = None,
        budget: DetectorBudget | None = None,
    ) -> None:
        """Create a machine with the given database, which may be corrupted.

        ``budget`` is shared with other topics and renewed by their owner.
        """
        self._config = config
        self.roster = Roster()
        self._queue: dict[NodeId, None] = {}  # R15: distinct subjects, first come first served
        self._answered = {True: 0, False: 0}  # answers to members and others since the last tick
        self._answer_ticks: dict[NodeId, int] = {}  # member -> tick of the last answer
        self._suspects: dict[NodeId, int] = {}  # node -> tick of suspicion
        self._ticks = 0
        self._calm_ticks = 0  # since the roster last changed
        self._mismatches = 0
        self._refresh_ticks = 0
        self._own_budget = None if budget is not None else DetectorBudget()
        self._detector = FailureDetector(budget or self._own_budget or DetectorBudget())
        if state is not None:
            self._load(state)

    def handle(self, event: Event) -> list[Effect]:
        """Apply one event; return the effects in order."""
        out = Outbox()
        self._record_change(self.roster.repair(), out)  # S3
        match event:
            case Received():
                self._on_message(event, out)
            case RoutineReceived():
                for message in event.messages:
                    self._on_message(Received(message, event.sender), out)
            case Tick():
                self._on_tick(out)
            case Flush():  # within the rest of this interval's budget
                self._answer_queue(out, repeats_share=self._config.repeats_share)
            case NodeSuspected():
                self._on_node_suspected(event.node, out)
            case Overwritten():
                if isinstance(event.state, SupervisorState):
                    self._load(event.state)
            case (
                SubscribeRequested()
                | UnsubscribeRequested()
                | PublishRequested()
                | SubmitRequested()
                | SyncRequested()
                | DrainRequested()
                | ReplicationRequested()
                | ResendRequested()
                | IndexRequested()
                | Corrupted()
            ):
                pass  # the supervisor is not a member of a topic
            case _:
                assert_never(event)
        return out

    # -- periodic actions ------------------------------------------------------------------

    def _on_tick(self, out: Outbox) -> None:
        """Run the paper's Timeout: send the next members in round robin their configurations."""
        self._ticks += 1
        # Memory may be corrupted: clamp counters to their valid range.
        self._calm_ticks = max(self._calm_ticks, 0) + 1
        self._mismatches = max(self._mismatches, 0)
        self._answered = {True: 0, False: 0}
        self._suspects = self._within(self._suspects, self._config.suspicion_ticks)
        self._answer_ticks = self._within(self._answer_ticks, self._config.answers_share)
        n = len(self.roster)
        rounds = 1
        if self._refresh_ticks > 0:
            self._refresh_ticks = min(self._refresh_ticks, self._config.refresh_ticks) - 1
            rounds = n // self._config.refresh_share + 1  # R14
            self._calm_ticks = 0  # compare again only after the sum has become stable
        for _ in range(min(rounds, n)):  # S6: none if n = 0
            self._answer(self.roster.advance(), out)
        if self.roster.audit(self._config.audited_slots):
            self._record_change(self.roster.nodes, out)
        if self._config.detects_failures:
            self._detect_failures(out)
        self._answer_queue(out)

    def _within(self, ticks: dict[NodeId, int], span: int) -> dict[NodeId, int]:
        """Return the entries of the last ``span`` ticks; a tick in the future is corrupted."""
        now = self._ticks
        return {node: tick for node, tick in ticks.items() if now - span < tick <= now}

    def _answer_queue(self, out: Outbox, repeats_share: int = 1) -> None:
        """Send the longest waiting nodes their current configurations (R15)."""
        for node in self._next_in_turn(repeats_share):
            del self._queue[node]
            if node != SUPERVISOR and node not in self._suspects:
                self._configure(node, out)
        if not self._queue:
            self._queue = {}  # a dict keeps the memory of its largest size until it is dropped

    def _next_in_turn(self, repeats_share: int) -> list[NodeId]:
        """Return the waiting nodes to answer now, within the budget of a tick.

        Members and others have separate budgets: after the loss of the database, every node has
        to be woken before any place is final, and neither group may wait for the other. Under load
        most requests are about members with a recent answer, so these come last, and only within
        a share of the budget.
        """
        are_members = {node: node in self.roster for node in self._queue}
        known = len(self.roster) + sum(not each for each in are_members.values())
        budget = max(self._config.answers_min, known // self._config.answers_share)
        answered, chosen = self._answered, list[NodeId]()
        for was_answered, limit in ((False, budget), (True, budget // repeats_share)):
            for node, is_member in are_members.items():
                if answered[is_member] < limit and (node in self._answer_ticks) is was_answered:
                    answered[is_member] += 1
                    chosen.append(node)
        return chosen

    def _configure(self, node: NodeId, out: Outbox) -> None:
        configuration = self.roster.configuration_of(node)
        if configuration is not UNRECORDED:
            self._answer_ticks[node] = self._ticks
            if self._config.detects_failures:
                self._detector.expect(node, self._ticks)
        out.send(node, configuration)

    def _answer(self, node: NodeId, out: Outbox) -> None:
        """Send a node its configuration, in its turn (R15) or at once."""
        if not self._config.rules.queue:
            self._configure(node, out)
        elif len(self._queue) < self._config.waiting_max:
            self._queue.setdefault(node)

    def _record_change(self, changed: Iterable[NodeId], out: Outbox) -> None:
        """Queue new configurations for the members that a change of the roster affects (S11)."""
        for node in changed:
            self._calm_ticks = self._mismatches = 0
            if self._config.rules.push:
                self._answer(node, out)

    # -- requests --------------------------------------------------------------------------

    def _on_message(self, event: Received, out: Outbox) -> None:
        message, sender = event.message, event.sender
        if sender is not None:
            self._suspects.pop(sender, None)  # S10: a node that sends is alive
            self._detector.on_heard(sender)
        kind = type(message)
        request = self._REQUESTS.get(kind)
        if request is not None:
            node = message.node  # type: ignore[union-attr]
            if node is not None and node != SUPERVISOR and node not in self._suspects:
                request(self, message, out)  # S10: ignore requests about suspected nodes
            return
        if kind in _SIGNS_OF_LIFE:
            return
        if isinstance(message, ReportUnresponsive):
            self._on_report(message.node, sender)
            return
        holder = sender if sender is not None else _subject(message)
        if holder is not None and holder != SUPERVISOR:
            # A stale reference led a ring message here (S10).
            out.send(holder, RemoveConnections(SUPERVISOR))

    def _on_subscribe(self, message: Subscribe, out: Outbox) -> None:
        """Record a node if it is new, and send it its configuration (Subscribe)."""
        node = message.node
        assert node is not None
        if node not in self.roster:
            self._record_change(self.roster.add(node), out)
            if self._config.rules.push:
                return  # the new member is among the informed nodes
        self._answer(node, out)

    def _on_unsubscribe(self, message: Unsubscribe, out: Outbox) -> None:
        """Remove a node, inform the member that takes its place, and confirm (Unsubscribe)."""
        node = message.node
        assert node is not None
        self._drop(node, out)
        self._answer(node, out)  # no longer recorded: the permission to leave

    def _drop(self, node: NodeId, out: Outbox) -> None:
        if node not in self.roster:
            return
        mover = self.roster.nodes[-1]
        self._record_change(self.roster.remove(node), out)
        if not self._config.rules.push and mover != node:
            self._answer(mover, out)

    def _on_get_configuration(self, message: GetConfiguration, out: Outbox) -> None:
        """Send a node its configuration, without a label if unrecorded (GetConfiguration, S1)."""
        node = message.node
        assert node is not None
        if message.digest is not None and self._config.rules.digest and node == self.roster.first:
            self._compare_digest(message.digest)
        self._answer(node, out)

    def _compare_digest(self, digest: int) -> None:
        """Start to refresh all members if the ring repeatedly differs from the roster (R14)."""
        if digest == self.roster.digest():
            self._mismatches = self._refresh_ticks = 0
            return
        settled = 2 * levels(len(self.roster)) + self._config.digest_settle_ticks
        if self._calm_ticks < settled or self._refresh_ticks > 0:
            return
        self._mismatches += 1
        if self._mismatches >= self._config.digest_mismatches:
            self._mismatches = 0
            self._refresh_ticks = self._config.refresh_ticks

    _REQUESTS: ClassVar[Mapping[type, Callable[[Supervisor, Any, Outbox], None]]] = (
        MappingProxyType(
            {
                Subscribe: _on_subscribe,
                Unsubscribe: _on_unsubscribe,
                GetConfiguration: _on_get_configuration,
            }
        )
    )

    # -- crashes ---------------------------------------------------------------------------

    def _on_node_suspected(self, node: NodeId, out: Outbox) -> None:
        """Remove a suspected node: it "just has to" be removed from the database (section 3.3)."""
        self._suspects[node] = self._ticks
        self._drop(node, out)

    def _on_report(self, node: NodeId, accuser: NodeId | None) -> None:
        """Record a report; only members accuse, and only members are accused."""
        if node in self.roster and accuser is not None and accuser in self.roster:
            self._detector.report(node, accuser, self._ticks)

    def _detect_failures(self, out: Outbox) -> None:
        """Ping accused members; evict those that were accused for too long."""
        if self._own_budget is not None:
            self._own_budget.renew()
        self._detector.on_tick(self._ticks, self.roster)
        for node in self._detector.to_ping(self._ticks):
            out.send(node, Ping(0))
        for node in self._detector.take_evictions(self._ticks):
            self._on_node_suspected(node, out)
            # A live node subscribes again at once; requests of others about it are ignored (S10).
            out.send(node, UNRECORDED)
            out.append(Evicted(node))

    @property
    def accused(self) -> int:
        """Return the number of accused members."""
        return self._detector.suspects

    def suspects(self, node: NodeId) -> bool:
        """Return True while the node is suspected."""
        return node in self._suspects

    # -- state as a value ------------------------------------------------------------------

    @property
    def has_to_flush(self) -> bool:
        """Return True if a node waits for an answer, and few were answered since the last tick.

        Under load, answers wait for the tick: many of them would be outdated by then.
        """
        return bool(self._queue) and max(self._answered.values()) < self._config.answers_min

    @property
    def is_idle(self) -> bool:
        """Return True if no node is recorded, waiting or suspected, and no repair is due."""
        return not (self.roster.nodes or self._queue or self._suspects or self.roster.is_loaded)

    @property
    def owner(self) -> NodeId | None:
        """Return the node that the topic is charged to: first member, else first waiting node."""
        return self.roster.first or next(iter(self._queue), None)

    @property
    def queue(self) -> Collection[NodeId]:
        """Return the nodes that wait for an answer, in order of arrival (R15)."""
        return self._queue.keys()

    def state(self) -> SupervisorState:
        """Return the database, the cursor and the queue as a value."""
        return SupervisorState(
            database=self.roster.database(), next=self.roster.cursor, queue=tuple(self._queue)
        )

    def _load(self, state: SupervisorState) -> None:
        """Replace the state, which may be corrupted; without a memory, keep the other variables."""
        self.roster.load(state.database, state.next)
        self._queue = dict.fromkeys(state.queue)
        if state.memory is not None:
            self._load_memory(state.memory)

    def memory(self) -> SupervisorMemory | None:
        """Return the other variables as a value; None if they are those of a new machine."""
        audited, audited_sum = self.roster.audited
        index = self.roster.wrong_index
        memory = SupervisorMemory(
            ticks=self._ticks,
            calm_ticks=self._calm_ticks,
            mismatches=self._mismatches,
            refresh_ticks=self._refresh_ticks,
            answered=(self._answered[True], self._answered[False]),
            told=dict(self._answer_ticks),
            suspects=dict(self._suspects),
            digest=self.roster.wrong_digest,
            audited=audited,
            audited_sum=audited_sum,
            index=dict(index) if index is not None else None,
            detector=self._detector.state(),
        )
        return memory if memory != SupervisorMemory() else None

    def _load_memory(self, memory: SupervisorMemory) -> None:
        self._ticks = memory.ticks
        self._calm_ticks = memory.calm_ticks
        self._mismatches = memory.mismatches
        self._refresh_ticks = memory.refresh_ticks
        self._answered = dict(zip((True, False), memory.answered, strict=True))
        self._answer_ticks = dict(memory.told)
        self._suspects = dict(memory.suspects)
        self._detector.load(memory.detector)
        self.roster.load_audit(memory.digest, memory.audited, memory.audited_sum, memory.index)


def _subject(message: object) -> NodeId | None:
    """Return the probable sender of a ring message, or None."""
    match message:
        case CheckLabel(sender=peer) | Introduce(peer=peer) | IntroduceShortcut(peer=peer):
            return peer.node
        case Digest(node=node):
            return node
        case CheckTrie() | CheckAndPublish() | TrieEqual() | IHave() | Want():
            return message.sender
        case CheckHeld() | Held() | Draining() | RequestHandover() | HandoverDone() | Terms():
            return message.sender
        case _:
            return None
