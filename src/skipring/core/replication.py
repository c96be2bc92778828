"""Replication of stored publications: comparison, backfill and handover (Algorithm 5).

Broadcast sends new publications; this part of a subscriber finds and transfers missing ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar, assert_never

from msgspec.structs import replace

from skipring.core import log_pages
from skipring.core.antientropy import AntiEntropy
from skipring.core.backfill import BackfillClient
from skipring.core.broadcast import Broadcast
from skipring.core.config import ProtocolConfig
from skipring.core.confirmations import Completeness, SyncConfirmations
from skipring.core.drain import Drain
from skipring.core.effects import Outbox, PeerInSync
from skipring.core.events import (
    DrainRequested,
    NodeSuspected,
    Received,
    ReplicationRequested,
    Tick,
)
from skipring.core.handover import Handovers
from skipring.core.log_messages import NOT_A_MEMBER, FetchLog, GetLogInfo, LogInfo, LogPage, Refused
from skipring.core.messages import (
    CheckAndPublish,
    CheckHeld,
    CheckTrie,
    Draining,
    HandoverDone,
    Held,
    Message,
    Publications,
    RemoveConnections,
    RequestHandover,
    Terms,
    TrieEqual,
)
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.replica import Replica
from skipring.core.ring import Ring
from skipring.core.state import DrainState, HandoversState, SubscriberMemory
from skipring.core.terms import TermsExchange, load_terms
from skipring.core.transfers import TransferTracker


class Replication:
    """Replication at one subscriber: anti-entropy, backfill, handover and drain."""

    __slots__ = (
        "_backfill",
        "_broadcast",
        "_completeness",
        "_config",
        "_drain",
        "_handovers",
        "_repair",
        "_replica",
        "_ring",
        "_sync",
        "_transfers",
    )

    def __init__(
        self, ring: Ring, broadcast: Broadcast, replica: Replica, config: ProtocolConfig
    ) -> None:
        self._ring = ring
        self._broadcast = broadcast
        self._replica = replica
        self._config = config
        self._transfers = TransferTracker(config)
        self._repair = AntiEntropy(ring.node, replica, self._transfers, config)
        self._backfill = BackfillClient(replica, self._transfers, config)
        self._sync = SyncConfirmations(config)
        self._completeness = Completeness()
        self._handovers: Handovers | None = None  # None until the first handover
        self._drain: Drain | None = None  # None unless this node or another one leaves

    # -- queries -------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Return True if neighbours have handed over everything that they held when asked."""
        return self._completeness.is_complete

    @property
    def in_sync(self) -> frozenset[NodeId]:
        """Return the ring neighbours that have confirmed being in sync since the last repair."""
        return frozenset(self._sync.nodes)

    @property
    def terms(self) -> TermsExchange | None:
        """Return the exchange of terms; None in a topic without a charter."""
        return self._repair.terms

    @property
    def is_backfilling(self) -> bool:
        """Return True during a backfill."""
        return self._backfill.run is not None

    @property
    def is_first_backfill(self) -> bool:
        """Return True during a backfill if the node has no publications of an earlier run."""
        run = self._backfill.run
        return run is not None and not run.held

    @property
    def is_leaving(self) -> bool:
        """Return True if the application drains this node or has asked to leave."""
        return self._drain is not None and self._drain.is_leaving

    def drain_candidates(self) -> list[NodeId]:
        """Return the nodes to which a drain may hand over."""
        neighbours = self._broadcast.neighbours()
        return neighbours if self._drain is None else self._drain.candidates(neighbours)

    @property
    def unconfirmed(self) -> int:
        """Return an upper bound on the publications that a drain's receiver has not confirmed."""
        return self._drain.unconfirmed if self._drain is not None else 0

    # -- requests of the application -----------------------------------------------------------

    def join(self) -> None:
        """Expect a backfill, and accept handovers: the node has joined the topic."""
        if self._drain is not None:
            self._drain.stay()
        self._backfill.on_joined()

    def leave(self) -> None:
        """Accept no handover and drop the backfill: the node leaves the topic."""
        self._ensure_drain().leave()
        self._backfill.forget()

    def on_configured(self, out: Outbox) -> None:
        """Start an expected backfill, because a configuration has named neighbours."""
        if self._backfill.is_expected:
            self._backfill.maybe_start(self._broadcast.neighbours(), out)

    def on_unrecorded(self) -> None:
        """Mark this node as incomplete: the supervisor does not record it."""
        self._completeness.reset()

    def ask_to_confirm(self, partners: Iterable[NodeId], out: Outbox) -> None:
        """Ask partners whether their tries equal this node's (T19)."""
        self._repair.ask_to_confirm(partners, out)

    # -- handover (decision 0049) --------------------------------------------------------------

    def on_handover_event(
        self, event: DrainRequested | ReplicationRequested | NodeSuspected, out: Outbox
    ) -> None:
        """Handle a handover request, or a report of an unreachable node."""
        match event:
            case DrainRequested():
                self._request_drain(event, out)
            case ReplicationRequested():
                self._request_replication(event, out)
            case NodeSuspected():
                # Section 3.3: one failure detector, at the supervisor, is enough for the ring.
                self._on_absent(event.node, out)
            case _:
                assert_never(event)

    def _request_drain(self, event: DrainRequested, out: Outbox) -> None:
        """Hand over the publications of this node before it leaves."""
        self._ensure_drain().request(event, self._broadcast.neighbours(), out)
        self._finish_handovers(out)

    def _request_replication(self, event: ReplicationRequested, out: Outbox) -> None:
        """Hand publications over to some nodes until these confirm them."""
        for node in event.nodes:
            self._ensure_handovers().start(node, out, ids=event.ids)

    def _request_completeness(self, neighbours: list[NodeId], out: Outbox) -> None:
        """Ask a ring neighbour to hand everything over, except while a history arrives."""
        if not self._transfers.is_receiving:
            drain = self._drain
            leaving = frozenset(filter(drain.is_known_to_leave, neighbours) if drain else ())
            self._completeness.request(self._ring.node, neighbours, leaving, out)

    def _on_absent(self, node: NodeId, out: Outbox) -> None:
        """Record that the host cannot reach a node."""
        if self._drain is not None:
            self._drain.on_absent(node, self._broadcast.neighbours(), out)
            self._finish_handovers(out)

    def _finish_handovers(self, out: Outbox) -> None:
        """Remove the finished handovers, and end the drain with its handover."""
        handovers = self._handovers
        if handovers is None or not handovers.by_receiver:
            return
        over = handovers.finished(out, is_complete=self._completeness.is_complete)
        if over and self._drain is not None:
            self._drain.on_finished(over, out)

    def _ensure_handovers(self) -> Handovers:
        if self._handovers is None:
            self._handovers = Handovers(self._ring.node, self._replica, self._config)
        return self._handovers

    def _ensure_drain(self) -> Drain:
        if self._drain is None:
            self._drain = Drain(self._ring.node, self._replica, self._ensure_handovers())
        return self._drain

    # -- periodic actions ---------------------------------------------------------------------

    def on_tick(self, ring_neighbours: list[NodeId], event: Tick, rng: Random, out: Outbox) -> None:
        """Run PublishTimeout, and the periodic actions of handovers, drain and backfill."""
        broadcast, config = self._broadcast, self._config
        if self._replica.retention is not None:
            self._repair.ensure_terms().on_tick(
                event, ring_neighbours, broadcast.levels, config, out
            )
        broadcast.on_tick()
        if broadcast.news_ticks:
            self._repair.reset_backoff()  # the tries may differ now (T18)
        if not config.repairs:
            self._replica.renew_credits()
        elif self._repair.on_tick(out, scrubs=event.scrubs):
            self._repair.start_session(self._partners(ring_neighbours), rng, out)
        self._tick_handovers(out)
        backfill = self._backfill
        if backfill.run is not None or backfill.is_expected:
            backfill.on_tick(broadcast.neighbours(), out, is_throttled=event.throttled)
        if config.requests_handover and (backfill.run is None or not backfill.is_awaited):
            self._request_completeness(ring_neighbours, out)
        if config.confirms_sync and self._sync.on_tick(ring_neighbours):
            self.ask_to_confirm(ring_neighbours, out)

    def _tick_handovers(self, out: Outbox) -> None:
        """Repeat questions of handovers; advance the drain, and drop it once it is over."""
        if self._handovers is not None and self._handovers.by_receiver:
            self._handovers.on_tick(out)
        drain = self._drain
        if drain is not None:
            drain.on_tick(self._broadcast.neighbours() if drain.is_leaving else (), out)
            if not drain.is_in_use:
                self._drain = None
        self._finish_handovers(out)

    def drop_derived(self) -> None:
        """Drop the cached claim, which may be corrupted; the next use derives it again."""
        self._repair.drop_derived()

    def _partners(self, ring_neighbours: list[NodeId]) -> list[NodeId]:
        """Return the partners of this tick (R16); none while new publications are in flight."""
        if self._broadcast.is_busy:
            return []
        if self._config.rules.repair_over_shortcuts:
            return self._broadcast.neighbours()
        return ring_neighbours

    @property
    def has_to_index(self) -> bool:
        """Return True if this node should index and hash now: it is quiet, or has a backlog."""
        if not (self._config.defers_indexing and self._repair.is_behind):
            return False
        return self._broadcast.is_quiet or self._replica.has_index_backlog

    @property
    def has_to_drop(self) -> bool:
        """Return True if many batches wait to be dropped, or to be indexed for that."""
        return self._repair.terms is not None and self._repair.terms.has_to_drop

    def on_flush(self, out: Outbox) -> None:
        """Index and hash a slice if it is time; drop a slice of batches."""
        if self.has_to_index:
            self._repair.index_some()
        if self._repair.terms is not None:
            self._repair.terms.drop_some(self._config.dropped_batches, out)

    # -- state as a value ----------------------------------------------------------------------

    def memory(self) -> SubscriberMemory:
        """Return the variables as a value, without those of broadcast and replica."""
        terms, retention = self._repair.terms, self._replica.retention
        return SubscriberMemory(
            repair=self._repair.state(),
            histories=self._transfers.state(),
            scrub=self._repair.scrub,
            handovers=self._handovers.state() if self._handovers else HandoversState(),
            drain=self._drain.state() if self._drain else DrainState(),
            completeness=self._completeness.state(),
            backfill=self._backfill.state(),
            sync=self._sync.state(),
            exchange=terms.state() if terms is not None else None,
            terms=retention.state() if retention is not None else None,
        )

    def load(self, memory: SubscriberMemory) -> None:
        """Replace the variables; the value may be corrupted."""
        self._repair.load(memory.repair, memory.scrub)
        self._transfers.load(memory.histories)
        self._handovers = self._drain = None
        if memory.handovers != HandoversState():
            self._ensure_handovers().load(memory.handovers)
        if memory.drain != DrainState():
            self._ensure_drain().load(memory.drain)
        self._completeness.load(memory.completeness)
        self._backfill.load(memory.backfill)
        self._sync.load(memory.sync)
        if memory.exchange is not None:
            self._repair.ensure_terms().load(memory.exchange)
        if memory.terms is not None:
            load_terms(self._replica, memory.terms)

    # -- messages ----------------------------------------------------------------------------

    def on_message(self, event: Received, out: Outbox, *, is_member: bool) -> None:
        """Dispatch a message of Algorithm 5, a handover or a backfill to its handler."""
        message, handler = event.message, self.HANDLERS.get(type(event.message))
        if handler is None:
            self._on_log_message(event, out, is_member=is_member)
        elif is_member:
            handler(self, message, event.sender, out)
        else:
            self._on_message_after_leaving(message, out)

    def _on_message_after_leaving(self, message: Message, out: Outbox) -> None:
        """Ask a node that still considers this one a member to forget it (as B7)."""
        kinds = CheckTrie | CheckAndPublish | CheckHeld | RequestHandover
        if isinstance(message, kinds) and message.sender not in (self._ring.node, SUPERVISOR):
            out.send(message.sender, RemoveConnections(self._ring.node))

    def _on_publications(self, message: Publications, sender: NodeId | None, out: Outbox) -> None:
        taken = self._repair.on_publications(message, sender, out)
        if taken:
            self._sync.reset()
        retention = self._replica.retention
        if retention is not None and retention.is_stale:
            taken = tuple(each for each in taken if not retention.withholds(each))
        self._broadcast.announce(taken, sender)

    def _on_check(
        self, message: CheckTrie | CheckAndPublish, sender: NodeId | None, out: Outbox
    ) -> None:
        del sender
        self._repair.on_check(message, out)

    def _on_trie_equal(self, message: TrieEqual, sender: NodeId | None, out: Outbox) -> None:
        del sender
        if self._repair.is_equal(message):
            if self._repair.terms is not None:
                self._repair.terms.on_equal(message.terms)
            self._sync.add(message.sender)
            out.append(PeerInSync(message.sender, message.root))

    def _on_terms(self, message: Terms, sender: NodeId | None, out: Outbox) -> None:
        del sender
        neighbours, batches = self._ring.neighbour_nodes(), self._config.dropped_batches
        self._repair.ensure_terms().on_terms(message, neighbours, batches, out)
        self._repair.reset_backoff()

    def _on_check_held(self, message: CheckHeld, sender: NodeId | None, out: Outbox) -> None:
        del sender
        if self.is_leaving:
            self._refuse(message.sender, out)
            return
        if self._transfers.is_reading:  # comparing waits for the backfill; single ids do not
            message = replace(message, claims=())
        self._ensure_handovers().on_check_held(message, out)

    def _refuse(self, node: NodeId, out: Outbox) -> None:
        if node not in (self._ring.node, SUPERVISOR):
            self._ensure_drain().announce((node,), self._broadcast.neighbours(), out)

    def _on_held(self, message: Held, sender: NodeId | None, out: Outbox) -> None:
        del sender
        drain = self._drain
        is_refused = drain and drain.refuses(message, self._broadcast.neighbours(), out)
        if self._handovers is not None and not is_refused:
            self._handovers.on_held(message, out)
        self._finish_handovers(out)

    def _on_draining(self, message: Draining, sender: NodeId | None, out: Outbox) -> None:
        del sender
        self._ensure_drain().on_draining(message, self._broadcast.neighbours(), out)
        self._finish_handovers(out)

    def _on_request_handover(
        self, message: RequestHandover, sender: NodeId | None, out: Outbox
    ) -> None:
        del sender
        if self.is_leaving:
            self._refuse(message.sender, out)
        elif not self._transfers.is_reading:
            self._ensure_handovers().on_request(message, self._broadcast.neighbours(), out)
            self._finish_handovers(out)

    def _on_handover_done(self, message: HandoverDone, sender: NodeId | None, out: Outbox) -> None:
        del sender, out
        self._completeness.on_done(message, self._ring.neighbour_nodes())

    # -- backfill ----------------------------------------------------------------------------

    def _on_log_message(self, event: Received, out: Outbox, *, is_member: bool) -> None:
        """Handle a request for the log, or a response; drop requests to a supervisor."""
        message, sender = event.message, event.sender
        match message:
            case GetLogInfo() | FetchLog() if sender not in (None, self._ring.node):
                assert sender is not None
                if is_member:
                    out.send(sender, log_pages.answer(self._replica, message))
                else:
                    out.send(sender, Refused(message.request, NOT_A_MEMBER))
            case LogInfo() | LogPage() | Refused():
                throttled = event.throttled
                if self._backfill.on_answer(sender, message, out, is_throttled=throttled):
                    self._sync.reset()
                    self._repair.reset_backoff()
            case _:
                pass

    HANDLERS: ClassVar[Mapping[type, Callable[[Replication, Any, NodeId | None, Outbox], None]]] = (
        MappingProxyType(
            {
                Publications: _on_publications,
                CheckTrie: _on_check,
                CheckAndPublish: _on_check,
                TrieEqual: _on_trie_equal,
                Terms: _on_terms,
                CheckHeld: _on_check_held,
                Held: _on_held,
                Draining: _on_draining,
                RequestHandover: _on_request_handover,
                HandoverDone: _on_handover_done,
            }
        )
    )
