"""Subscriber machine of one topic (Algorithms 4 and 5)."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import assert_never

from msgspec.structs import replace

from skipring.core.batches import RecordBatch
from skipring.core.broadcast import Broadcast
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Effect, Outbox, Unsubscribed
from skipring.core.events import (
    Corrupted,
    Event,
    Flush,
    IndexRequested,
    Overwritten,
    PublishRequested,
    Received,
    ResendRequested,
    RoutineReceived,
    SubmitRequested,
    SubscribeRequested,
    SyncRequested,
    Tick,
    UnsubscribeRequested,
)
from skipring.core.labels import Label
from skipring.core.log import Log
from skipring.core.messages import (
    CheckLabel,
    ConfigurationAck,
    GetConfiguration,
    Ping,
    Pong,
    ReportUnresponsive,
    SetConfiguration,
    Subscribe,
    Unsubscribe,
)
from skipring.core.neighbour_liveness import HEARD, NeighbourLiveness
from skipring.core.peers import LEFT, RIGHT, SUPERVISOR, NodeId, Peer, TopicId
from skipring.core.replica import Replica
from skipring.core.replication import Replication
from skipring.core.ring import Ring
from skipring.core.ring_digest import RingDigest
from skipring.core.ring_messages import RingMessages, RingPlace
from skipring.core.shortcuts import Shortcuts
from skipring.core.state import LivenessState, SubscriberMemory, SubscriberState
from skipring.core.topology import Chains
from skipring.core.trie import PublicationTrie


class Subscriber:
    """Subscriber of one topic: its place in the skip ring, and its replica."""

    __slots__ = (
        "_audit_ticks",
        "_broadcast",
        "_config",
        "_digest",
        "_liveness",
        "_ring",
        "_rng",
        "_shortcuts",
        "_unheard",
        "node",
        "replica",
        "replication",
        "ring_messages",
        "wants",
    )

    def __init__(  # noqa: PLR0913  (keyword-only, and most are optional)
        self,
        node: NodeId,
        *,
        topic: TopicId,
        rng: Random,
        config: ProtocolConfig,
        log: Log | None = None,
        state: SubscriberState | None = None,
        wants: bool = True,
        incarnation: int = 0,
    ) -> None:
        """Create a machine in a given state, or in the initial state of a node."""
        self.node = node
        self.wants = wants  # S2: the wish of the application is input, not protocol state
        self._rng = rng
        self._config = config
        self._ring = Ring(node, config.rules)
        self._shortcuts = Shortcuts(self._ring)
        self._unheard: dict[NodeId, int] = {}  # ticks since the last message of each neighbour
        self._liveness = NeighbourLiveness(config, self._unheard)
        self._digest = RingDigest(config)
        self.ring_messages = RingMessages(self._ring, self._shortcuts, self._liveness, self._digest)
        opaque = config.accepts_opaque_ids
        self.replica = Replica(
            topic, log, node=node, incarnation=incarnation, accepts_opaque=opaque, config=config
        )
        self._broadcast = Broadcast(self._ring, self._shortcuts, self.replica, config)
        self.replication = Replication(self._ring, self._broadcast, self.replica, config)
        self._audit_ticks = 0  # since the last drop of derived values
        if state is not None:
            self._load(state)
        elif log is not None:
            self.replica.recover({})

    def handle(self, event: Event) -> list[Effect]:
        """Apply one event; return the effects in order."""
        out = Outbox()
        self.replica.end_event()
        match event:
            case Received():
                self._on_received(event, out)
            case RoutineReceived():
                self._on_routine(event, out)
            case Tick():
                self._on_tick(event, out)
            case Flush():
                self._broadcast.on_flush(out)
                self.replication.on_flush(out)
            case SubscribeRequested():
                self._on_subscribe_requested(out)
            case UnsubscribeRequested():
                self._on_unsubscribe_requested(out)
            case PublishRequested() | SubmitRequested() | ResendRequested():
                self._broadcast.publish(event, out)
            case SyncRequested():
                self.replication.ask_to_confirm(self.ring_neighbours(), out)
            case IndexRequested() | Overwritten() | Corrupted():
                self._on_host_request(event)
            case _:
                self.replication.on_handover_event(event, out)
        return out

    def _on_received(self, event: Received, out: Outbox) -> None:
        message, sender, kind = event.message, event.sender, type(event.message)
        if sender in self._unheard and kind is not Ping:
            self._unheard[sender] = HEARD
        is_member = self.wants or self._ring.me is not None
        handler = Broadcast.HANDLERS.get(kind)
        if handler is not None:
            if is_member:
                handler(self._broadcast, message, sender, out)
        elif kind in RingMessages.HANDLERS:
            RingMessages.HANDLERS[kind](self.ring_messages, message, out)
            self._invalidate_place()
            if kind is CheckLabel and not is_member:
                # The sender has an edge to this node, perhaps because it is still recorded (S2).
                out.send(SUPERVISOR, Unsubscribe(self.node))
        elif kind is SetConfiguration:
            if sender == SUPERVISOR and self._config.detects_failures:
                out.send(SUPERVISOR, ConfigurationAck())  # section 3.3
            self._on_set_configuration(message, out)  # type: ignore[arg-type]
        elif kind is Ping and sender == SUPERVISOR:
            out.send(SUPERVISOR, Pong(message.nonce))  # type: ignore[union-attr]
        else:
            self.replication.on_message(event, out, is_member=is_member)

    def _on_routine(self, event: RoutineReceived, out: Outbox) -> None:
        """Handle messages as ``_on_received`` does; a member does so in less time."""
        if not self.wants:
            for message in event.messages:
                self._on_received(Received(message, event.sender), out)
            return
        if event.sender in self._unheard:
            self._unheard[event.sender] = HEARD
        if self.ring_messages.on_routine(event, out):
            self._broadcast.invalidate_view()

    def repeat(self, event: RoutineReceived) -> bool:
        """Record routine messages that need no handling (decision 0055); return False if new."""
        is_known = self.wants and self.ring_messages.repeat(event)
        if is_known and event.sender in self._unheard:
            self._unheard[event.sender] = HEARD
        return is_known

    # -- periodic actions ------------------------------------------------------------------

    def _on_tick(self, event: Tick, out: Outbox) -> None:
        """Run the paper's Timeout."""
        me = self._ring.me
        if me is None:  # action i, B8
            if self.wants:
                out.send(SUPERVISOR, Subscribe(self.node))
            else:
                self._forget_all()
            return
        if not self.wants:
            out.send(SUPERVISOR, Unsubscribe(self.node))  # S2: until the supervisor confirms
        ring, rules = self._ring, self._config.rules
        self._audit_ticks = (self._audit_ticks + 1) % self._config.audit_ticks
        if self._audit_ticks == 0:
            self._drop_derived()
        tick = self.ring_messages.on_tick(me, out)
        neighbours = tick.neighbours
        digest = None
        if rules.digest:
            total = self._digest.on_tick(me, tick.children, tick.parent, out)
            digest = total if me.label.position == 0 else None  # R14: only the root reports
        alarmed = rules.neighbour_timeout and self._liveness.on_tick(neighbours)
        if ring.asks_supervisor(tick.length, self._rng) or alarmed:
            out.send(SUPERVISOR, GetConfiguration(self.node, digest))
        if not self.ring_messages.is_at_rest:
            self._broadcast.invalidate_view()
        self.replication.on_tick(neighbours, event, self._rng, out)
        if self._config.detects_failures:
            for node in self._liveness.unresponsive(neighbours, is_late=event.late):
                out.send(SUPERVISOR, ReportUnresponsive(node))

    def _drop_derived(self) -> None:
        """Drop all derived values, at every 16th tick, so that wrong values do not persist.

        The next use derives them again, at the cost of a label change, so a wrong value lasts for
        at most 16 ticks (``test_wrong_derived_values_are_corrected_within_16_ticks``).
        """
        self._shortcuts.drop_derived()
        self.ring_messages.drop_derived()
        self._digest.drop_derived()
        self._broadcast.drop_derived()
        self.replication.drop_derived()

    def neighbours(self) -> list[NodeId]:
        """Return all neighbours, the ring neighbours first."""
        return self._broadcast.neighbours()

    def ring_neighbours(self) -> list[NodeId]:
        """Return the distinct ring neighbours (T16)."""
        return self._ring.neighbour_nodes()

    # -- requests of the application ---------------------------------------------------------

    def _on_subscribe_requested(self, out: Outbox) -> None:
        self.wants = True
        self.replication.join()
        if self._ring.me is None:
            out.send(SUPERVISOR, Subscribe(self.node))

    def _on_unsubscribe_requested(self, out: Outbox) -> None:
        self.wants = False
        self.replication.leave()
        if self._ring.me is None:
            self._forget_all()
        # A node without a label may be recorded: its Subscribe may be in flight.
        out.send(SUPERVISOR, Unsubscribe(self.node))

    def _on_host_request(self, event: IndexRequested | Overwritten | Corrupted) -> None:
        """Handle a request of the host: indexing, or fault injection."""
        match event:
            case IndexRequested():
                self.replica.index_some(event.ids)
            case Overwritten(state=SubscriberState() as state):
                self._load(state)
            case Overwritten():
                pass  # the state of a supervisor
            case Corrupted():
                self.replica.index()
                self.replica.corrupt(event.digests)
            case _:
                assert_never(event)

    # -- messages --------------------------------------------------------------------------

    def _on_set_configuration(self, message: SetConfiguration, out: Outbox) -> None:
        """Apply a configuration (Algorithm 4, SetData)."""
        if message.label is None:
            self._on_unrecorded(out)
            self._invalidate_place()
        elif not self.wants:
            out.send(SUPERVISOR, Unsubscribe(self.node))  # S2
        else:
            if self.ring_messages.configure(message.label, message, out):
                self._broadcast.invalidate_view()
            self._liveness.confirm(p.node for p in (message.pred, message.succ) if p is not None)
            self.replication.on_configured(out)

    def _on_unrecorded(self, out: Outbox) -> None:
        """Leave if the application wants to, else subscribe at once (SetData(⊥, ⊥, ⊥), S2).

        Algorithm 4 asks about left, right and ring. With R11 a node that stays asks about its
        shortcuts as well, and a node that leaves asks about no node: S11 informs its neighbours.
        """
        was_labelled, wakes = self._ring.me is not None, self._config.rules.wake
        self._ring.remove_label()
        self.replication.on_unrecorded()
        if was_labelled and (self.wants or not wakes):
            for node in self.neighbours() if wakes else self.ring_neighbours():
                out.request_configuration(node)
        if self.wants:
            out.send(SUPERVISOR, Subscribe(self.node))
        else:
            self._forget_all()
            out.append(Unsubscribed())

    def _forget_all(self) -> None:
        self._ring.forget_all()
        self._shortcuts.forget_all()
        self._invalidate_place()

    def _invalidate_place(self) -> None:
        """Mark label and edges for a check, because they may have changed."""
        self.ring_messages.invalidate_place()
        self._broadcast.invalidate_view()

    # -- state as a value ------------------------------------------------------------------

    @property
    def member(self) -> bool:
        """Return True if the application wants this node in the ring."""
        return self.wants

    @property
    def label(self) -> Label | None:
        """Return v.label."""
        return self._ring.me.label if self._ring.me is not None else None

    @property
    def left(self) -> Peer | None:
        """Return v.left."""
        return self._ring.neighbours[LEFT]

    @property
    def right(self) -> Peer | None:
        """Return v.right."""
        return self._ring.neighbours[RIGHT]

    @property
    def ring(self) -> Peer | None:
        """Return v.ring: the wrap edge."""
        return self._ring.wrap

    def place(self) -> RingPlace:
        """Return label, edges and shortcuts as one value, to detect changes."""
        return self.ring_messages.place()

    def knows(self, event: Event) -> bool:
        """Return True if an event is a tick at rest, or known messages: it changes no edge."""
        return self.ring_messages.knows(event)

    @property
    def shortcuts(self) -> Mapping[Label, NodeId | None]:
        """Return v.shortcuts."""
        return self._shortcuts.slots

    @property
    def chains(self) -> Chains | None:
        """Return the cached shortcut chains."""
        return self._shortcuts.remembered

    def misplaced(self) -> int:
        """Return the number of ids in the trie whose offset does not hold their record."""
        stored = {offset: key for key, offset in self.replica.log.entries()}
        indexed = self.replica.indexed_trie.entries()
        return sum(stored.get(offset) != key for key, offset in indexed)

    @property
    def silence(self) -> dict[NodeId, LivenessState]:
        """Return the silence counters of the ring neighbours (R9)."""
        return self._liveness.states()

    @property
    def unheard(self) -> dict[NodeId, int]:
        """Return the ticks since the last message of each ring neighbour (section 3.3)."""
        return dict(self._unheard)

    @property
    def digests(self) -> Mapping[NodeId, int]:
        """Return the subtree digests that other nodes have sent (R14)."""
        return self._digest.heard

    def trie(self) -> PublicationTrie:
        """Return v.T, for queries."""
        return self.replica.trie()

    @property
    def count(self) -> int:
        """Return the number of publications; this costs less than the length of the trie."""
        return self.replica.count

    def batches(self) -> tuple[RecordBatch, ...]:
        """Return the stored batches, in log order."""
        log = self.replica.log
        return tuple([entry.batch for entry in log.read_range(0, log.end)])

    @property
    def has_to_flush(self) -> bool:
        """Return True if a Flush would have an effect."""
        replication = self.replication
        return self._broadcast.has_to_flush or replication.has_to_index or replication.has_to_drop

    def state(self) -> SubscriberState:
        """Return the machine's variables as a value, without its memory."""
        return SubscriberState(
            member=self.wants,
            label=self.label,
            left=self.left,
            right=self.right,
            ring=self.ring,
            shortcuts=dict(self._shortcuts.slots),
            silence=self.silence,
            digests=dict(self.digests),
            publications=self.batches(),
            hashes=self.replica.indexed_trie.wrong_digests(),
        )

    def memory(self) -> SubscriberMemory | None:
        """Return the other variables as a value; None if they are those of a new machine."""
        memory = replace(
            self.replication.memory(),
            spreading=self._broadcast.state(),
            announcing=self._broadcast.announced(),
            holdings=self.replica.state(),
            audit_ticks=self._audit_ticks,
            ask_ticks=self._ring.ask_ticks,
            chains=self._shortcuts.wrong_chains(),
            weight=self._digest.wrong_weight,
            unheard=self.unheard or None,
        )
        return memory if memory != SubscriberMemory() else None

    def _load(self, state: SubscriberState) -> None:
        """Replace the state, which may be corrupted, but not the log; no memory replaces none."""
        self.wants = state.member
        me = Peer(state.label, self.node) if state.label is not None else None
        self._ring.load(me, state.left, state.right, state.ring)
        self._shortcuts.load_slots(state.shortcuts)
        self._liveness.load(state.silence)
        self.ring_messages.drop_derived()
        self._digest.load(state.digests)
        self.replica.recover(state.hashes)
        self._broadcast.on_recovered()
        if state.memory is not None:
            self._audit_ticks = state.memory.audit_ticks
            self._ring.load_counter(state.memory.ask_ticks)
            self._shortcuts.load(state.memory.chains)
            self._unheard.clear()
            self._unheard.update(state.memory.unheard or {})
            self._digest.load_weight(self._ring.me, state.memory.weight)
            self.replica.load(state.memory.holdings)
            self._broadcast.load(state.memory.spreading, state.memory.announcing)
            self.replication.load(state.memory)
            self.replica.corrupt(state.hashes)
