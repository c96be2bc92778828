"""Broadcast of new publications (section 4.3): flood, tree, and the choice between them.

The flood sends a publication over every edge. The labels also define a tree with one message for
each member, but a lost tree edge cuts off the subtree behind it. The other edges therefore carry
short ids at the next Flush (lazy push), and a node floods if its view of the ring changed recently
or lacks a tree edge. Anti-entropy repairs the rest.

A node verifies, stores, delivers and forwards a new batch in one event. It indexes the id later,
many at once (``Replica``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeAlias

from msgspec import Struct

from skipring.core.batches import BatchRecord, RecordBatch, batch_part, in_chunks
from skipring.core.config import ProtocolConfig, Spread
from skipring.core.effects import Origin, Outbox, Send
from skipring.core.events import PublishRequested, ResendRequested, SubmitRequested
from skipring.core.lazy_push import Announcement, LazyPush
from skipring.core.messages import HOPS_MAX, IHave, PublishMany, PublishNew, Want
from skipring.core.peers import SUPERVISOR, NodeId, Peer
from skipring.core.replica import Replica
from skipring.core.ring import Ring
from skipring.core.shortcuts import Shortcuts, derived_chains
from skipring.core.state import BroadcastState, LazyPushState
from skipring.core.topology import Chains

ChainsOf: TypeAlias = Callable[[Peer, Peer | None, Peer | None], Chains]


_ARRIVED_MAX: Final = 1024  # Guess: messages until their ids are queued for announcement.


class _Route(Struct, frozen=True, gc=False):
    """Receivers of publications from one sender, and all nodes known to have them afterwards."""

    nodes: tuple[NodeId, ...]
    holders: frozenset[NodeId | None]


class Broadcast:
    """Broadcast of one subscriber: forwarding and lazy push."""

    __slots__ = (
        "_arrived",
        "_calm_ticks",
        "_config",
        "_edges",
        "_has_news",
        "_is_view_sure",
        "_lazy_push",
        "_levels",
        "_replica",
        "_ring",
        "_routes",
        "_shortcuts",
        "_view",
        "news_ticks",
    )

    def __init__(
        self, ring: Ring, shortcuts: Shortcuts, replica: Replica, config: ProtocolConfig
    ) -> None:
        self._ring = ring
        self._shortcuts = shortcuts
        self._replica = replica
        self._config = config
        self._calm_ticks = 0
        self._view = 0
        self._is_view_sure = False  # False if the view may have changed
        self._edges: list[NodeId | None] | None = None  # tree edges in this view
        # By sender; valid until the view may have changed.
        self._routes: dict[NodeId | None, _Route] | None = None
        self._levels = 0  # levels of the ring, estimated from this view
        self._lazy_push: LazyPush | None = None  # None uses less memory
        # New ids that are not queued for announcement yet: for each message the ids, the hops, and
        # the nodes that have them. Queueing many at once costs less.
        self._arrived: list[tuple[list[bytes], int, frozenset[NodeId | None]]] = []
        self._has_news = False  # messages or requests with publications since the last tick
        self.news_ticks = 0  # ticks in a row with new publications

    @property
    def has_to_flush(self) -> bool:
        """Return True if announcements or requests wait for a Flush."""
        lazy_push = self._lazy_push
        return bool(self._arrived) or (lazy_push is not None and lazy_push.has_pending)

    # -- neighbours and tree edges ---------------------------------------------------------

    def neighbours(self) -> list[NodeId]:
        """Return all neighbours: left, right, ring and shortcuts."""
        nodes = dict.fromkeys(
            [*(peer.node for peer in self._ring.peers()), *self._shortcuts.nodes()]
        )
        return [node for node in nodes if node not in (self._ring.node, SUPERVISOR)]

    def tree_edges(self) -> list[NodeId | None]:
        """Return parent and children in the tree; None stands for an unknown end of an edge."""
        self._refresh_view()
        if self._edges is None:
            self._edges = self._derived_tree_edges(self._shortcuts.chains)
        return self._edges

    def _derived_tree_edges(self, chains_of: ChainsOf) -> list[NodeId | None]:
        ring, shortcuts, me = self._ring, self._shortcuts, self._ring.me
        if me is None:
            return [None]
        pred, succ = ring.pred, ring.succ
        chains = chains_of(me, pred, succ)
        labels = [*chains.children, *([chains.parent] if chains.parent is not None else [])]
        nodes = dict.fromkeys(shortcuts.holder(label, pred, succ) for label in labels)
        return [node for node in nodes if node not in (ring.node, SUPERVISOR)]

    def on_tick(self) -> None:
        """Count ticks without a change of the view, and ticks with new publications."""
        self._refresh_view()
        # Memory may be corrupted: a counter below 0 counts as 0.
        self._calm_ticks = self._calm_ticks + 1 if self._calm_ticks > 0 else 1
        self.news_ticks = self.news_ticks + 1 if self._has_news else 0
        self._has_news = False
        if self.news_ticks == 0 and (self._arrived or self._lazy_push is not None):
            self._forget_stored()  # a stored publication may be lost by now

    @property
    def levels(self) -> int:
        """Return the estimated levels of the ring."""
        return self._levels

    @property
    def is_quiet(self) -> bool:
        """Return True if no new publication arrived in the last full tick or since."""
        return not self._has_news and self.news_ticks == 0

    @property
    def is_busy(self) -> bool:
        """Return True while new publications are in flight; comparing tries would only find those.

        Under steady publishing, return False in one of ``news_ticks`` ticks.
        """
        return self.news_ticks % self._config.news_ticks != 0

    def drop_derived(self) -> None:
        """Drop tree edges and routes, and derive levels again: memory may be corrupted."""
        self._edges = self._routes = None
        self._levels = self._derived_levels()

    def invalidate_view(self) -> None:
        """Mark the view for a check, because it may have changed."""
        self._is_view_sure = False

    def _refresh_view(self) -> None:
        """Drop derived values and restart the calm period if the view has changed."""
        if self._is_view_sure:
            return
        self._is_view_sure = True
        self._routes = None
        view = self._derived_view()
        if view != self._view:
            self._view, self._calm_ticks = view, 0
            self._edges = None
            self._levels = self._derived_levels()

    def _derived_view(self) -> int:
        ring, slots = self._ring, self._shortcuts.slots
        return hash((ring.me, *ring.neighbours, ring.wrap, *slots, *slots.values()))

    def _derived_levels(self) -> int:
        ring = self._ring
        known = (ring.me, *ring.neighbours, ring.wrap)
        return max((each.label.length for each in known if each is not None), default=0)

    def _is_calm(self) -> bool:
        """Return True if the view last changed log n + 4 or more ticks ago (log n: an estimate)."""
        return self._calm_ticks >= self._levels + self._config.calm_ticks

    # -- new publications ------------------------------------------------------------------

    def publish(
        self, event: PublishRequested | SubmitRequested | ResendRequested, out: Outbox
    ) -> None:
        """Store and broadcast records of the application or batches of a client.

        ResendRequested broadcasts stored batches again.
        """
        if isinstance(event, ResendRequested):
            self._resend(event.ids, out)
            return
        self._has_news = True
        created = (
            event.batches if isinstance(event, SubmitRequested) else self._batched(event.records)
        )
        added = self._replica.add(created, out, origin=Origin.OWN)
        for part in in_chunks(added, self._config.chunk_bytes):
            self._announce_later(part, 0, self._forward(part, 0, None, out))

    def _batched(self, records: Sequence[BatchRecord]) -> list[RecordBatch]:
        """Assign numbers to records and put them into batches."""
        retention, compact = self._replica.retention, False
        if retention is not None:
            records, compact = retention.stamped(records), retention.policy.compact
        first = self._replica.issue_numbers(len(records), records[0].time)
        if compact:  # one record in a batch: a newer record supersedes exactly one batch
            node, topic = self._ring.node, self._replica.topic
            return [
                RecordBatch.of([each], publisher=node, first=number, topic=topic)
                for number, each in enumerate(records, start=first)
            ]
        return list(
            RecordBatch.split(
                records, publisher=self._ring.node, first=first, topic=self._replica.topic
            )
        )

    def _resend(self, ids: Iterable[bytes], out: Outbox) -> None:
        """Send stored batches over the tree again."""
        parts = dict.fromkeys(map(batch_part, ids))  # of records of one batch: the same
        found = [self._replica.find(part, out) for part in parts]
        stored = [each for each in found if each is not None]
        for chunk in in_chunks(stored, self._config.chunk_bytes):
            self._forward(chunk, 0, None, out)

    def _on_new(
        self, message: PublishNew | PublishMany, sender: NodeId | None, out: Outbox
    ) -> None:
        """Store and forward new batches, drop known ones (PublishNew, Algorithm 5)."""
        batches = (
            (message.publication,) if isinstance(message, PublishNew) else message.publications
        )
        hops = message.hops + 1
        if not 0 < hops <= HOPS_MAX:
            hops = min(max(hops, 1), HOPS_MAX)
        if not batches:
            return
        self._has_news = True
        trusted = self._replica.trusted(batches)  # repair brings old rows, from fresh members
        added = self._replica.add(trusted, out, origin=Origin.SPREAD, hops=hops)
        if added:
            # The received tuple: the host forwards the received bytes.
            same = batches if len(added) == len(batches) else added
            self._announce_later(added, hops, self._forward(same, hops, sender, out))

    def _forward(
        self, batches: tuple[RecordBatch, ...], hops: int, sender: NodeId | None, out: Outbox
    ) -> frozenset[NodeId | None]:
        """Send batches over the tree, or to all neighbours; return the nodes that have them then.

        This is the hot path: a route is known until the view may have changed.
        """
        route = self._routes.get(sender) if self._is_view_sure and self._routes else None
        if route is None:
            route = self._route(sender)
        if route.nodes:
            # One message for all receivers: the host encodes it once, or reuses received bytes.
            is_one = len(batches) == 1
            message = PublishNew(batches[0], hops) if is_one else PublishMany(batches, hops)
            out += [Send(node, message) for node in route.nodes]
        return route.holders

    def _route(self, sender: NodeId | None) -> _Route:
        """Return the route of publications from a sender; derive it after a change of the view."""
        self._refresh_view()
        if self._routes is None:
            self._routes = {}
        route = self._routes.get(sender)
        if route is None:
            nodes = self._receivers(sender)
            route = self._routes[sender] = _Route(nodes, frozenset((*nodes, sender)))
        return route

    def _receivers(self, sender: NodeId | None) -> tuple[NodeId, ...]:
        spread = self._config.spread
        if spread is Spread.FLOOD:
            return tuple(self.neighbours())  # as in the paper, the sender is included
        edges = self.tree_edges()
        if spread is Spread.ADAPTIVE and (None in edges or not self._is_calm()):
            edges = [*self.neighbours()]
        return tuple([node for node in edges if node is not None and node != sender])

    def on_recovered(self) -> None:
        """Look up announced ids in the trie again, after the state was replaced."""
        self.invalidate_view()
        self._forget_stored()

    # -- state as a value --------------------------------------------------------------------

    def state(self) -> BroadcastState:
        """Return the variables as a value; include derived values only if they are wrong."""
        is_current = self._view == self._derived_view()
        edges, levels = self._edges, self._levels
        is_right = edges is None or edges == self._derived_tree_edges(derived_chains)
        return BroadcastState(
            calm_ticks=self._calm_ticks if is_current else 0,
            has_news=self._has_news,
            news_ticks=self.news_ticks,
            tree_edges=None if edges is None or is_right or not is_current else tuple(edges),
            levels=levels if is_current and levels != self._derived_levels() else None,
        )

    def announced(self) -> LazyPushState:
        """Return the variables of lazy push as a value."""
        self._queue_arrived()
        return self._lazy_push.state() if self._lazy_push is not None else LazyPushState()

    def load(self, state: BroadcastState, lazy_push: LazyPushState) -> None:
        """Replace the variables; the value may be corrupted."""
        self._view = self._derived_view()
        self._calm_ticks = state.calm_ticks
        self._has_news, self.news_ticks = state.has_news, state.news_ticks
        self._edges = list(state.tree_edges) if state.tree_edges is not None else None
        self._levels = state.levels if state.levels is not None else self._derived_levels()
        self._lazy_push, self._arrived = None, []
        if lazy_push != LazyPushState():
            self._ensure_lazy_push().load(lazy_push)
        self.invalidate_view()

    # -- lazy push ---------------------------------------------------------------------------

    def _ensure_lazy_push(self) -> LazyPush:
        if self._lazy_push is None:
            self._lazy_push = LazyPush(self._ring.node, self._replica, self._config)
        return self._lazy_push

    def _announce_later(
        self, batches: Iterable[RecordBatch], hops: int, holders: frozenset[NodeId | None]
    ) -> None:
        """Announce new batches at the next Flush."""
        if self._config.spread is Spread.ADAPTIVE:
            self._arrived.append(([batch.id for batch in batches], hops, holders))
            if len(self._arrived) > _ARRIVED_MAX:
                self._queue_arrived()

    def _queue_arrived(self) -> None:
        """Queue new ids for announcement; remember that they are stored here."""
        for ids, hops, holders in self._arrived:
            self._ensure_lazy_push().queue(ids, Announcement(hops, holders))
        self._arrived.clear()

    def _forget_stored(self) -> None:
        """Look up announced ids in the trie from now on."""
        self._queue_arrived()
        if self._lazy_push is not None:
            if self._lazy_push.has_pending:
                self._lazy_push.forget_stored()
            else:
                self._lazy_push = None

    def announce(self, repaired: tuple[RecordBatch, ...], sender: NodeId | None) -> None:
        """Announce repaired batches unless they are history: others may lack them (R17)."""
        if (
            self._config.rules.announce_repairs
            and 0 < len(repaired) <= self._config.repair_announce_max
        ):
            self._announce_later(repaired, 0, frozenset((sender,)))

    def on_flush(self, out: Outbox) -> None:
        """Announce new ids and request missing batches."""
        self._queue_arrived()
        if self._lazy_push is not None:
            self._lazy_push.on_flush(self.neighbours(), out)

    def _on_ihave(self, message: IHave, sender: NodeId | None, out: Outbox) -> None:
        """Record ids that a neighbour announces and that are missing here."""
        del sender, out
        if message.sender in (self._ring.node, SUPERVISOR) or self._replica.has_index_backlog:
            return
        self._queue_arrived()
        self._ensure_lazy_push().on_ihave(message)

    def _on_want(self, message: Want, sender: NodeId | None, out: Outbox) -> None:
        """Send requested batches as new: the receiver forwards them over its tree edges."""
        del sender
        self._ensure_lazy_push().on_want(message, out)

    # Hot path: one lookup from the type of a message to its method.
    HANDLERS: ClassVar[Mapping[type, Callable[[Broadcast, Any, NodeId | None, Outbox], None]]] = (
        MappingProxyType(
            {
                PublishNew: _on_new,
                PublishMany: _on_new,
                IHave: _on_ihave,
                Want: _on_want,
            }
        )
    )
