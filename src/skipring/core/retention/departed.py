"""Batches dropped while clients read a snapshot that contains them."""

from __future__ import annotations

from collections.abc import Iterator
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
        self._kept: dict[int, LogEntry] = {}  # the newest of them, by number
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
        self._kept[self.count] = LogEntry(offset, b"", batch)
        self._bytes += batch.size_bytes
        while self._bytes > BYTES_MAX and self._kept:  # memory may be corrupted
            oldest = self._kept.pop(self.count - len(self._kept) + 1, None)
            self._bytes = self._bytes - oldest.batch.size_bytes if oldest is not None else 0

    def since(self, count: int) -> Iterator[tuple[int, LogEntry]] | None:
        """Yield the batches dropped after the first ``count``, with the number of all up to each.

        Return None if not all are kept.
        """
        if not 0 <= self.count - count <= len(self._kept):
            return None
        numbers = range(count + 1, self.count + 1)
        return ((number, self._kept[number]) for number in numbers if number in self._kept)
