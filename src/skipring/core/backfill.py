"""Progress of one source of a backfill; the node replaces a source that is too slow (P6).

``TransferTracker`` records which histories a node sends and receives, so that no other session
transfers the same publications (T8).

``SourceProgress`` rates one source. A source earns credit with each page and pays one tick of
credit for each tick in which a request is open. It is too slow once its credit is below 0. Only
publications count: new ones, and known ones up to the number that the node holds. So a source earns
nothing with offsets or with repeated rows. A share of the count that it claims is progress too, for
at most ``SHARES`` ticks per prefix.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from skipring.core.config import ProtocolConfig
from skipring.core.peers import NodeId
from skipring.core.state import TransferState


class _Served(Struct, frozen=True, gc=False):
    """Session in which a node is sent a history, and the ticks until that is forgotten."""

    session: int
    ticks: int


class TransferTracker:
    """Histories that one subscriber sends or receives."""

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
        self._source: NodeId | None = None  # sender; None during a backfill
        self._source_ticks = 0  # ticks left to wait for the next part
        self._received_ticks = 0  # ticks in a row with a history under way
        self._rest_ticks = 0  # ticks left in which histories block no session
        self._served: dict[NodeId, _Served] = {}  # receivers

    @property
    def is_receiving(self) -> bool:
        """Return True while a history arrives; other sessions wait until it ends."""
        return self._source_ticks > 0

    @property
    def is_reading(self) -> bool:
        """Return True while the host reads a backfill from several sources at once."""
        return self.is_receiving and self._source is None

    def on_tick(self) -> None:
        """Count one tick; end histories that have stalled or lasted too long."""
        # Memory may be corrupted: clamp counters to the values that they are set to.
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
        """Record the number of publications sent in one reply; many of them are a history."""
        if count > self._config.repair_announce_max:
            self._served[to] = _Served(session, self._config.history_ticks)

    def on_received(self, sender: NodeId | None, count: int, *, is_last: bool) -> None:
        """Record the number of new publications in one message; many of them are a history."""
        if (
            count > self._config.repair_announce_max
            and sender is not None
            and self._rest_ticks == 0
        ):
            self._source, self._source_ticks = sender, self._config.history_ticks
        if is_last and sender == self._source:
            self._source_ticks = 0

    def on_page(self, *, is_last: bool) -> None:
        """Record a page of a backfill that the host reads from several sources."""
        if self._rest_ticks > 0:
            return
        self._source = None
        # After the last page, wait for the next tick: the host is still busy with the pages.
        self._source_ticks = 1 if is_last else self._config.history_ticks

    def is_other(self, sender: NodeId, session: int) -> bool:
        """Return True if a session would transfer the same publications as a current history."""
        if self.is_receiving and sender != self._source:
            return True
        served = self._served.get(sender)
        return served is not None and served.session != session

    def state(self) -> TransferState:
        """Return the variables as a value."""
        served = {node: (each.session, each.ticks) for node, each in self._served.items()}
        return TransferState(
            source=self._source,
            source_ticks=self._source_ticks,
            received_ticks=self._received_ticks,
            rest_ticks=self._rest_ticks,
            served=served,
        )

    def load(self, state: TransferState) -> None:
        """Replace the variables; the value may be corrupted."""
        self._source, self._source_ticks = state.source, state.source_ticks
        self._received_ticks, self._rest_ticks = state.received_ticks, state.rest_ticks
        self._served = {node: _Served(*each) for node, each in state.served.items()}


PATIENCE_TICKS: Final = 3  # Guess: a source without progress for longer is replaced.
TICK_BYTES_MIN: Final = 64 * 1024  # Guess: a slower link is useless for a history.
SHARES: Final = 256  # Guess: 1/256 of the log is progress too, however small its rows are.
READ_TICKS_MAX: Final = 64  # Guess: after that, a node asks for handovers while it still reads.


class PageRead(Struct, frozen=True, gc=False):
    """Accepted publications of one page: bytes, number, and number of new ones."""

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
        """Return the progress after a page.

        ``held``: publications that the node holds now. ``count``: publications that the source
        claims to have.
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
