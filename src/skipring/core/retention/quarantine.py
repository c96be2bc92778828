"""Quarantine of a topic: batches that a member may not admit now (M4 of decision 0057).

A batch from the future is in memory, outside log and trie, until its time. A batch that only
a stale member has held stays in the log, outside the trie.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from skipring.core.batches import RecordBatch
from skipring.core.publications import PublicationId

FUTURE_BYTES_MIN: Final = 64 * 1024 * 1024  # Guess.
STORE_SHARE: Final = 100  # the limit is at least this part of the store
RETURNED_MAX: Final = 1 << 18  # Limit: ids in memory; the oldest ones are judged again


class FutureBatch(Struct, frozen=True, array_like=True, gc=False):
    """Batch with a stamp in the future."""

    stamp: int
    batch: RecordBatch


class QuarantineState(Struct, frozen=True, kw_only=True, gc=False):
    """Quarantine of a subscriber."""

    future: tuple[FutureBatch, ...] = ()
    returned: dict[PublicationId, int] = {}
    evicted: int = 0


class Quarantine:
    """Batches outside the trie of one topic, oldest first."""

    __slots__ = ("_bytes_min", "_future", "_size_bytes", "evicted", "returned")

    def __init__(self, bytes_min: int = FUTURE_BYTES_MIN) -> None:
        self._bytes_min = bytes_min
        self._future: dict[bytes, FutureBatch] = {}
        self._size_bytes = 0
        self.evicted = 0  # batches that the limit has removed
        self.returned: dict[bytes, int] = {}  # offsets in the log

    def __len__(self) -> int:
        return len(self._future) + len(self.returned)

    @property
    def future(self) -> int:
        """Return the number of batches with a stamp in the future."""
        return len(self._future)

    def __contains__(self, key: bytes) -> bool:
        return key in self._future or key in self.returned

    def add_future(self, batch: RecordBatch, stamp: int, store_bytes: int = 0) -> None:
        """Quarantine a batch with a stamp in the future; the limit removes the oldest ones."""
        if batch.id in self._future:
            return
        self._future[batch.id] = FutureBatch(stamp, batch)
        self._size_bytes += batch.size_bytes
        limit = max(self._bytes_min, store_bytes // STORE_SHARE)
        while self._size_bytes > limit:
            self._release(next(iter(self._future)))
            self.evicted += 1

    def release(self, horizon: int) -> list[RecordBatch]:
        """Remove the batches up to a stamp, and return them: they may be admitted now."""
        due = [key for key, each in self._future.items() if each.stamp <= horizon]
        return [self._release(key) for key in due]

    def _release(self, key: bytes) -> RecordBatch:
        batch = self._future.pop(key).batch
        self._size_bytes -= batch.size_bytes
        return batch

    def add_returned(self, key: bytes, offset: int) -> None:
        """Quarantine a stored batch that the caller has removed from the trie."""
        self.returned[key] = offset
        if len(self.returned) > RETURNED_MAX:
            del self.returned[next(iter(self.returned))]

    def audit(self) -> None:
        """Derive the size again: memory may be corrupted."""
        self._size_bytes = sum([each.batch.size_bytes for each in self._future.values()])

    def state(self) -> QuarantineState:
        """Return the quarantine as a value."""
        return QuarantineState(
            future=tuple(self._future.values()),
            returned=dict(self.returned),
            evicted=self.evicted,
        )

    def load(self, state: QuarantineState) -> None:
        """Replace the quarantine; the value may be corrupted."""
        self._future = {each.batch.id: each for each in state.future}
        self._size_bytes = sum(each.batch.size_bytes for each in self._future.values())
        self.returned, self.evicted = dict(state.returned), max(state.evicted, 0)
