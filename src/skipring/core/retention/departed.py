"""Batches dropped while clients read a snapshot that contains them."""

from __future__ import annotations

from collections import deque
from typing import Final

from skipring.core.batches import RecordBatch
from skipring.core.log import LogEntry

READ_TICKS: Final = 64  # Guess: a read has ended by then, a minute after its survey.
BYTES_MAX: Final = 16 << 20  # Limit: beyond it, reads of older snapshots fail.


class Departed:
    """Batches that one member has dropped since the survey of a read began, in order."""

    __slots__ = ("_bytes", "_kept", "_ticks", "count")

    def __init__(self) -> None:
        self.count = 0  # of all batches that this process has dropped
        self._kept: deque[LogEntry] = deque()  # the newest of them
        self._bytes = 0
        self._ticks = 0  # until the batches are forgotten

    def expect_reads(self) -> None:
        """Start to record dropped batches: a client has requested digests."""
        self._ticks = READ_TICKS

    def on_tick(self) -> None:
        """Count one tick; forget all batches some time after the last survey."""
        # Memory may be corrupted: clamp the counter to its valid range.
        self._ticks = max(min(self._ticks, READ_TICKS) - 1, 0)
        if not self._ticks and self._kept:
            self._kept.clear()
            self._bytes = 0

    def add(self, offset: int, batch: RecordBatch) -> None:
        """Record that a batch was dropped."""
        self.count += 1
        if not self._ticks:
            return
        self._kept.append(LogEntry(offset, b"", batch))
        self._bytes += batch.size_bytes
        while self._bytes > BYTES_MAX:
            self._bytes -= self._kept.popleft().batch.size_bytes

    def since(self, count: int) -> list[LogEntry] | None:
        """Return the batches dropped after the first ``count``, by offset; None if incomplete."""
        number = self.count - count
        if not 0 <= number <= len(self._kept):
            return None
        newest = [self._kept[-place] for place in range(1, number + 1)]
        return sorted(newest, key=lambda entry: entry.offset)
