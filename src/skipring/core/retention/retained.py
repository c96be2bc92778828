"""Retained rows of a topic with a policy, and the batches to drop next.

A batch is the unit. ``keep`` is the rule; ``RetainedRows`` applies it step by step to a log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from itertools import chain, islice
from types import MappingProxyType
from typing import Final, NamedTuple

from skipring.core.batches import BatchRecord, RecordBatch, is_reserved
from skipring.core.log import Log, LogEntry, PageLimits
from skipring.core.publications import Revision
from skipring.core.retention.charter import Policy
from skipring.core.retention.floors import FloorStamps
from skipring.core.retention.rows import KeyWrite, Row, stamp_of
from skipring.core.retention.stamp_index import StampIndex

SLICE_BYTES: Final = 4 * 1024 * 1024  # of batches in one slice
SLICE_RECORDS: Final = 4096  # decoded in one slice. Measured: 17 ms of CPU time at most.
PAGE_BATCHES: Final = 16  # Batches that a slice reads at a time: at most 4096 records.
EXPIRED_MAX: Final = 4096  # tombstones in one slice. Guess: 5 ms.
NOTHING_HIDDEN: Final[Mapping[bytes, int]] = MappingProxyType({})
BACKLOG: Final = 512  # Guess: fewer superseded batches wait for the next tick.

# Why every member refuses a batch of a client.
FROM_FUTURE: Final = (
    "its time is ahead of the clock of the topic by more than the tolerance; set the clock of the "
    "publisher"
)
WITHOUT_TIME: Final = (
    "it has a record without a time, and the topic has an age limit or is compacted; give it one"
)
EXPIRED: Final = "it is older than what the policy of the topic retains"
LOWER_CHARTER: Final = "it has a charter that is too long, or lower than the effective one"
POLICY_REASONS: Final = frozenset({FROM_FUTURE, WITHOUT_TIME, EXPIRED, LOWER_CHARTER})


class Dropped(NamedTuple):
    """Batch that is not retained any more; None if it cannot be read."""

    offset: int
    batch: RecordBatch | None


class _Newest(NamedTuple):
    """Newest record of a key, and the offset of its batch."""

    time: int
    publisher: str
    seq: int
    offset: int


class _Live(NamedTuple):
    """Keys of which a batch has the newest record, one more if it has records without a key."""

    keys: int
    stamp: int


class _Budget:
    """Rest of one slice: batches, their bytes, and records to decode."""

    __slots__ = ("_decodes", "batches", "records", "size_bytes")

    def __init__(self, batches: int, *, decodes: bool = True) -> None:
        self.batches, self.records, self.size_bytes = batches, SLICE_RECORDS, SLICE_BYTES
        self._decodes = decodes

    def has_rest(self) -> bool:
        return min(self.batches, self.records, self.size_bytes) > 0

    def skip(self, batches: int) -> None:
        self.batches -= batches

    def spend(self, batch: RecordBatch | None) -> None:
        self.batches -= 1
        if batch is not None:
            self.records -= batch.count if self._decodes else 0
            self.size_bytes -= batch.size_bytes


class RetainedRows:
    """Index of the rows of a topic with a policy; it is derived from the log, in slices."""

    __slots__ = (
        "_deleted",
        "_end",
        "_expiring",
        "_hidden",
        "_holders",
        "_live",
        "_log",
        "_newest",
        "_next",
        "_superseded",
        "has_more",
        "policy",
        "stamps",
    )

    def __init__(
        self,
        log: Log,
        policy: Policy,
        hidden: Mapping[bytes, int] = NOTHING_HIDDEN,
        end: int | None = None,
    ) -> None:
        self._log = log
        self._hidden = hidden  # offsets of stored batches in quarantine, by id
        self.policy = policy
        self.restart(end)

    def restart(self, end: int | None = None) -> None:
        """Forget the index; derive it from the log again.

        ``end`` is that of the log after the current event.
        """
        self.stamps = StampIndex()
        # Offsets that are not read yet.
        self._next, self._end = 0, self._log.end if end is None else end
        self._newest: dict[bytes, _Newest] = {}
        self._holders: dict[bytes, int] = {}  # other batches with a record of the key
        self._live: dict[int, _Live] = {}  # of batches with several records
        self._deleted: dict[bytes, bool] = {}  # deleted keys; True: the tombstone has expired
        self._expiring: list[tuple[int, bytes]] = []  # a heap
        self._superseded = StampIndex()  # batches without a live record: no limit counts them
        self.has_more = False  # the last slice was full

    @property
    def is_complete(self) -> bool:
        """Return True if the whole log is indexed; nothing is dropped before."""
        return self._next >= self._end

    @property
    def has_backlog(self) -> bool:
        """Return True if too many batches wait to be dropped to delay them until the next tick."""
        return self.has_more or len(self._superseded) > BACKLOG or self.is_over_limit

    @property
    def is_over_limit(self) -> bool:
        """Return True if rows exceed a limit by the part at which the floor rises (rule 4).

        Rows with the same stamp stay together, whatever their number.
        """
        if not self.stamps.exceeds(self.policy):
            return False
        floor = self.stamps.full_floor(self.policy)
        return next(self.stamps.below(floor), None) is not None

    @property
    def keys(self) -> int:
        """Return the number of keys with a record."""
        return len(self._newest)

    def known_keys(self) -> list[bytes]:
        """Return the keys with a record."""
        return list(self._newest)

    def newest(self, key: bytes) -> tuple[int, str, int, int] | None:
        """Return time, publisher, number and offset of the newest record of a key, or None."""
        return self._newest.get(key)

    def build(self, batches: int) -> None:
        """Index the next stored batches, and at most about ``SLICE_RECORDS`` records."""
        budget = _Budget(batches)
        while self._next < self._end and budget.has_rest():
            some = min(budget.batches, PAGE_BATCHES)
            limits = PageLimits(SLICE_BYTES, some, SLICE_BYTES, some)
            page = self._log.read_page(self._next, self._end, limits)
            budget.skip(some - len(page.entries))  # the log has scanned the others too
            for entry in page.entries:
                if not budget.has_rest():
                    self._next = entry.offset
                    return
                budget.spend(entry.batch)
                self._index(entry)
            self._next = max(page.next, self._next + 1)

    def _index(self, entry: LogEntry) -> None:
        if self._hidden.get(entry.batch.id) == entry.offset:
            return
        try:
            records = entry.batch.records()
        except ValueError:  # the scrubber quarantines it
            return
        self._insert(entry.offset, entry.batch, records)

    def add(self, offset: int, batch: RecordBatch, records: Sequence[BatchRecord]) -> None:
        """Index a batch that is stored at an offset."""
        if offset >= self._end:
            self._insert(offset, batch, records)

    def withdraw(self, offset: int, batch: RecordBatch) -> None:
        """Forget a batch that stays in the log, but goes to the quarantine."""
        row = Row.of(batch, batch.readable_records())
        if self._remove(row.stamp, offset):
            self._live.pop(offset, None)
            for key in row.writes if self.policy.compact else ():
                self._forget_key(key, offset)

    def readmit(self, offset: int, batch: RecordBatch) -> None:
        """Index a batch that has left the quarantine."""
        self._insert(offset, batch, batch.readable_records())

    def discard(self) -> None:
        """Derive the index again: a batch with unknown records was quarantined."""
        self.restart()

    def _insert(self, offset: int, batch: RecordBatch, records: Sequence[BatchRecord]) -> None:
        row = Row.of(batch, records)
        if row.is_reserved or self._superseded.has(row.stamp, offset):
            return
        if not self.stamps.add(row.stamp, offset, batch.count, batch.size_bytes):
            return
        if not self.policy.compact:
            return
        live = int(row.has_keyless)
        for key, write in row.writes.items():
            live += self._is_newest(key, write, offset)
        if live == 0:
            self._supersede(row.stamp, offset)
        elif len(row.writes) + row.has_keyless > 1:
            self._live[offset] = _Live(live, row.stamp)

    def _is_newest(self, key: bytes, write: KeyWrite, offset: int) -> bool:
        """Record a write of a key; return True if it is the newest one."""
        known = self._newest.get(key)
        if known is not None:
            self._holders[key] = self._holders.get(key, 0) + 1
            if self._is_superseded(write.revision, known):
                return False
            self._release(known)
        revision = write.revision
        self._newest[key] = _Newest(revision.time, revision.publisher, revision.seq, offset)
        self._deleted.pop(key, None)
        if write.is_deleted:
            self._deleted[key] = False
            heappush(self._expiring, (revision.time, key))
        return True

    def _is_superseded(self, revision: Revision, known: _Newest) -> bool:
        place = (revision.time, revision.publisher, revision.seq)
        if place != known[:3]:
            return place < known[:3]
        entry = self._log.read(known.offset)  # two processes with one name and number
        return entry is not None and revision.id < entry.batch.id

    def _release(self, newest: _Newest) -> None:
        """Decrement the live keys of the batch that had the newest record of a key."""
        live = self._live.get(newest.offset, _Live(1, newest.time))
        if live.keys > 1:
            self._live[newest.offset] = _Live(live.keys - 1, live.stamp)
        else:
            self._supersede(live.stamp, newest.offset)

    def _supersede(self, stamp: int, offset: int) -> None:
        """Count a batch out of the limits: it is dropped, and must not push out live ones."""
        self.stamps.remove(stamp, offset)
        self._superseded.add(stamp, offset, 0, 0)

    def _remove(self, stamp: int, offset: int) -> bool:
        """Forget the place of a batch; return False if it is unknown."""
        return self.stamps.remove(stamp, offset) or self._superseded.remove(stamp, offset)

    # -- what is refused and dropped ---------------------------------------------------------

    def refuses(
        self, batch: RecordBatch, records: Sequence[BatchRecord], floors: FloorStamps
    ) -> bool:
        """Return True if a batch that arrives would be dropped at once (rule 7)."""
        if is_reserved(records):
            return False
        if stamp_of(records) < floors.rows:
            return True
        return self.policy.compact and self._is_obsolete(Row.of(batch, records), floors.tombstones)

    def refusal(self, records: Sequence[BatchRecord], floors: FloorStamps) -> str | None:
        """Return why a batch is outside the limits; None if at most newer records supersede it."""
        stamp = stamp_of(records)
        if self.policy.needs_times and not stamp:
            return WITHOUT_TIME
        return EXPIRED if stamp < floors.rows else None

    def _is_obsolete(self, row: Row, floor: int) -> bool:
        """Return True if no record of a row is live."""
        for key, (revision, is_deleted) in row.writes.items():
            known = self._newest.get(key)
            is_expired = is_deleted and revision.time < floor and self.is_complete
            if known is None and not is_expired:
                return False
            if known is not None and not self._is_superseded(revision, known):
                return False
        return not row.has_keyless

    def above(self, stamp: int, batches: int) -> list[Dropped]:
        """Return the batches above a stamp, at most ``batches`` and about SLICE_RECORDS records."""
        found, rest = list[Dropped](), SLICE_RECORDS
        for _, offset in islice(self.stamps.above(stamp), batches):
            entry = self._log.read(offset) if rest > 0 else None
            if entry is not None:
                rest -= entry.batch.count
                found.append(Dropped(entry.offset, entry.batch))
        return found

    def drop(self, floors: FloorStamps, batches: int) -> list[Dropped]:
        """Drop the next batches that are not retained; return them, at most ``batches``.

        The caller passes floors that its clock and rows justify (``Floors.droppable``).
        """
        if not self.is_complete:
            return []
        self._expire(floors.tombstones)
        budget = _Budget(batches, decodes=self.policy.compact)
        # Floors come first, as in ``keep``: a row below them does not supersede others.
        superseded, floor = self._superseded, floors.rows
        due = chain(superseded.below(floor), self.stamps.below(floor), superseded.above(-1))
        dropped: list[Dropped] = []
        newer: dict[int, Row | None] = {}  # batches that this slice has read
        for stamp, offset in dict.fromkeys(islice(due, batches)):
            if not budget.has_rest() or not self._remove(stamp, offset):
                continue  # the slice is full, or the index is derived again
            if not self.policy.compact:  # its records do not matter
                dropped.append(self._unread(offset, budget))
                continue
            batch, row = self._read(offset, budget)
            if row is None:
                self.restart()  # its keys are unknown
                dropped.append(Dropped(offset, batch))
            elif row.stamp < floor or self._is_replaced(row, offset, floors, newer, budget):
                self._forget(row, offset)
                dropped.append(Dropped(offset, batch))
            else:
                self.restart()  # memory was corrupted
        self.has_more = not budget.has_rest()
        return dropped

    def _unread(self, offset: int, budget: _Budget) -> Dropped:
        entry = self._log.read(offset)
        batch = entry.batch if entry is not None and entry.offset == offset else None
        budget.spend(batch)
        return Dropped(offset, batch)

    def _read(self, offset: int, budget: _Budget) -> tuple[RecordBatch | None, Row | None]:
        """Return a stored batch with its properties; None if it cannot be read."""
        entry = self._log.read(offset)
        batch = entry.batch if entry is not None and entry.offset == offset else None
        budget.spend(batch)
        try:
            return batch, Row.of(batch, batch.records()) if batch is not None else None
        except ValueError:
            return batch, None

    def _is_replaced(
        self,
        row: Row,
        offset: int,
        floors: FloorStamps,
        newer: dict[int, Row | None],
        budget: _Budget,
    ) -> bool:
        """Return True if the log has newer records of all keys: the index may be corrupted.

        A tombstone below the floor that hides no other record needs none.
        """
        for key, write in row.writes.items():
            known = self._newest.get(key)
            if known is None:
                return False
            if known.offset == offset:
                is_expired = write.is_deleted and write.revision.time < floors.tombstones
                if not is_expired or key in self._holders:
                    return False
                continue
            if known.offset not in newer:
                newer[known.offset] = self._read(known.offset, budget)[1]
            found = newer[known.offset]
            later = found.writes.get(key) if found is not None else None
            if later is None or later.revision <= write.revision:
                return False
        return not row.has_keyless

    def _forget(self, row: Row, offset: int) -> None:
        """Forget the keys of a dropped batch."""
        self._live.pop(offset, None)
        for key in row.writes:
            self._forget_key(key, offset)

    def _forget_key(self, key: bytes, offset: int) -> None:
        known, holders = self._newest.get(key), self._holders.pop(key, 0)
        if known is not None and known.offset == offset:
            del self._newest[key]
            self._deleted.pop(key, None)
            if holders:
                self.restart()  # an older record has become the newest one
        elif holders > 1:
            self._holders[key] = holders - 1
        elif known is not None and self._deleted.get(key) is False:
            heappush(self._expiring, (known.time, key))

    def _expire(self, floor: int) -> None:
        """Release the tombstones below a floor that hide no older record."""
        for _ in range(EXPIRED_MAX):
            if not self._expiring or self._expiring[0][0] >= floor:
                return
            time, key = heappop(self._expiring)
            known = self._newest.get(key)
            is_current = known is not None and known.time == time
            if known is None or not is_current or self._deleted.get(key) is not False:
                continue
            if key not in self._holders:  # otherwise when the last of them is dropped
                self._deleted[key] = True
                self._release(known)
