"""Progress of one source of a backfill; the node replaces a source that is too slow (P6).

A source earns credit with each page and pays one tick of credit for each tick in which a request is
open. It is too slow once its credit is below 0. A share of the log counts as progress, so the time
for which a node keeps a source is bounded, whatever log end it claims: ``SHARES`` ticks per prefix.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

PATIENCE_TICKS: Final = 3  # Guess: a source without progress for longer is replaced.
TICK_BYTES_MIN: Final = 64 * 1024  # Guess: a slower link is of no use for a history.
SHARES: Final = 256  # Guess: 1/256 of the log is progress too, however small its rows are.


class SourceProgress(Struct, frozen=True, gc=False):
    """Credit of one source, in ticks."""

    credit: float = float(PATIENCE_TICKS)

    @property
    def is_too_slow(self) -> bool:
        """Return True if the node should ask another source."""
        return self.credit < 0

    def after_tick(self) -> SourceProgress:
        """Return the progress after a tick in which a request was open."""
        return replace(self, credit=self.credit - 1)

    def after_page(self, size_bytes: int, advanced: int, end: int) -> SourceProgress:
        """Return the progress after a page that advances by some offsets in a log of ``end``."""
        earned = max(size_bytes / TICK_BYTES_MIN, SHARES * advanced / max(end, 1))
        return replace(self, credit=min(self.credit + earned, float(PATIENCE_TICKS)))
