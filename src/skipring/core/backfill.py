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
