"""Charters that a member has stored, and the effective one (M2 of decision 0057)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from skipring.core.batches import BatchRecord, RecordBatch, is_reserved
from skipring.core.limits import NUMBER_MAX
from skipring.core.log import Log
from skipring.core.publications import PublicationId
from skipring.core.retention.charter import (
    Charter,
    CharterRow,
    PlannedCharter,
    charter_of,
    effective,
    final_charter,
    is_false,
    rank,
)
from skipring.core.retention.retained import Dropped
from skipring.core.retention.topic_clock import TopicClock

CHARTERS_KEPT: Final = 64  # Limit: in memory; the lowest go first, the effective one never.
NO_BEGINS: Final[Mapping[PublicationId, int]] = MappingProxyType({})
CHARTER_BYTES_MAX: Final = 4096  # Limit: two of them fit into Terms.


class _Stored(NamedTuple):
    """Charter in the log."""

    charter: Charter
    offset: int


class Charters:
    """Stored charters of one topic, with their offsets; the log decides whether they exist.

    A charter begins at its own time, but not before ``delay_us`` has passed since its stamp, and
    since this member has received it as a new one. So a writer with a slow clock, or without the
    delay, leaves the time for an undo. The first rows of a log may be charters that begin at once.
    """

    __slots__ = ("_begins", "_confirmed", "_delay_us", "_false", "_known", "_log", "acting")

    def __init__(self, log: Log, delay_us: int) -> None:
        self._log = log
        self._delay_us = delay_us
        self._known: dict[PublicationId, _Stored] = {}
        # Begins other than the stamp and the delay; NUMBER_MAX: the delay after the next tick.
        self._begins: dict[PublicationId, int] = {}
        self._false: dict[int, None] = {}  # offsets of records that are no charters
        self._confirmed = b""  # id of the charter in the last Terms of a ring neighbour
        self.acting: CharterRow | None = None  # the effective charter

    def __len__(self) -> int:
        return len(self._known)

    def rows(self) -> list[CharterRow]:
        """Return the known charters with their ids."""
        return [(each.charter, key) for key, each in self._known.items()]

    @property
    def ids(self) -> tuple[bytes, ...]:
        """Return the ids of all known charters, the effective one first."""
        acting = (self.acting[1],) if self.acting is not None else ()
        return (*acting, *self._known)

    @property
    def offsets(self) -> list[int]:
        """Return the offsets of the known charters, in order."""
        return sorted([each.offset for each in self._known.values()])

    @property
    def begins(self) -> dict[PublicationId, int]:
        """Return when charters begin that do not begin the delay after their stamps."""
        return dict(self._begins)

    @property
    def confirmed(self) -> bytes:
        """Return the id of the charter in the last Terms of a ring neighbour."""
        return self._confirmed

    def batches(self) -> tuple[RecordBatch, ...]:
        """Return the batches of the effective charter and of the newest one; none without one."""
        if self.acting is None:
            return ()
        newest = max(self.rows(), key=rank, default=self.acting)
        keys = dict.fromkeys((self.acting[1], newest[1]))
        return tuple([batch for key in keys if (batch := self._batch(key)) is not None])

    def _batch(self, key: PublicationId) -> RecordBatch | None:
        known = self._known.get(key)
        entry = self._log.read(known.offset) if known is not None else None
        return entry.batch if entry is not None and entry.batch.id == key else None

    # -- effective charter ---------------------------------------------------------------------

    def choose(self, clock: TopicClock) -> None:
        """Derive the effective charter, and forget the lowest of too many."""
        for key in self._begins.keys() & self._known.keys() if clock.is_known else ():
            # Memory may be corrupted: clamp the time to its valid range.
            charter = self._known[key].charter
            latest = max(self._delayed(charter), clock.topic + self._delay_us)
            self._begins[key] = max(charter.effective_from, min(self._begins[key], latest))
        # A member whose own clock is years behind has a policy only by the confirmed charter.
        self.acting = effective(self._planned(clock), clock, self._confirmed)
        surplus = max(len(self._known) - CHARTERS_KEPT, 0)
        lowest = [row for row in sorted(self.rows(), key=rank) if row != self.acting]
        for _, key in lowest[:surplus]:
            del self._known[key]
            self._begins.pop(key, None)

    def _begin(self, key: PublicationId, charter: Charter) -> int:
        """Return when a charter begins; history that a neighbour applies has no delay."""
        if key == self._confirmed and key not in self._begins:
            return charter.effective_from
        return self._begins.get(key, self._delayed(charter))

    def _delayed(self, charter: Charter) -> int:
        return max(charter.effective_from, charter.stamp + self._delay_us)

    def _planned(self, clock: TopicClock) -> list[PlannedCharter]:
        """Return the charters that are not from the future."""
        known = self._known.items()
        return [
            PlannedCharter((each.charter, key), self._begin(key, each.charter))
            for key, each in known
            if not clock.is_future(each.charter.stamp)
        ]

    def final(self, clock: TopicClock) -> CharterRow | None:
        """Return the charter below which no charter can act any more, or None."""
        return final_charter(self._planned(clock), clock)

    def confirm(self, key: bytes) -> None:
        """Record the effective charter of a ring neighbour."""
        self._confirmed = key

    def admits(self, batch: RecordBatch, record: BatchRecord, clock: TopicClock) -> bool:
        """Return False for a charter that is too long, out of bounds, or that can never act."""
        charter = charter_of(record)
        if charter is None:
            return not is_false(record)  # or another reserved row
        is_short = len(batch.body) <= CHARTER_BYTES_MAX
        lowest = self.final(clock)
        return is_short and (lowest is None or rank((charter, batch.id)) >= rank(lowest))

    # -- stored rows -----------------------------------------------------------------------------

    def record(
        self,
        offset: int,
        batch: RecordBatch,
        records: Sequence[BatchRecord],
        *,
        is_new: bool = False,
    ) -> bool:
        """Record the charter of a stored batch; return False if it has none.

        ``is_new``: it has arrived as a new publication, not as part of the history.
        """
        charter = charter_of(records[0]) if is_reserved(records) else None
        if charter is None:
            if is_reserved(records) and is_false(records[0]) and len(self._false) < CHARTERS_KEPT:
                self._false[offset] = None
            return False
        if batch.id not in self._known:
            if self._is_first(offset) or not self._delay_us:
                self._begins[batch.id] = charter.effective_from
            elif is_new:
                self._begins[batch.id] = NUMBER_MAX
        self._known[batch.id] = _Stored(charter, offset)
        return True

    def _is_first(self, offset: int) -> bool:
        """Return True if the log has only charters before an offset."""
        low = self._log.low
        return offset - low <= sum(low <= each.offset < offset for each in self._known.values())

    def audit(self) -> None:
        """Forget the charters that the log does not have."""
        for key, known in list(self._known.items()):
            entry = self._log.read(known.offset)
            is_stored = entry is not None and (entry.batch.id, entry.offset) == (key, known.offset)
            if entry is None or not is_stored or _charter_in(entry.batch) != known.charter:
                del self._known[key]
        self._begins = {key: each for key, each in self._begins.items() if key in self._known}

    def superseded(self, clock: TopicClock) -> list[Dropped]:
        """Forget the charters that can never act again, and return their batches."""
        lowest = self.final(clock)
        found = [] if lowest is None else [row for row in self.rows() if rank(row) < rank(lowest)]
        return [*(self._forgotten(row[1]) for row in found), *self._dropped_false()]

    def _dropped_false(self) -> list[Dropped]:
        """Forget the records that are no charters, and return their batches."""
        offsets, self._false = self._false, {}
        entries = [self._log.read(offset) for offset in offsets]
        return [
            Dropped(entry.offset, entry.batch)
            for entry in entries
            if entry is not None and _is_false(entry.batch)  # memory may be corrupted
        ]

    def early(self, clock: TopicClock) -> list[Dropped]:
        """Forget the charters from the future, and return their batches."""
        return [self._forgotten(key) for _, key in self.rows() if self._is_early(key, clock)]

    def _is_early(self, key: bytes, clock: TopicClock) -> bool:
        return clock.is_future(self._known[key].charter.stamp)

    def _forgotten(self, key: bytes) -> Dropped:
        offset = self._known.pop(key).offset
        self._begins.pop(key, None)
        entry = self._log.read(offset)
        return Dropped(offset, entry.batch if entry is not None else None)

    def load(
        self,
        offsets: Sequence[int],
        confirmed: bytes = b"",
        begins: Mapping[PublicationId, int] = NO_BEGINS,
    ) -> None:
        """Replace the charters by those that the log has at some offsets."""
        self._confirmed = confirmed
        self._known.clear()
        self.acting = None
        self._begins = dict(begins)
        for offset in offsets[:CHARTERS_KEPT]:
            entry = self._log.read(offset)
            charter = _charter_in(entry.batch) if entry is not None else None
            if entry is not None and charter is not None:
                self._known[entry.batch.id] = _Stored(charter, entry.offset)


def _is_false(batch: RecordBatch) -> bool:
    """Return True if a batch has the key of charters without a charter."""
    try:
        records = batch.records()
    except ValueError:
        return False
    return is_reserved(records) and is_false(records[0])


def _charter_in(batch: RecordBatch) -> Charter | None:
    """Return the charter of a batch; None if it has none or cannot be read."""
    try:
        records = batch.records()
    except ValueError:
        return None
    return charter_of(records[0]) if is_reserved(records) else None
