"""Quarantine of a topic: stored batches that a member may not admit now (M4 of decision 0057).

They stay in the log, outside the trie: batches from the future until their time, and batches
that only stale members have held. No quarantined batch is in memory only, and none is destroyed.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from skipring.core.batches import RecordBatch
from skipring.core.limits import NUMBER_MAX
from skipring.core.log import Log
from skipring.core.publications import PublicationId

HIDDEN_MAX: Final = 1 << 18  # Limit: ids in memory, 50 MB; the batches beyond it stay in the trie.


class QuarantineState(Struct, frozen=True, kw_only=True, gc=False):
    """Quarantine of a subscriber: offsets by id, and the stamps of the batches from the future."""

    hidden: dict[PublicationId, int] = {}
    early: dict[PublicationId, int] = {}


class Quarantine:
    """Ids of the stored batches outside the trie of one topic."""

    __slots__ = ("_log", "_next", "early", "hidden")

    def __init__(self, log: Log) -> None:
        self._log = log
        self.hidden: dict[bytes, int] = {}  # offsets in the log
        self.early: dict[bytes, int] = {}  # stamps of those from the future
        self._next = NUMBER_MAX  # the lowest of these stamps, or less

    def __len__(self) -> int:
        return len(self.hidden)

    @property
    def returned(self) -> int:
        """Return the number of batches that only stale members have held."""
        return max(len(self.hidden) - len(self.early), 0)

    def has(self, key: bytes, offset: int) -> bool:
        """Return True if the batch that is stored at an offset is hidden."""
        return self.hidden.get(key) == offset

    def batch(self, key: bytes) -> RecordBatch | None:
        """Return a hidden batch; None if the log does not have it."""
        entry = self._log.read(self.hidden.get(key, -1))
        is_stored = entry is not None and self.hidden[key] == entry.offset
        return entry.batch if entry is not None and is_stored and entry.batch.id == key else None

    def stored(self) -> dict[bytes, RecordBatch]:
        """Return the hidden batches by id."""
        found = {key: self.batch(key) for key in self.hidden}
        return {key: each for key, each in found.items() if each is not None}

    def add(self, key: bytes, offset: int, stamp: int | None = None) -> bool:
        """Hide a stored batch, with its stamp if that is in the future; return False if full."""
        if len(self.hidden) >= HIDDEN_MAX and key not in self.hidden:
            return False
        self.hidden[key] = offset
        if stamp is not None:
            self.early[key] = stamp
            self._next = min(self._next, stamp)
        return True

    def remove(self, key: bytes) -> int | None:
        """Forget a batch; return its offset, or None."""
        self.early.pop(key, None)
        return self.hidden.pop(key, None)

    def due(self, horizon: int) -> list[bytes]:
        """Return the ids of the batches that are not in the future any more."""
        if self._next > horizon:
            return []
        self._next = min(
            (stamp for stamp in self.early.values() if stamp > horizon), default=NUMBER_MAX
        )
        return [key for key, stamp in self.early.items() if stamp <= horizon]

    def audit(self) -> None:
        """Forget stamps without a batch, and derive the lowest again: memory may be corrupted."""
        self.early = {key: stamp for key, stamp in self.early.items() if key in self.hidden}
        self._next = min(self.early.values(), default=NUMBER_MAX)

    def state(self) -> QuarantineState:
        """Return the quarantine as a value."""
        return QuarantineState(hidden=dict(self.hidden), early=dict(self.early))

    def load(self, state: QuarantineState) -> None:
        """Replace the quarantine; the value may be corrupted."""
        self.hidden, self.early = dict(state.hidden), dict(state.early)
        self._next = min(self.early.values(), default=NUMBER_MAX)
