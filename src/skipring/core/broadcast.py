"""Broadcast of new publications (section 4.3): flood, tree, and the choice between them.

The flood sends a publication over every edge. The labels also define a tree with one message for
each member, but a lost tree edge cuts off the subtree behind it. The other edges therefore carry
short ids at the next Flush (lazy push), and a node floods if its view of the ring changed recently
or lacks a tree edge. Anti-entropy repairs the rest.

A node forwards and delivers a new publication first, and stores and indexes it later, many at once
(``defers_storage``). This is safe if the publisher's sequence number shows that the publication is
new here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

from msgspec import Struct

from skipring.core.config import ProtocolConfig, Spread
from skipring.core.effects import Origin, Outbox
from skipring.core.events import PublishManyRequested, PublishRequested, ResendRequested
from skipring.core.lazy_push import Announcement, LazyPush
from skipring.core.messages import HOPS_MAX, IHave, PublishMany, PublishNew, Want
from skipring.core.peers import SUPERVISOR, NodeId, Peer
from skipring.core.publications import Publication, in_chunks, with_payload
from skipring.core.replica import Replica
from skipring.core.ring import Ring
from skipring.core.shortcuts import Shortcuts, derived_chains
from skipring.core.state import ArrivalState, BroadcastState, LazyPushState
from skipring.core.topology import Chains

ChainsOf: TypeAlias = Callable[[Peer, Peer | None, Peer | None], Chains]


class _Route(Struct, frozen=True, gc=False):
    """Receivers of publications from one sender, and all nodes known to have them afterwards."""

    nodes: tuple[NodeId, ...]
    holders: frozenset[NodeId | None]


class _Arrival(Struct, frozen=True, gc=False):
    """Publications that are forwarded and delivered, but not stored yet."""

    publications: tuple[Publication, ...]
    news: Announcement


class Broadcast:
    """Broadcast of one subscriber: forwarding, deferred storage and lazy push."""

    __slots__ = (
        "_arrivals",
        "_arrived",
        "_arrived_bytes",
        "_calm_ticks",
        "_config",
        "_edges",
        "_flush_deferrals",
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
        # None uses less memory than an empty list.
        self._lazy_push: LazyPush | None = None
        self._arrivals: list[_Arrival] | None = None  # not stored yet
        self._arrived = 0  # number of publications in _arrivals
        self._arrived_bytes = 0
        self._flush_deferrals = 0  # deferred Flush events in a row
        self._has_news = False  # messages or requests with publications since the last tick
        self.news_ticks = 0  # ticks in a row with new publications

    @property
    def has_to_flush(self) -> bool:
        """Return True if announcements, requests or deferred storage wait for a Flush."""
        lazy_push = self._lazy_push
        return self._arrivals is not None or (lazy_push is not None and lazy_push.has_pending)

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
        self.invalidate_view()
        self._refresh_view()
        # Memory may be corrupted: a counter below 0 counts as 0.
        self._calm_ticks = self._calm_ticks + 1 if self._calm_ticks > 0 else 1
        if self._arrivals is None:
            self._arrived = self._arrived_bytes = 0
        self.news_ticks = self.news_ticks + 1 if self._has_news else 0
        self._has_news = False
        if self.news_ticks == 0 and self._lazy_push is not None:
            self._lazy_push.forget_stored()  # a stored publication may be lost by now

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
        self, event: PublishRequested | PublishManyRequested | ResendRequested, out: Outbox
    ) -> None:
        """Store and broadcast publications of the application, or broadcast them again."""
        if self._arrivals is not None:
            self.persist_deferred(out)
        if isinstance(event, ResendRequested):
            self._resend(event.ids, out)
            return
        self._has_news = True
        requests = event.requests if isinstance(event, PublishManyRequested) else (event,)
        created = [self._publication(request) for request in requests]
        added = self._replica.add(created, out, origin=Origin.OWN)
        for part in in_chunks(added, self._config.chunk_bytes):
            self._queue_announcements(part, self._forward(part, 0, None, out))

    def _resend(self, ids: Iterable[bytes], out: Outbox) -> None:
        """Send stored publications over the tree again."""
        found = [self._replica.find(key, out) for key in ids]
        stored = [each for each in found if each is not None]
        for part in in_chunks(stored, self._config.chunk_bytes):
            self._forward(part, 0, None, out)

    def _publication(self, event: PublishRequested) -> Publication:
        return Publication(
            publisher=event.publisher if event.publisher is not None else self._ring.node,
            seq=event.seq if event.seq is not None else self._replica.next_seq(event.time),
            payload=event.payload,
            time=event.time,
            key=event.key,
            headers=event.headers,
        )

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
        """Store and forward new publications, drop known ones (PublishNew, Algorithm 5)."""
        hops = min(max(hops, 0) + 1, HOPS_MAX)
        if not publications:
            return
        self._has_news = True
        size = self._replica.unseen_bytes(publications) if self._config.defers_storage else 0
        if size:
            self._replica.deliver_early(
                publications, self._arrived, out, hops=hops, size_bytes=size
            )
            news = self._forward(publications, hops, sender, out)
            self._defer_storage(_Arrival(publications, news), size, out)
            return
        self.persist_deferred(out)
        complete = with_payload(publications, opaque=self._config.accepts_opaque_ids)
        added = self._replica.add(complete, out, origin=Origin.SPREAD, hops=hops)
        if added:
            self._queue_announcements(added, self._forward(added, hops, sender, out))

    def _forward(
        self,
        publications: tuple[Publication, ...],
        hops: int,
        sender: NodeId | None,
        out: Outbox,
    ) -> Announcement:
        """Send publications over the tree, or to all neighbours."""
        route = self._route(sender)
        # One message for all receivers: the host encodes it once, or reuses the received bytes.
        message = (
            PublishNew(publications[0], hops)
            if len(publications) == 1
            else PublishMany(publications, hops)
        )
        for node in route.nodes:
            out.send(node, message)
        return Announcement(hops, route.holders)

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

    # -- deferred storage --------------------------------------------------------------------

    def _defer_storage(self, arrival: _Arrival, size_bytes: int, out: Outbox) -> None:
        if self._arrivals is None:
            self._arrivals = []
        self._arrivals.append(arrival)
        self._arrived += len(arrival.publications)
        self._arrived_bytes += size_bytes
        if (
            self._arrived > self._config.deferred_max
            or self._arrived_bytes > self._config.deferred_bytes_max
        ):
            self.persist_deferred(out)

    def persist_deferred(self, out: Outbox) -> None:
        """Store and index delivered publications; call this before the trie is read."""
        arrivals = self._arrivals
        if arrivals is None:
            return
        size_bytes = self._arrived_bytes
        self._arrivals = None
        self._arrived = self._arrived_bytes = 0
        every = tuple(chain.from_iterable([arrival.publications for arrival in arrivals]))
        self._replica.persist(every, out, size_bytes=size_bytes)
        self._ensure_lazy_push().mark_stored(every)
        for arrival in arrivals:
            self._queue_announcements(arrival.publications, arrival.news)

    @property
    def unstored(self) -> tuple[Publication, ...]:
        """Return the publications that are delivered but not stored yet."""
        arrivals = self._arrivals or ()
        return tuple(chain.from_iterable([arrival.publications for arrival in arrivals]))

    def on_recovered(self) -> None:
        """Mark deferred publications as known again, after the state was replaced."""
        self.invalidate_view()
        if self._lazy_push is not None:
            self._lazy_push.forget_stored()
        for arrival in self._arrivals or ():
            if arrival.publications:
                self._replica.mark_seen(arrival.publications)

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
            put_off=self._flush_deferrals,
            arrivals=tuple(
                ArrivalState(each.publications, each.news.hops, each.news.ordered_nodes())
                for each in self._arrivals or ()
            ),
            tree_edges=None if edges is None or is_right or not is_current else tuple(edges),
            levels=levels if is_current and levels != self._derived_levels() else None,
        )

    def announced(self) -> LazyPushState:
        """Return the variables of lazy push as a value."""
        return self._lazy_push.state() if self._lazy_push is not None else LazyPushState()

    def load(self, state: BroadcastState, lazy_push: LazyPushState) -> None:
        """Replace the variables; the value may be corrupted."""
        self._view = self._derived_view()
        self._calm_ticks = state.calm_ticks
        self._has_news, self.news_ticks = state.has_news, state.news_ticks
        self._flush_deferrals = state.put_off
        self._arrivals = [
            _Arrival(each.publications, Announcement(each.hops, frozenset(each.nodes)))
            for each in state.arrivals
        ] or None
        every = [each for arrival in state.arrivals for each in arrival.publications]
        self._arrived = len(every)
        self._arrived_bytes = sum(each.size_bytes for each in every)
        self._edges = list(state.tree_edges) if state.tree_edges is not None else None
        self._levels = state.levels if state.levels is not None else self._derived_levels()
        self._lazy_push = None
        if lazy_push != LazyPushState():
            self._ensure_lazy_push().load(lazy_push)
        self.invalidate_view()

    # -- lazy push ---------------------------------------------------------------------------

    def _ensure_lazy_push(self) -> LazyPush:
        if self._lazy_push is None:
            self._lazy_push = LazyPush(self._ring.node, self._replica, self._config)
        return self._lazy_push

    def _queue_announcements(self, publications: Iterable[Publication], news: Announcement) -> None:
        if self._config.spread is Spread.ADAPTIVE:
            self._ensure_lazy_push().queue(publications, news)

    def announce(self, repaired: tuple[Publication, ...], sender: NodeId | None) -> None:
        """Announce repaired publications unless they are history: others may lack them (R17)."""
        if (
            self._config.rules.announce_repairs
            and 0 < len(repaired) <= self._config.repair_announce_max
        ):
            self._queue_announcements(repaired, Announcement(0, frozenset((sender,))))

    def on_flush(self, out: Outbox) -> None:
        """Store deferred publications, announce new ids and request missing publications.

        Under load, do nothing for at most ``flush_deferrals_max - 1`` calls in a row: larger
        batches cost less, and the processor stays free for arriving publications.
        """
        self._flush_deferrals += 1
        is_busy = self._arrived >= self._config.busy_arrivals * self._flush_deferrals**2
        if is_busy and self._flush_deferrals < self._config.flush_deferrals_max:
            return
        self._flush_deferrals = 0
        self.persist_deferred(out)
        if self._lazy_push is not None:
            self._lazy_push.on_flush(self.neighbours(), out)

    def _on_ihave(self, message: IHave, sender: NodeId | None, out: Outbox) -> None:
        """Record ids that a neighbour announces and that may be missing here."""
        del sender, out
        if message.sender in (self._ring.node, SUPERVISOR) or self._replica.has_index_backlog:
            return
        self._ensure_lazy_push().on_ihave(message, is_all_stored=self._arrivals is None)

    def _on_want(self, message: Want, sender: NodeId | None, out: Outbox) -> None:
        """Send requested publications as new: the receiver forwards them over its tree edges."""
        del sender
        self.persist_deferred(out)
        self._ensure_lazy_push().on_want(message, out)

    # Hot path: one lookup from the type of a message to its method.
    HANDLERS: ClassVar[Mapping[type, Callable[[Broadcast, Any, NodeId | None, Outbox], None]]] = (
        MappingProxyType(
            {
                PublishNew: _on_publish_new,
                PublishMany: _on_publish_many,
                IHave: _on_ihave,
                Want: _on_want,
            }
        )
    )
