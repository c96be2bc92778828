"""Progress of one source of a backfill; the node replaces a source that is too slow (P6).

A source earns credit with each page and pays one tick of credit for each tick in which a request is
open. It is too slow once its credit is below 0. Only publications count: new ones, and known ones
up to the number that the node holds, so a source earns nothing with offsets, or by repeating a row.
A share of the count that it claims is progress too, for at most ``SHARES`` ticks per prefix.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from skipring.core.config import ProtocolConfig
from skipring.core.peers import NodeId
from skipring.core.state import TransferState


class _Served(Struct, frozen=True, gc=False):
    """In which session somebody is sent a history, and for how many ticks it goes on at least."""

    session: int
    ticks: int


class TransferTracker:
    """The histories that one subscriber takes part in."""

    __slots__ = (
        "_config",
        "_received_ticks",
        "_rest_ticks",
        "_served",
        "_source",
        "_source_ticks",
    )

    def __init__(self, config: ProtocolConfig) -> None:
        self._config = config
        self._source: NodeId | None = None  # who sends us one
        self._source_ticks = 0  # for which we wait for the next part of it
        self._received_ticks = 0  # in a row, in which we were sent one
        self._rest_ticks = 0  # for which nobody has to wait for one
        self._served: dict[NodeId, _Served] = {}  # to whom we send one

    @property
    def is_receiving(self) -> bool:
        """True while somebody sends us so much that all others have to wait."""
        return self._source_ticks > 0

    @property
    def is_reading(self) -> bool:
        """True while we read one from several: what others say to compare has to wait."""
        return self.is_receiving and self._source is None

    def on_tick(self) -> None:
        """One more tick without another part."""
        # Memory may be corrupted: no counter is believed beyond what it can have been set to.
        ticks_max = self._config.history_ticks
        self._source_ticks = max(min(self._source_ticks, ticks_max) - 1, 0)
        self._rest_ticks = max(min(self._rest_ticks, self._config.history_rest_ticks) - 1, 0)
        self._received_ticks = max(self._received_ticks, 0) + 1 if self.is_receiving else 0
        if self._received_ticks >= self._config.history_ticks_max:
            self._source_ticks = self._received_ticks = 0
            self._rest_ticks = self._config.history_rest_ticks
        self._served = {
            node: _Served(served.session, min(served.ticks, ticks_max) - 1)
            for node, served in self._served.items()
            if served.ticks > 1
        }

    def on_sent(self, to: NodeId, session: int, count: int) -> None:
        """So many publications were sent in one answer."""
        if count > self._config.repair_announce_max:
            self._served[to] = _Served(session, self._config.history_ticks)

    def on_received(self, sender: NodeId | None, count: int, *, is_last: bool) -> None:
        """So many publications have come in one message that were new to us."""
        if (
            count > self._config.repair_announce_max
            and sender is not None
            and self._rest_ticks == 0
        ):
            self._source, self._source_ticks = sender, self._config.history_ticks
        if is_last and sender == self._source:
            self._source_ticks = 0

    def on_page(self, *, is_last: bool) -> None:
        """A part of a history has come that was read from several at once."""
        if self._rest_ticks > 0:
            return
        self._source = None
        # To the next tick: the host has its hands full, and what follows can wait for it.
        self._source_ticks = 1 if is_last else self._config.history_ticks

    def is_other(self, sender: NodeId, session: int) -> bool:
        """True if a session would bring what a history brings that is under way."""
        if self.is_receiving and sender != self._source:
            return True
        served = self._served.get(sender)
        return served is not None and served.session != session

    def state(self) -> TransferState:
        """What we remember."""
        served = {node: (each.session, each.ticks) for node, each in self._served.items()}
        return TransferState(
            source=self._source,
            source_ticks=self._source_ticks,
            received_ticks=self._received_ticks,
            rest_ticks=self._rest_ticks,
            served=served,
        )

    def load(self, state: TransferState) -> None:
        """Take over what we are supposed to remember."""
        self._source, self._source_ticks = state.source, state.source_ticks
        self._received_ticks, self._rest_ticks = state.received_ticks, state.rest_ticks
        self._served = {node: _Served(*each) for node, each in state.served.items()}


PATIENCE_TICKS: Final = 3  # Guess: a source without progress for longer is replaced.
TICK_BYTES_MIN: Final = 64 * 1024  # Guess: a slower link is of no use for a history.
SHARES: Final = 256  # Guess: 1/256 of the log is progress too, however small its rows are.
READ_TICKS_MAX: Final = 64  # Guess: then a node asks for handovers, though it still reads.


class PageRead(Struct, frozen=True, gc=False):
    """Publications of a page that a member accepts: bytes, number, and number of new ones."""

    size_bytes: int
    rows: int
    new: int


class SourceProgress(Struct, frozen=True, gc=False):
    """Credit of one source, in ticks."""

    credit: float = float(PATIENCE_TICKS)
    rows: int = 0  # publications that have counted
    known: int = 0  # of these, the ones that the node held already

    @property
    def is_too_slow(self) -> bool:
        """Return True if the node should ask another source."""
        return self.credit < 0

    def after_tick(self) -> SourceProgress:
        """Return the progress after a tick in which a request was open."""
        return replace(self, credit=self.credit - 1)

    def after_page(self, page: PageRead, held: int, count: int) -> SourceProgress:
        """Return the progress after a page, for a node that holds some publications now.

        ``count``: the publications that the source claims to have.
        """
        known = min(page.rows - page.new, max(held - self.known, 0))
        counted = page.new + known
        shared = min(counted, max(count - self.rows, 0))
        size_bytes = page.size_bytes * counted / max(page.rows, 1)
        earned = max(size_bytes / TICK_BYTES_MIN, SHARES * shared / max(count, 1))
        return SourceProgress(
            credit=min(self.credit + earned, float(PATIENCE_TICKS)),
            rows=self.rows + counted,
            known=self.known + known,
        )
