"""Spreading what is new (section 4.3): the paper's flood, the tree, and when to use which.

The flood sends a publication over every edge. The labels also give a tree: one message for each
member, but for calm weather only, since a lost edge cuts off all behind it. So all other edges
carry the beginnings of ids, somewhat later, and whoever lacks one asks; and a node whose own view
has changed lately floods. What still goes missing, the comparison of tries brings.
"""

from __future__ import annotations

from msgspec import Struct

from skipring.core.claims import SHORT_BYTES
from skipring.core.config import ProtocolConfig, Spread
from skipring.core.effects import Origin, Outbox
from skipring.core.events import PublishRequested
from skipring.core.holdings import Holdings
from skipring.core.messages import HOPS_MAX, IHave, PublishNew, Want
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.publications import Publication
from skipring.core.ring import Ring
from skipring.core.shortcuts import Shortcuts


class News(Struct, frozen=True, gc=False):
    """What has come since the last Flush: over how many hops, and who has it as far as we know."""

    hops: int
    nodes: frozenset[NodeId | None]


class Spreading:
    """One subscriber's part in spreading new publications."""

    __slots__ = (
        "_calm_ticks",
        "_config",
        "_holdings",
        "_missing",
        "_news",
        "_ring",
        "_shortcuts",
        "_view",
    )

    def __init__(
        self, ring: Ring, shortcuts: Shortcuts, holdings: Holdings, config: ProtocolConfig
    ) -> None:
        self._ring = ring
        self._shortcuts = shortcuts
        self._holdings = holdings
        self._config = config
        self._calm_ticks = 0
        self._view = 0
        # Since the last Flush: what came, and what we only heard of, from whom, over how many hops.
        # None costs less memory than nothing in a dict.
        self._news: dict[bytes, News] | None = None
        self._missing: dict[bytes, tuple[NodeId, int]] | None = None

    @property
    def has_to_flush(self) -> bool:
        """True if something waits to be said."""
        return self._news is not None or self._missing is not None

    # -- whom we know ----------------------------------------------------------------------

    def neighbours(self) -> list[NodeId]:
        """Everybody we have an edge to: left, right, ring and shortcuts."""
        nodes = dict.fromkeys(
            [*(peer.node for peer in self._ring.peers()), *self._shortcuts.nodes()]
        )
        return [node for node in nodes if node not in (self._ring.node, SUPERVISOR)]

    def tree_edges(self) -> list[NodeId | None]:
        """Who is above and below us in the tree; None for an edge whose end is not known."""
        ring, shortcuts, me = self._ring, self._shortcuts, self._ring.me
        if me is None:
            return [None]
        pred, succ = ring.pred, ring.succ
        chains = shortcuts.chains(me, pred, succ)
        labels = [*chains.children, *([chains.parent] if chains.parent is not None else [])]
        nodes = dict.fromkeys(shortcuts.holder(label, pred, succ) for label in labels)
        return [node for node in nodes if node not in (ring.node, SUPERVISOR)]

    def on_tick(self) -> None:
        """Count one more tick without a change of our view."""
        self._look()
        self._calm_ticks += 1

    def _look(self) -> None:
        """Notice whether our own view has changed."""
        ring = self._ring
        view = hash((ring.me, *ring.neighbours, ring.wrap, *self._shortcuts.slots.values()))
        if view != self._view:
            self._view, self._calm_ticks = view, 0

    def _is_calm(self) -> bool:
        """True if our view has been the same for log n + 4 ticks, n seen from our place."""
        self._look()
        known = (self._ring.me, *self._ring.neighbours, self._ring.wrap)
        levels = max((peer.label.length for peer in known if peer is not None), default=0)
        return self._calm_ticks >= levels + self._config.calm_ticks

    # -- what is new -----------------------------------------------------------------------

    def publish(self, event: PublishRequested, out: Outbox) -> None:
        """Keep a publication of our own application and spread it (section 4.3)."""
        publisher = event.publisher if event.publisher is not None else self._ring.node
        seq = event.seq if event.seq is not None else self._holdings.next_seq(publisher)
        publication = Publication(
            publisher=publisher,
            seq=seq,
            payload=event.payload,
            time=event.time,
            key=event.key,
            headers=event.headers,
        )
        taken = self._holdings.take(publication, out, origin=Origin.OWN)
        if taken is not None:
            self._pass_on(taken, 0, None, out)

    def on_publish_new(self, message: PublishNew, sender: NodeId | None, out: Outbox) -> None:
        """PublishNew: keep what is new and pass it on, drop what is known (Algorithm 5)."""
        hops = min(max(message.hops, 0) + 1, HOPS_MAX)
        taken = self._holdings.take(message.publication, out, origin=Origin.SPREAD, hops=hops)
        if taken is not None:
            self._pass_on(taken, hops, sender, out)

    def _pass_on(
        self, publication: Publication, hops: int, sender: NodeId | None, out: Outbox
    ) -> None:
        spread = self._config.spread
        if spread is Spread.FLOOD:
            nodes = self.neighbours()  # to the sender too, as the paper does
        else:
            edges = self.tree_edges()
            if spread is Spread.ADAPTIVE and (None in edges or not self._is_calm()):
                edges = [*self.neighbours()]
            nodes = [node for node in edges if node is not None and node != sender]
        message = PublishNew(publication, hops)  # one for all: a host encodes it once
        for node in nodes:
            out.send(node, message)
        self._note_news(publication.id, News(hops, frozenset((*nodes, sender))))

    # -- lazy edges --------------------------------------------------------------------------

    def _note_news(self, key: bytes, news: News) -> None:
        if self._config.spread is not Spread.ADAPTIVE:
            return
        if self._news is None:
            self._news = {}
        if len(self._news) < self._config.announced_max:
            self._news[key[:SHORT_BYTES]] = news

    def announce(self, repaired: list[bytes], sender: NodeId | None) -> None:
        """R17: what has come by repair may be missing beside us too, unless it is history."""
        if self._config.rules.rumours and len(repaired) <= self._config.rumours_max:
            for key in repaired:
                self._note_news(key, News(0, frozenset((sender,))))

    def on_flush(self, out: Outbox) -> None:
        """Tell the lazy edges what has come, and ask for what has not come by itself."""
        news, missing = self._news or {}, self._missing or {}
        self._news = self._missing = None
        for node in self.neighbours() if news else ():
            told = {short: item.hops for short, item in news.items() if node not in item.nodes}
            if told:
                out.send(node, IHave(self._ring.node, b"".join(told), bytes(told.values())))
        asked: dict[NodeId, dict[bytes, int]] = {}
        for short, (node, hops) in missing.items():
            if self._holdings.trie.find(short) is None:
                asked.setdefault(node, {})[short] = hops
        for node, wanted in asked.items():
            out.send(node, Want(self._ring.node, b"".join(wanted), bytes(wanted.values())))

    def on_ihave(self, message: IHave) -> None:
        """Remember what we lack until the next Flush: it may come by the tree meanwhile."""
        if message.sender in (self._ring.node, SUPERVISOR):
            return
        for short, hops in message.short_ids():
            if self._holdings.trie.find(short) is None:
                if self._missing is None:
                    self._missing = {}
                if len(self._missing) < self._config.announced_max:
                    self._missing.setdefault(short, (message.sender, hops))

    def on_want(self, message: Want, out: Outbox) -> None:
        """Send what somebody lacks, as new: its own tree edges may lack it too."""
        if message.sender in (self._ring.node, SUPERVISOR):
            return
        # T14: a few short ids must not draw a long answer, nor many of them many.
        has_credit = self._holdings.chunks_spent(message.sender) < self._config.credit_chunks
        room = self._config.chunk_bytes if has_credit else 0
        for short, hops in message.short_ids():
            found = self._holdings.find(short, out) if room > 0 else None
            if found is not None:
                room -= found.size_bytes
                out.send(message.sender, PublishNew(found, hops))
        if room < self._config.chunk_bytes:
            self._holdings.charge(message.sender, 1)
