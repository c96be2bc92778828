"""Replication of publications: receive, forward, store and compare (Algorithm 5).

This half of a subscriber handles publications; the other half handles its place in the ring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar, assert_never

from msgspec.structs import replace

from skipring.core import log_pages
from skipring.core.antientropy import AntiEntropy
from skipring.core.backfill import BackfillClient, TransferTracker
from skipring.core.broadcast import Broadcast
from skipring.core.config import ProtocolConfig
from skipring.core.confirmations import Completeness, SyncConfirmations
from skipring.core.drain import Drain
from skipring.core.effects import Outbox, PeerInSync
from skipring.core.events import (
    DrainRequested,
    NodeSuspected,
    PublishManyRequested,
    PublishRequested,
    Received,
    ReplicationRequested,
    ResendRequested,
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
    IHave,
    Publications,
    PublishMany,
    PublishNew,
    RequestHandover,
    TrieEqual,
    Want,
)
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.prefix import Prefix
from skipring.core.publications import Publication, with_payload
from skipring.core.replica import Replica
from skipring.core.ring import Ring
from skipring.core.shortcuts import Shortcuts
from skipring.core.state import SubscriberMemory


class Replication:
    """Replication at one subscriber: broadcast, anti-entropy, backfill and handover."""

    __slots__ = (
        "_config",
        "_handovers",
        "_repair",
        "_ring",
        "_transfers",
        "backfill",
        "broadcast",
        "completeness",
        "drain",
        "replica",
        "sync",
    )

    def __init__(
        self, ring: Ring, shortcuts: Shortcuts, replica: Replica, config: ProtocolConfig
    ) -> None:
        self.replica = replica
        self.broadcast = Broadcast(ring, shortcuts, replica, config)
        self._config = config
        self._transfers = TransferTracker(config)
        self._repair = AntiEntropy(ring.node, replica, self._transfers, config)
        self.backfill = BackfillClient(replica, self._transfers, config)
        self.sync = SyncConfirmations(config)
        self._ring = ring
        self._handovers = Handovers(ring.node, replica, config)
        self.drain = Drain(ring.node, replica, self._handovers)
        self.completeness = Completeness()

    # -- requests of the application and the host ---------------------------------------------

    def publish(
        self, event: PublishRequested | PublishManyRequested | ResendRequested, out: Outbox
    ) -> None:
        """Store and broadcast publications of the application, or broadcast them again."""
        self.persist_deferred(out)
        if isinstance(event, ResendRequested):
            self.broadcast.resend(event.ids, out)
            return
        requests = event.requests if isinstance(event, PublishManyRequested) else (event,)
        self.broadcast.publish(requests, out)
        self._repair.reset_backoff()

    def ask_to_confirm(self, partners: Iterable[NodeId], out: Outbox) -> None:
        """Ask partners whether their tries equal this node's (T19)."""
        self.persist_deferred(out)
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
        self.persist_deferred(out)
        self.drain.request(event, self.broadcast.neighbours(), out)
        self._finish_handovers(out)

    def _request_replication(self, event: ReplicationRequested, out: Outbox) -> None:
        """Hand publications over to some nodes until these confirm them."""
        self.persist_deferred(out)
        for node in event.nodes:
            self._handovers.start(node, out, ids=event.ids)

    def _request_completeness(self, out: Outbox) -> None:
        """Ask a ring neighbour to hand everything over, except while a history arrives."""
        if not self._transfers.is_receiving:
            neighbours = self._ring.neighbour_nodes()
            leaving = frozenset(filter(self.drain.is_known_to_leave, neighbours))
            self.completeness.request(self._ring.node, neighbours, leaving, out)

    def _on_absent(self, node: NodeId, out: Outbox) -> None:
        """Record that the host cannot reach a node."""
        self.drain.on_absent(node, self.broadcast.neighbours(), out)
        self._finish_handovers(out)

    def _finish_handovers(self, out: Outbox) -> None:
        over = self._handovers.finished(out, is_complete=self.completeness.is_complete)
        if over:
            self.drain.on_finished(over, out)

    # -- periodic actions ---------------------------------------------------------------------

    def on_tick(
        self, ring_neighbours: list[NodeId], rng: Random, out: Outbox, *, is_throttled: bool
    ) -> None:
        """Run PublishTimeout, and the periodic actions of handovers and drain."""
        self.broadcast.on_tick()
        if self._config.repairs:
            self._repair.on_tick(self._partners(ring_neighbours, out), rng, out)
        else:
            self.replica.renew_credits()
        self._handovers.on_tick(out)
        self.drain.on_tick(self.broadcast.neighbours() if self.drain.is_leaving else (), out)
        self._finish_handovers(out)
        self.backfill.on_tick(self.broadcast.neighbours(), out, is_throttled=is_throttled)
        if self._config.requests_handover and not self.backfill.is_awaited:
            self._request_completeness(out)
        if self._config.confirms_sync and self.sync.on_tick(ring_neighbours):
            self.ask_to_confirm(ring_neighbours, out)

    def drop_derived(self) -> None:
        """Drop derived values, which may be corrupted; the next use derives them again."""
        self.broadcast.drop_derived()
        self._repair.drop_derived()

    def _partners(self, ring_neighbours: list[NodeId], out: Outbox) -> list[NodeId]:
        """Return the partners of this tick (R16); none while new publications are in flight."""
        if self.broadcast.is_busy:
            return []
        self.persist_deferred(out)
        if self._config.rules.repair_over_shortcuts:
            return self.broadcast.neighbours()
        return ring_neighbours

    @property
    def has_to_flush(self) -> bool:
        """Return True if a Flush would have an effect."""
        return self.broadcast.has_to_flush or self._has_to_work_off

    @property
    def _has_to_work_off(self) -> bool:
        """Return True if this node should index and hash now: it is quiet, or has a backlog."""
        is_time = self.broadcast.is_quiet or self.replica.has_index_backlog
        return self._config.defers_storage and self._repair.is_behind and is_time

    def on_flush(self, out: Outbox) -> None:
        """Send deferred announcements; index and hash a slice if it is time."""
        self.broadcast.on_flush(out)
        if self._has_to_work_off:
            self._repair.index_some()

    def persist_deferred(self, out: Outbox) -> None:
        """Store and index delivered publications; call this before reading the replica."""
        self.broadcast.persist_deferred(out)

    def recover(self, wrong_digests: Mapping[Prefix, bytes]) -> None:
        """Index the log; delivered publications that are not stored yet stay known."""
        self.replica.recover(wrong_digests)
        self.broadcast.on_recovered()

    # -- state as a value ----------------------------------------------------------------------

    def memory(self) -> SubscriberMemory:
        """Return the variables besides the publications as a value."""
        return SubscriberMemory(
            spreading=self.broadcast.state(),
            announcing=self.broadcast.announced(),
            repair=self._repair.state(),
            histories=self._transfers.state(),
            scrub=self._repair.scrub,
            holdings=self.replica.state(),
            handovers=self._handovers.state(),
            drain=self.drain.state(),
            completeness=self.completeness.state(),
            backfill=self.backfill.state(),
            sync=self.sync.state(),
        )

    def load(self, memory: SubscriberMemory) -> None:
        """Replace the variables; the value may be corrupted."""
        self.replica.load(memory.holdings)
        self.broadcast.load(memory.spreading, memory.announcing)
        self._repair.load(memory.repair, memory.scrub)
        self._transfers.load(memory.histories)
        self._handovers.load(memory.handovers)
        self.drain.load(memory.drain)
        self.completeness.load(memory.completeness)
        self.backfill.load(memory.backfill)
        self.sync.load(memory.sync)

    # -- messages ----------------------------------------------------------------------------

    def on_message(self, message: object, sender: NodeId | None, out: Outbox) -> None:
        """Dispatch a publication message to its handler."""
        self.HANDLERS[type(message)](self, message, sender, out)

    def _on_publish_new(self, message: PublishNew, sender: NodeId | None, out: Outbox) -> None:
        self._on_new((message.publication,), message.hops, sender, out)

    def _on_publish_many(self, message: PublishMany, sender: NodeId | None, out: Outbox) -> None:
        self._on_new(message.publications, message.hops, sender, out)

    def _on_new(
        self,
        publications: tuple[Publication, ...],
        hops: int,
        sender: NodeId | None,
        out: Outbox,
    ) -> None:
        self.broadcast.on_new(publications, hops, sender, out)
        if out.effects:
            self._repair.reset_backoff()

    def _on_publications(self, message: Publications, sender: NodeId | None, out: Outbox) -> None:
        self.persist_deferred(out)
        shown = with_payload(message.publications, opaque=self._config.accepts_opaque_ids)
        taken = self._repair.on_publications(Publications(shown, message.session), sender, out)
        if taken:
            self.sync.reset()
        self.broadcast.announce(taken, sender)

    def _on_check(
        self, message: CheckTrie | CheckAndPublish, sender: NodeId | None, out: Outbox
    ) -> None:
        del sender
        self.persist_deferred(out)
        self._repair.on_check(message, out)

    def _on_trie_equal(self, message: TrieEqual, sender: NodeId | None, out: Outbox) -> None:
        del sender
        self.persist_deferred(out)
        if self._repair.is_equal(message):
            self.sync.add(message.sender)
            out.effects.append(PeerInSync(message.sender, message.root))

    def _on_ihave(self, message: IHave, sender: NodeId | None, out: Outbox) -> None:
        del sender, out
        self.broadcast.on_ihave(message)

    def _on_want(self, message: Want, sender: NodeId | None, out: Outbox) -> None:
        del sender
        self.persist_deferred(out)
        self.broadcast.on_want(message, out)

    def _on_check_held(self, message: CheckHeld, sender: NodeId | None, out: Outbox) -> None:
        del sender
        if self.drain.is_leaving:
            self._refuse(message.sender, out)
            return
        self.persist_deferred(out)
        if self._transfers.is_reading:  # comparing waits for the backfill; single ids do not
            message = replace(message, claims=())
        self._handovers.on_check_held(message, out)

    def _refuse(self, node: NodeId, out: Outbox) -> None:
        if node not in (self._ring.node, SUPERVISOR):
            self.drain.announce((node,), self.broadcast.neighbours(), out)

    def _on_held(self, message: Held, sender: NodeId | None, out: Outbox) -> None:
        del sender
        self.persist_deferred(out)
        if not self.drain.refuses(message, self.broadcast.neighbours(), out):
            self._handovers.on_held(message, out)
        self._finish_handovers(out)

    def _on_draining(self, message: Draining, sender: NodeId | None, out: Outbox) -> None:
        del sender
        self.persist_deferred(out)
        self.drain.on_draining(message, self.broadcast.neighbours(), out)
        self._finish_handovers(out)

    def _on_request_handover(
        self, message: RequestHandover, sender: NodeId | None, out: Outbox
    ) -> None:
        del sender
        if self.drain.is_leaving:
            self._refuse(message.sender, out)
        elif not self._transfers.is_reading:
            self.persist_deferred(out)
            self._handovers.on_request(message, self.broadcast.neighbours(), out)
            self._finish_handovers(out)

    def _on_handover_done(self, message: HandoverDone, sender: NodeId | None, out: Outbox) -> None:
        del sender, out
        self.completeness.on_done(message, self._ring.neighbour_nodes())

    # -- backfill ----------------------------------------------------------------------------

    def on_log_message(self, event: Received, out: Outbox, *, is_member: bool) -> None:
        """Handle a request for the log, or a response; drop requests to a supervisor."""
        message, sender = event.message, event.sender
        match message:
            case GetLogInfo() | FetchLog() if sender not in (None, self._ring.node):
                assert sender is not None
                if is_member:
                    self.persist_deferred(out)
                    out.send(sender, log_pages.answer(self.replica, message))
                else:
                    out.send(sender, Refused(message.request, NOT_A_MEMBER))
            case LogInfo() | LogPage() | Refused():
                self.persist_deferred(out)
                throttled = event.throttled
                if self.backfill.on_answer(sender, message, out, is_throttled=throttled):
                    self.sync.reset()
                    self._repair.reset_backoff()
            case _:
                pass

    # Hot path: one lookup from the type of a message to its method.
    HANDLERS: ClassVar[Mapping[type, Callable[[Replication, Any, NodeId | None, Outbox], None]]] = (
        MappingProxyType(
            {
                PublishNew: _on_publish_new,
                PublishMany: _on_publish_many,
                Publications: _on_publications,
                CheckTrie: _on_check,
                CheckAndPublish: _on_check,
                TrieEqual: _on_trie_equal,
                IHave: _on_ihave,
                Want: _on_want,
                CheckHeld: _on_check_held,
                Held: _on_held,
                Draining: _on_draining,
                RequestHandover: _on_request_handover,
                HandoverDone: _on_handover_done,
            }
        )
    )
