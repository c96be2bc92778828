"""Lazy push: announcement of new ids on non-tree edges; receivers request missing publications.

Publications travel over the tree (``broadcast``). At the next Flush all other edges carry their
short ids. Usually the publication has arrived by then, and no further message follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from msgspec import Struct

from skipring.core.batches import RecordBatch, in_chunks
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Outbox
from skipring.core.messages import IHave, PublishMany, PublishNew, Want
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.replica import Replica
from skipring.core.state import AnnouncementState, LazyPushState, PendingWantState
from skipring.core.summaries import SHORT_BYTES

RECENT_MAX: Final = 4096  # Guess: 0.5 MB; larger batches are hardly ever announced.


class Announcement(Struct, frozen=True, gc=False):
    """Hops of a new publication, and the nodes that are known to have it."""

    hops: int
    nodes: frozenset[NodeId | None]

    def ordered_nodes(self) -> tuple[NodeId | None, ...]:
        """Return the nodes in an order that does not depend on their hashes."""
        return tuple(sorted(self.nodes, key=lambda node: node or ""))


class _PendingWant(Struct, frozen=True, gc=False):
    """Missing publication: announcing node, hops, and remaining Flush events to wait."""

    node: NodeId
    hops: int
    flushes: int


class LazyPush:
    """Lazy push of one subscriber: announcements and requests in both directions."""

    __slots__ = (
        "_config",
        "_missing",
        "_news",
        "_node",
        "_recent",
        "_recent_before",
        "_replica",
    )

    def __init__(self, node: NodeId, replica: Replica, config: ProtocolConfig) -> None:
        self._node = node
        self._replica = replica
        self._config = config
        # Since the last Flush, by short id.
        self._news: dict[bytes, Announcement] = {}  # to announce
        self._missing: dict[bytes, _PendingWant] = {}  # announced, but missing here
        self._recent: set[bytes] = set()  # stored since the last Flush
        self._recent_before: set[bytes] = set()  # stored between the last two Flush events

    @property
    def has_pending(self) -> bool:
        """Return True if announcements or requests wait for a Flush."""
        return bool(self._news or self._missing)

    # -- announcements to neighbours ---------------------------------------------------------

    def queue(self, ids: Iterable[bytes], news: Announcement) -> None:
        """Queue new ids for announcement at the next Flush; drop those over the limit."""
        for key in ids:
            short = key[:SHORT_BYTES]
            if len(self._recent) < RECENT_MAX:
                self._recent.add(short)  # so that announcements of it need no lookup
            if len(self._news) < self._config.announced_max:
                self._news[short] = news

    def forget_stored(self) -> None:
        """Forget the remembered ids, so that announced ids are looked up in the trie."""
        self._recent, self._recent_before = set(), set()

    # -- announcements from neighbours -------------------------------------------------------

    def on_ihave(self, message: IHave) -> None:
        """Record missing ids until the next Flush; they may arrive over the tree before then."""
        # Usually all arrived recently; then no id has to be looked up.
        unknown = message.shorts().difference(self._recent, self._recent_before)
        missing, flushes = self._missing, self._config.want_flushes
        for short, hops in message.short_ids() if unknown else ():
            if len(missing) >= self._config.announced_max:
                return
            if short in unknown and short not in missing and self._is_missing(short):
                missing[short] = _PendingWant(message.sender, hops, flushes)

    def _is_missing(self, short: bytes) -> bool:
        return short not in self._recent and self._replica.index().find(short) is None

    def on_want(self, message: Want, out: Outbox) -> None:
        """Send requested publications as new: the receiver forwards them over its tree edges."""
        replica, config, to = self._replica, self._config, message.sender
        if to in (self._node, SUPERVISOR) or replica.has_index_backlog:
            return
        # T14: a short request must not cause a long reply, nor many requests many replies.
        room = config.chunk_bytes if replica.chunks_spent(to) < config.credit_chunks else 0
        sent: dict[int, list[RecordBatch]] = {}  # by hops
        for short, hops in message.short_ids():
            found = replica.find(short, out) if room > 0 else None
            if found is not None:
                room -= found.size_bytes
                sent.setdefault(hops, []).append(found)
        for hops, batches in sent.items():
            in_order = sorted(batches, key=_number_of)
            for part in in_chunks(in_order, config.chunk_bytes):
                is_one = len(part) == 1
                out.send(to, PublishNew(part[0], hops) if is_one else PublishMany(part, hops))
        if sent:
            replica.charge(to, 1)

    # -- Flush -------------------------------------------------------------------------------

    def on_flush(self, neighbours: Iterable[NodeId], out: Outbox) -> None:
        """Announce new batches and request missing ones."""
        news, self._news = self._news, {}
        missing, self._missing = self._missing, {}
        if news:
            self._announce(news, neighbours, out)
        if not self._replica.has_index_backlog:  # a lookup would take long
            self._ask(missing, out)
        self._recent_before, self._recent = self._recent, set()

    def _announce(
        self, news: dict[bytes, Announcement], neighbours: Iterable[NodeId], out: Outbox
    ) -> None:
        """Announce to each neighbour the publications that it is not known to have."""
        holders = {item.nodes for item in news.values()}  # few: most arrive over the same route
        announced: dict[frozenset[frozenset[NodeId | None]], IHave] = {}
        for node in neighbours:
            lacking = frozenset([nodes for nodes in holders if node not in nodes])
            if not lacking:
                continue
            if lacking not in announced:
                hops = {short: each.hops for short, each in news.items() if each.nodes in lacking}
                announced[lacking] = IHave(self._node, b"".join(hops), bytes(hops.values()))
            out.send(node, announced[lacking])

    def _ask(self, missing: dict[bytes, _PendingWant], out: Outbox) -> None:
        """Request missing publications, unless they may still arrive over the tree."""
        asked: dict[NodeId, dict[bytes, int]] = {}
        for short, item in missing.items():
            if not self._is_missing(short):
                continue
            flushes = min(item.flushes, self._config.want_flushes)  # memory may be corrupted
            if flushes <= 1:
                asked.setdefault(item.node, {})[short] = item.hops
            else:
                self._missing[short] = _PendingWant(item.node, item.hops, flushes - 1)
        for node, wanted in asked.items():
            out.send(node, Want(self._node, b"".join(wanted), bytes(wanted.values())))

    # -- state as a value --------------------------------------------------------------------

    def state(self) -> LazyPushState:
        """Return the variables as a value."""
        return LazyPushState(
            news={k: AnnouncementState(v.hops, v.ordered_nodes()) for k, v in self._news.items()},
            missing={
                k: PendingWantState(v.node, v.hops, v.flushes) for k, v in self._missing.items()
            },
            recent=tuple(sorted(self._recent)),
            told=tuple(sorted(self._recent_before)),
        )

    def load(self, state: LazyPushState) -> None:
        """Replace the variables; the value may be corrupted."""
        self._news = {k: Announcement(v.hops, frozenset(v.nodes)) for k, v in state.news.items()}
        self._missing = {
            k: _PendingWant(v.node, v.hops, v.flushes) for k, v in state.missing.items()
        }
        self._recent, self._recent_before = set(state.recent), set(state.told)


_number_of = attrgetter("publisher", "first")
