"""Progress of a source of a backfill: one that sends too little is replaced (P6).

A source earns credit with what its pages bring, and pays some at each tick in which it is asked. It
is too slow once it is out of credit. The share of the log that counts as progress bounds how long a
source can be kept, whatever it claims to have: ``SHARES`` ticks for each prefix.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

PATIENCE_TICKS: Final = 3  # Guess: a source without progress for so long is replaced.
TICK_BYTES_MIN: Final = 64 * 1024  # Guess: a link that is slower is of no use for a history.
SHARES: Final = 256  # Guess: a part of the log in so many is progress too, however small its rows.


class SourceProgress(Struct, frozen=True, gc=False):
    """The credit of one source, in ticks."""

    credit: float = float(PATIENCE_TICKS)

    @property
    def is_too_slow(self) -> bool:
        """True if another source should be asked."""
        return self.credit < 0

    def after_tick(self) -> SourceProgress:
        """Return the progress after a tick in which an answer was open."""
        return replace(self, credit=self.credit - 1)

    def after_page(self, size_bytes: int, advanced: int, end: int) -> SourceProgress:
        """Return the progress after a page of so many bytes, so many offsets of a log further."""
        earned = max(size_bytes / TICK_BYTES_MIN, SHARES * advanced / max(end, 1))
        return replace(self, credit=min(self.credit + earned, float(PATIENCE_TICKS)))
