"""Charters that a member has stored, and the effective one (M2 of decision 0057)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from skipring.core.batches import BatchRecord, RecordBatch, is_reserved
from skipring.core.log import Log
from skipring.core.publications import PublicationId
from skipring.core.retention.charter import (
    Charter,
    CharterRow,
    charter_of,
    effective,
    rank,
    superseded,
)
from skipring.core.retention.retained import Dropped
from skipring.core.retention.topic_clock import TopicClock

CHARTERS_KEPT: Final = 64  # Limit: rows with a charter in memory; the lowest go first.
CHARTER_BYTES_MAX: Final = 4096  # Limit: two of them fit into Terms.


class Charters:
    """Stored charters of one topic, with their offsets; the log decides whether they exist."""

    __slots__ = ("_confirmed", "_known", "_log", "acting")

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known: dict[PublicationId, tuple[Charter, int]] = {}  # with offsets
        self._confirmed = b""  # id of the charter in the last Terms of a ring neighbour
        self.acting: CharterRow | None = None  # the effective charter

    def __len__(self) -> int:
        return len(self._known)

    def rows(self) -> list[CharterRow]:
        """Return the known charters with their ids."""
        return [(charter, key) for key, (charter, _) in self._known.items()]

    @property
    def ids(self) -> tuple[bytes, ...]:
        """Return the ids of all known charters, the effective one first."""
        acting = (self.acting[1],) if self.acting is not None else ()
        return (*acting, *self._known)

    @property
    def offsets(self) -> list[int]:
        """Return the offsets of the known charters, in order."""
        return sorted([offset for _, offset in self._known.values()])

    @property
    def confirmed(self) -> bytes:
        """Return the id of the charter in the last Terms of a ring neighbour."""
        return self._confirmed

    def batches(self) -> tuple[RecordBatch, ...]:
        """Return the batch of the effective charter; none without one."""
        key = self.acting[1] if self.acting is not None else b""
        known = self._known.get(key)
        entry = self._log.read(known[1]) if known is not None else None
        return (entry.batch,) if entry is not None and entry.batch.id == key else ()

    # -- effective charter ---------------------------------------------------------------------

    def choose(self, clock: TopicClock) -> None:
        """Derive the effective charter."""
        self.acting = max(self._candidates(clock), key=rank, default=None)

    def _candidates(self, clock: TopicClock) -> Iterator[CharterRow]:
        """Yield the highest charter in effect, and that of a ring neighbour if its clock allows it.

        Without the second, a member whose own clock is years behind would have no policy.
        """
        found = effective(self.rows(), clock)
        if found is not None:
            yield found
        charter, _ = self._known.get(self._confirmed, (None, 0))
        is_known = charter is not None and not clock.is_future(charter.stamp)
        if charter is not None and is_known and charter.effective_from <= clock.topic:
            yield charter, self._confirmed

    def confirm(self, key: bytes) -> None:
        """Record the effective charter of a ring neighbour."""
        self._confirmed = key

    def admits(self, batch: RecordBatch, record: BatchRecord) -> bool:
        """Return False for a charter that is too long, or lower than the effective one."""
        charter = charter_of(record)
        if charter is None:
            return True  # another reserved row
        is_short = len(batch.body) <= CHARTER_BYTES_MAX
        is_lower = self.acting is not None and rank((charter, batch.id)) < rank(self.acting)
        return is_short and not is_lower

    # -- stored rows -----------------------------------------------------------------------------

    def record(self, offset: int, batch: RecordBatch, records: Sequence[BatchRecord]) -> bool:
        """Record the charter of a stored batch; return False if it has none."""
        charter = charter_of(records[0]) if is_reserved(records) else None
        if charter is None:
            return False
        self._known[batch.id] = charter, offset
        if len(self._known) > CHARTERS_KEPT:
            del self._known[min(self.rows(), key=rank)[1]]
        return True

    def audit(self) -> None:
        """Forget the charters that the log does not have."""
        for key, (charter, offset) in list(self._known.items()):
            entry = self._log.read(offset)
            is_stored = entry is not None and (entry.batch.id, entry.offset) == (key, offset)
            if entry is None or not is_stored or _charter_in(entry.batch) != charter:
                del self._known[key]

    def superseded(self) -> list[Dropped]:
        """Forget the charters that the effective one replaces, and return their batches."""
        return [self._forgotten(key) for key in superseded(self.rows(), self.acting)]

    def early(self, clock: TopicClock) -> list[Dropped]:
        """Forget the charters from the future, and return their batches."""
        return [self._forgotten(key) for _, key in self.rows() if self._is_early(key, clock)]

    def _is_early(self, key: bytes, clock: TopicClock) -> bool:
        return clock.is_future(self._known[key][0].stamp)

    def _forgotten(self, key: bytes) -> Dropped:
        offset = self._known.pop(key)[1]
        entry = self._log.read(offset)
        return Dropped(offset, entry.batch if entry is not None else None)

    def load(self, offsets: Sequence[int], confirmed: bytes = b"") -> None:
        """Replace the charters by those that the log has at some offsets."""
        self._confirmed = confirmed
        self._known.clear()
        self.acting = None
        for offset in offsets[:CHARTERS_KEPT]:
            entry = self._log.read(offset)
            charter = _charter_in(entry.batch) if entry is not None else None
            if entry is not None and charter is not None:
                self._known[entry.batch.id] = charter, entry.offset


def _charter_in(batch: RecordBatch) -> Charter | None:
    """Return the charter of a batch; None if it has none or cannot be read."""
    try:
        records = batch.records()
    except ValueError:
        return None
    return charter_of(records[0]) if is_reserved(records) else None
