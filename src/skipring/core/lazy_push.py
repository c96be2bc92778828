"""Lazy push: announce new publication ids on non-tree edges; receivers request missing ones.

New publications travel over the tree (``broadcast``). All other edges carry short ids a little
later. Usually the publication has arrived by then, and no further message follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from skipring.core.config import ProtocolConfig
from skipring.core.effects import Outbox
from skipring.core.messages import IHave, Want
from skipring.core.peers import NodeId
from skipring.core.publications import Publication
from skipring.core.replica import Replica
from skipring.core.state import AnnouncementState, LazyPushState, PendingWantState
from skipring.core.summaries import SHORT_BYTES

RECENT_MAX: Final = 4096  # Guess: half a megabyte; larger batches are hardly announced.


class Announcement(Struct, frozen=True, gc=False):
    """Hops of a new publication, and the nodes that are known to have it."""

    hops: int
    nodes: frozenset[NodeId | None]

    def ordered_nodes(self) -> tuple[NodeId | None, ...]:
        """Return the nodes in an order that does not depend on their hashes."""
        return tuple(sorted(self.nodes, key=lambda node: node or ""))


class _PendingWant(Struct, frozen=True, gc=False):
    """Missing publication: the node that announced it, its hops, and Flush events to wait."""

    node: NodeId
    hops: int
    flushes: int


class LazyPush:
    """Lazy push of one subscriber: announcements and requests in both directions."""

    __slots__ = (
        "_config",
        "_heard",
        "_heard_of",
        "_holdings",
        "_missing",
        "_news",
        "_node",
        "_recent",
        "_told",
    )

    def __init__(self, node: NodeId, holdings: Replica, config: ProtocolConfig) -> None:
        self._node = node
        self._holdings = holdings
        self._config = config
        # Since the last Flush, by short id.
        self._news: dict[bytes, Announcement] = {}  # to announce
        self._missing: dict[bytes, _PendingWant] = {}  # announced, but missing here
        self._heard: list[IHave] = []  # received while storage is deferred
        self._heard_of = 0  # number of ids in _heard
        self._recent: set[bytes] = set()  # stored since the last Flush
        self._told: set[bytes] = set()  # stored between the last two Flush events

    @property
    def has_something(self) -> bool:
        """Return True if announcements or requests wait for a Flush."""
        return bool(self._news or self._missing or self._heard)

    # -- announcements to neighbours ---------------------------------------------------------

    def queue(self, publications: Iterable[Publication], news: Announcement) -> None:
        """Queue new publications for announcement at the next Flush; drop those over the limit."""
        for each in publications:
            if len(self._news) >= self._config.announced_max:
                return
            self._news[each.id[:SHORT_BYTES]] = news

    def mark_stored(self, kept: tuple[Publication, ...]) -> None:
        """Remember stored ids, if RECENT_MAX allows, so that announcements need no lookup."""
        if len(self._recent) + len(kept) <= RECENT_MAX:
            self._recent.update([each.id[:SHORT_BYTES] for each in kept])

    def forget_kept(self) -> None:
        """Forget the remembered ids, so that announced ids are looked up in the trie."""
        self._recent, self._told = set(), set()

    # -- announcements from neighbours -------------------------------------------------------

    def on_ihave(self, message: IHave, *, is_all_kept: bool) -> None:
        """Record missing ids until the next Flush; they may arrive over the tree before."""
        if is_all_kept:
            self._record_missing(message)
        # Publications with deferred storage are not in the trie before the Flush.
        elif message.hops and self._heard_of < self._config.announced_max:
            self._heard.append(message)
            self._heard_of += len(message.hops)

    def _record_missing(self, message: IHave) -> None:
        """Record the announced ids that are missing here."""
        # Usually all arrived recently; then no single id has to be looked up.
        unknown = message.shorts().difference(self._recent, self._told)
        missing, flushes = self._missing, self._config.want_flushes
        for short, hops in message.short_ids() if unknown else ():
            if len(missing) >= self._config.announced_max:
                return
            if short in unknown and short not in missing and self._is_missing(short):
                missing[short] = _PendingWant(message.sender, hops, flushes)

    def _is_missing(self, short: bytes) -> bool:
        return short not in self._recent and self._holdings.index().find(short) is None

    # -- Flush -------------------------------------------------------------------------------

    def on_flush(self, neighbours: Iterable[NodeId], out: Outbox) -> None:
        """Announce new publications and request missing ones; call it after deferred storage."""
        heard, self._heard, self._heard_of = self._heard, [], 0
        is_far_behind = self._holdings.has_index_backlog  # a lookup would take long
        for message in heard if not is_far_behind else ():
            self._record_missing(message)
        news, self._news = self._news, {}
        missing, self._missing = self._missing, {}
        if news:
            self._announce(news, neighbours, out)
        if not is_far_behind:
            self._ask(missing, out)
        self._told, self._recent = self._recent, set()

    def _announce(
        self, news: dict[bytes, Announcement], neighbours: Iterable[NodeId], out: Outbox
    ) -> None:
        """Announce to each neighbour the publications that it is not known to have."""
        holders = {item.nodes for item in news.values()}  # few: most arrive over the same route
        said: dict[frozenset[frozenset[NodeId | None]], IHave] = {}
        for node in neighbours:
            lacking = frozenset([nodes for nodes in holders if node not in nodes])
            if not lacking:
                continue
            if lacking not in said:
                told = {short: each.hops for short, each in news.items() if each.nodes in lacking}
                said[lacking] = IHave(self._node, b"".join(told), bytes(told.values()))
            out.send(node, said[lacking])

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
            heard=tuple(self._heard),
            recent=tuple(sorted(self._recent)),
            told=tuple(sorted(self._told)),
        )

    def load(self, state: LazyPushState) -> None:
        """Replace the variables; the value may be corrupted."""
        self._news = {k: Announcement(v.hops, frozenset(v.nodes)) for k, v in state.news.items()}
        self._missing = {
            k: _PendingWant(v.node, v.hops, v.flushes) for k, v in state.missing.items()
        }
        self._heard = list(state.heard)
        self._heard_of = sum(len(message.hops) for message in state.heard)
        self._recent, self._told = set(state.recent), set(state.told)
