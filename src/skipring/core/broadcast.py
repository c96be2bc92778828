"""Broadcast of new publications (section 4.3): flood, tree, and the choice between them.

The flood sends a publication over every edge. The labels also define a tree with one message for
each member, but a lost tree edge cuts off everything behind it. So the other edges carry short ids
a little later (lazy push), and a node whose view of the ring changed recently floods. Anti-entropy
repairs the rest.

A node forwards and delivers a new publication first, and stores and indexes it later, many at once
(``defers_storage``). This is safe if the publisher's sequence number shows that the publication is
new here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import attrgetter
from typing import TypeAlias

from msgspec import Struct

from skipring.core.config import ProtocolConfig, Spread
from skipring.core.effects import Origin, Outbox
from skipring.core.events import PublishRequested
from skipring.core.lazy_push import Announcement, LazyPush
from skipring.core.messages import HOPS_MAX, IHave, PublishMany, PublishNew, Want
from skipring.core.peers import SUPERVISOR, NodeId, Peer
from skipring.core.publications import Publication, with_payload
from skipring.core.replica import Replica
from skipring.core.ring import Ring
from skipring.core.shortcuts import Shortcuts, derived_chains
from skipring.core.state import ArrivalState, BroadcastState, LazyPushState
from skipring.core.topology import Chains

ChainsOf: TypeAlias = Callable[[Peer, Peer | None, Peer | None], Chains]


class _Route(Struct, frozen=True, gc=False):
    """Where what somebody brings goes, and who has it then as far as we know."""

    nodes: tuple[NodeId, ...]
    knowing: frozenset[NodeId | None]


class _Arrival(Struct, frozen=True, gc=False):
    """What was passed on and delivered, and is to be kept."""

    publications: tuple[Publication, ...]
    news: Announcement


class Broadcast:
    """One subscriber's part in spreading new publications."""

    __slots__ = (
        "_announcing",
        "_arrivals",
        "_arrived",
        "_arrived_bytes",
        "_calm_ticks",
        "_config",
        "_edges",
        "_has_news",
        "_holdings",
        "_is_view_sure",
        "_levels",
        "_news_ticks",
        "_put_off",
        "_ring",
        "_routes",
        "_shortcuts",
        "_view",
    )

    def __init__(
        self, ring: Ring, shortcuts: Shortcuts, holdings: Replica, config: ProtocolConfig
    ) -> None:
        self._ring = ring
        self._shortcuts = shortcuts
        self._holdings = holdings
        self._config = config
        self._calm_ticks = 0
        self._view = 0
        self._is_view_sure = False  # nothing has happened that could change it
        self._edges: list[NodeId | None] | None = None  # of the tree, in this view
        # By who brings something, while the view is sure.
        self._routes: dict[NodeId | None, _Route] | None = None
        self._levels = 0  # of the ring, as far as it can be seen in this view
        # None costs less memory than nothing in a list or a dict.
        self._announcing: LazyPush | None = None
        self._arrivals: list[_Arrival] | None = None  # not kept yet
        self._arrived = 0  # how many publications these are
        self._arrived_bytes = 0
        self._put_off = 0  # Flushes in a row
        self._has_news = False  # since the last tick
        self._news_ticks = 0  # in a row with something new

    @property
    def has_to_flush(self) -> bool:
        """True if something waits to be said, or to be kept."""
        announcing = self._announcing
        return self._arrivals is not None or (announcing is not None and announcing.has_something)

    # -- whom we know ----------------------------------------------------------------------

    def neighbours(self) -> list[NodeId]:
        """Everybody we have an edge to: left, right, ring and shortcuts."""
        nodes = dict.fromkeys(
            [*(peer.node for peer in self._ring.peers()), *self._shortcuts.nodes()]
        )
        return [node for node in nodes if node not in (self._ring.node, SUPERVISOR)]

    def tree_edges(self) -> list[NodeId | None]:
        """Who is above and below us in the tree; None for an edge whose end is not known."""
        self._refresh_view()
        if self._edges is None:
            self._edges = self._found_tree_edges(self._shortcuts.chains)
        return self._edges

    def _found_tree_edges(self, chains_of: ChainsOf) -> list[NodeId | None]:
        ring, shortcuts, me = self._ring, self._shortcuts, self._ring.me
        if me is None:
            return [None]
        pred, succ = ring.pred, ring.succ
        chains = chains_of(me, pred, succ)
        labels = [*chains.children, *([chains.parent] if chains.parent is not None else [])]
        nodes = dict.fromkeys(shortcuts.holder(label, pred, succ) for label in labels)
        return [node for node in nodes if node not in (ring.node, SUPERVISOR)]

    def on_tick(self) -> None:
        """Count one more tick without a change of our view, and whether something was new."""
        self.invalidate_view()
        self._refresh_view()
        # Memory may be corrupted: no counter is believed below 0.
        self._calm_ticks = self._calm_ticks + 1 if self._calm_ticks > 0 else 1
        if self._arrivals is None:
            self._arrived = self._arrived_bytes = 0
        self._news_ticks = self._news_ticks + 1 if self._has_news else 0
        self._has_news = False
        if self._news_ticks == 0 and self._announcing is not None:
            self._announcing.forget_kept()  # something of it may be lost by now

    @property
    def is_quiet(self) -> bool:
        """True if nothing new has come for a tick at least; right after one nothing ever has."""
        return not self._has_news and self._news_ticks == 0

    @property
    def is_busy(self) -> bool:
        """True while tries differ anyway by what is on its way, so that nobody should compare them.

        Where something is always on its way they are compared now and then all the same.
        """
        return self._news_ticks % self._config.news_ticks != 0

    def drop_derived(self) -> None:
        """Let tree edges, routes and levels be worked out again: memory may be corrupted."""
        self._edges = self._routes = None
        self._levels = self._found_levels()

    def invalidate_view(self) -> None:
        """Something has happened that may have changed our view."""
        self._is_view_sure = False

    def _refresh_view(self) -> None:
        """Notice whether our own view has changed."""
        if self._is_view_sure:
            return
        self._is_view_sure = True
        self._routes = None
        view = self._found_view()
        if view != self._view:
            self._view, self._calm_ticks = view, 0
            self._edges = None
            self._levels = self._found_levels()

    def _found_view(self) -> int:
        ring, slots = self._ring, self._shortcuts.slots
        return hash((ring.me, *ring.neighbours, ring.wrap, *slots, *slots.values()))

    def _found_levels(self) -> int:
        ring = self._ring
        known = (ring.me, *ring.neighbours, ring.wrap)
        return max((each.label.length for each in known if each is not None), default=0)

    def _is_calm(self) -> bool:
        """True if our view, as last looked at, is log n + 4 ticks old; n seen from our place."""
        return self._calm_ticks >= self._levels + self._config.calm_ticks

    # -- what is new -----------------------------------------------------------------------

    def publish(self, events: Iterable[PublishRequested], out: Outbox) -> None:
        """Keep publications of our own application and spread them (section 4.3)."""
        self._has_news = True
        made = [self._publication(event) for event in events]
        taken = self._holdings.add(made, out, origin=Origin.OWN)
        for part in self._parts(taken):
            self._queue_announcements(part, self._forward(part, 0, None, out))

    def _parts(self, publications: tuple[Publication, ...]) -> Iterator[tuple[Publication, ...]]:
        """As many together as one message takes."""
        start = size = 0
        for place, each in enumerate(publications):
            if size and size + each.size_bytes > self._config.chunk_bytes:
                yield publications[start:place]
                start, size = place, 0
            size += each.size_bytes
        if size:
            yield publications[start:]

    def _publication(self, event: PublishRequested) -> Publication:
        return Publication(
            publisher=event.publisher if event.publisher is not None else self._ring.node,
            seq=event.seq if event.seq is not None else self._holdings.next_seq(event.time),
            payload=event.payload,
            time=event.time,
            key=event.key,
            headers=event.headers,
        )

    def on_new(
        self,
        publications: tuple[Publication, ...],
        hops: int,
        sender: NodeId | None,
        out: Outbox,
    ) -> None:
        """PublishNew: keep what is new and pass it on, drop what is known (Algorithm 5)."""
        hops = min(max(hops, 0) + 1, HOPS_MAX)
        if not publications:
            return
        self._has_news = True
        size = self._holdings.unseen_bytes(publications) if self._config.defers_storage else 0
        if size:
            self._holdings.deliver_early(
                publications, self._arrived, out, hops=hops, size_bytes=size
            )
            news = self._forward(publications, hops, sender, out)
            self._keep_later(_Arrival(publications, news), size, out)
            return
        self.persist_deferred(out)
        shown = with_payload(publications, opaque=self._config.accepts_opaque_ids)
        taken = self._holdings.add(shown, out, origin=Origin.SPREAD, hops=hops)
        if taken:
            self._queue_announcements(taken, self._forward(taken, hops, sender, out))

    def _forward(
        self,
        publications: tuple[Publication, ...],
        hops: int,
        sender: NodeId | None,
        out: Outbox,
    ) -> Announcement:
        """Send publications to those below and above us in the tree, or to everybody we know."""
        route = self._route(sender)
        # One for all: a host encodes it once, or never if it is what has come.
        message = _new(publications, hops)
        for node in route.nodes:
            out.send(node, message)
        return Announcement(hops, route.knowing)

    def _route(self, sender: NodeId | None) -> _Route:
        """Where to send what somebody has brought, worked out when it may have changed."""
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
            return tuple(self.neighbours())  # to the sender too, as the paper does
        edges = self.tree_edges()
        if spread is Spread.ADAPTIVE and (None in edges or not self._is_calm()):
            edges = [*self.neighbours()]
        return tuple([node for node in edges if node is not None and node != sender])

    # -- what is kept later ------------------------------------------------------------------

    def _keep_later(self, arrival: _Arrival, size_bytes: int, out: Outbox) -> None:
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
        """Store and index what was delivered already; whoever looks at the trie needs it."""
        arrivals = self._arrivals
        if arrivals is None:
            return
        size_bytes = self._arrived_bytes
        self._arrivals = None
        self._arrived = self._arrived_bytes = 0
        every = tuple(chain.from_iterable([arrival.publications for arrival in arrivals]))
        self._holdings.persist(every, out, size_bytes=size_bytes)
        self._lazy_edges().mark_stored(every)
        for arrival in arrivals:
            self._queue_announcements(arrival.publications, arrival.news)

    @property
    def unkept(self) -> tuple[Publication, ...]:
        """What was delivered and is to be kept."""
        arrivals = self._arrivals or ()
        return tuple(chain.from_iterable([arrival.publications for arrival in arrivals]))

    def on_recovered(self) -> None:
        """What is known was read anew from the archive: what waits is known, too."""
        if self._announcing is not None:
            self._announcing.forget_kept()
        for arrival in self._arrivals or ():
            if arrival.publications:
                self._holdings.mark_seen(arrival.publications)

    # -- state as a value --------------------------------------------------------------------

    def state(self) -> BroadcastState:
        """What we remember; of derived values those that are wrong."""
        is_current = self._view == self._found_view()
        edges, levels = self._edges, self._levels
        is_right = edges is None or edges == self._found_tree_edges(derived_chains)
        return BroadcastState(
            calm_ticks=self._calm_ticks if is_current else 0,
            has_news=self._has_news,
            news_ticks=self._news_ticks,
            put_off=self._put_off,
            arrivals=tuple(
                ArrivalState(each.publications, each.news.hops, each.news.ordered_nodes())
                for each in self._arrivals or ()
            ),
            tree_edges=None if edges is None or is_right or not is_current else tuple(edges),
            levels=levels if is_current and levels != self._found_levels() else None,
        )

    def announced(self) -> LazyPushState:
        """What we remember of our lazy edges."""
        return self._announcing.state() if self._announcing is not None else LazyPushState()

    def load(self, state: BroadcastState, announcing: LazyPushState) -> None:
        """Take over what we are supposed to remember."""
        self._view = self._found_view()
        self._calm_ticks = state.calm_ticks
        self._has_news, self._news_ticks = state.has_news, state.news_ticks
        self._put_off = state.put_off
        self._arrivals = [
            _Arrival(each.publications, Announcement(each.hops, frozenset(each.nodes)))
            for each in state.arrivals
        ] or None
        every = [each for arrival in state.arrivals for each in arrival.publications]
        self._arrived = len(every)
        self._arrived_bytes = sum(each.size_bytes for each in every)
        self._edges = list(state.tree_edges) if state.tree_edges is not None else None
        self._levels = state.levels if state.levels is not None else self._found_levels()
        self._announcing = None
        if announcing != LazyPushState():
            self._lazy_edges().load(announcing)
        self.invalidate_view()

    # -- lazy edges --------------------------------------------------------------------------

    def _lazy_edges(self) -> LazyPush:
        if self._announcing is None:
            self._announcing = LazyPush(self._ring.node, self._holdings, self._config)
        return self._announcing

    def _queue_announcements(self, publications: Iterable[Publication], news: Announcement) -> None:
        if self._config.spread is Spread.ADAPTIVE:
            self._lazy_edges().queue(publications, news)

    def announce(self, repaired: tuple[Publication, ...], sender: NodeId | None) -> None:
        """R17: what has come by repair may be missing beside us too, unless it is history."""
        if self._config.rules.rumours and 0 < len(repaired) <= self._config.repair_announce_max:
            self._queue_announcements(repaired, Announcement(0, frozenset((sender,))))

    def on_flush(self, out: Outbox) -> None:
        """Tell the lazy edges what has come, and ask for what has not come by itself.

        While much comes that is put off for some time: to keep and to announce many at once costs
        less, and meanwhile the processor is there for what comes.
        """
        self._put_off += 1
        is_much = self._arrived >= self._config.busy_arrivals * self._put_off**2
        if is_much and self._put_off < self._config.flush_deferrals_max:
            return
        self._put_off = 0
        self.persist_deferred(out)
        if self._announcing is not None:
            self._announcing.on_flush(self.neighbours(), out)

    def on_ihave(self, message: IHave) -> None:
        """Somebody has publications that we may lack."""
        if message.sender in (self._ring.node, SUPERVISOR) or self._holdings.has_index_backlog:
            return
        self._lazy_edges().on_ihave(message, is_all_kept=self._arrivals is None)

    def on_want(self, message: Want, out: Outbox) -> None:
        """Send what somebody lacks, as new: its own tree edges may lack it too."""
        if message.sender in (self._ring.node, SUPERVISOR) or self._holdings.has_index_backlog:
            return
        # T14: a few short ids must not draw a long answer, nor many of them many.
        has_credit = self._holdings.chunks_spent(message.sender) < self._config.credit_chunks
        room = self._config.chunk_bytes if has_credit else 0
        sent: dict[int, list[Publication]] = {}  # by their hops
        for short, hops in message.short_ids():
            found = self._holdings.find(short, out) if room > 0 else None
            if found is not None:
                room -= found.size_bytes
                sent.setdefault(hops, []).append(found)
        for hops, publications in sent.items():
            for part in self._parts(tuple(sorted(publications, key=_number_of))):
                out.send(message.sender, _new(part, hops))
        if sent:
            self._holdings.charge(message.sender, 1)


def _new(publications: tuple[Publication, ...], hops: int) -> PublishNew | PublishMany:
    """The message that brings publications as new."""
    if len(publications) == 1:
        return PublishNew(publications[0], hops)
    return PublishMany(publications, hops)


_number_of = attrgetter("publisher", "seq")
