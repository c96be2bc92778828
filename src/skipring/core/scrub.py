"""Scrubber: comparison of values in memory with the values they derive from, in slices.

It finds wrong digests, wrong ids and wrong offsets (T10 to T12).
"""

from __future__ import annotations

from typing import Final

from skipring.core.batches import BatchRecord, RecordBatch, is_reserved
from skipring.core.effects import Discard, Outbox
from skipring.core.log import PageLimits
from skipring.core.replica import Replica
from skipring.core.state import ScrubState

STEP_BYTES: Final = 1 << 16  # Limit: the batches of one step; the last one may exceed it.


class Scrubber:
    """Scrubber of one replica; a walk covers the batches that exist when it begins."""

    __slots__ = ("_end", "_found", "_has_doubts", "_ids", "_offset", "_replica")

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._has_doubts = False  # the last walk found different numbers of batches and ids
        self._begin()

    def state(self) -> ScrubState:
        """Return the progress as a value."""
        return ScrubState(
            offset=self._offset,
            end=self._end,
            ids=self._ids,
            found=self._found,
            has_doubts=self._has_doubts,
        )

    def load(self, state: ScrubState) -> None:
        """Replace the progress; the value may be corrupted."""
        self._offset, self._end = state.offset, state.end
        self._ids, self._found, self._has_doubts = state.ids, state.found, state.has_doubts

    def _begin(self) -> None:
        self._offset = 0  # of the next batch
        self._end = self._replica.end
        self._ids = self._replica.count
        self._found = 0  # batches whose offset the trie has

    def step(self, ids: int, out: Outbox) -> None:
        """Derive the digests of the next ids again, and compare as many batches with the trie.

        The batches of these ids are anywhere in the log, so reading each of them costs more than
        the rest of a step. The scrubber reads them only if the last walk found different numbers
        of batches and ids. It skips ids that wait to be indexed: no digest contains them yet.
        """
        entries = self._replica.scrub_index(ids)
        if self._has_doubts:
            for key, offset in entries:
                self._replica.read(key, offset, out)
        self._walk(ids, out)

    def _walk(self, batches: int, out: Outbox) -> None:
        """Check the next batches; begin a new walk after the last one."""
        replica = self._replica
        end = min(self._end, replica.end)
        self._offset = max(self._offset, 0)  # memory may be corrupted
        limits = PageLimits(STEP_BYTES, batches, STEP_BYTES, batches)
        page = replica.log.read_page(self._offset, end, limits)
        replica.record_numbers(entry.batch for entry in page.entries)
        for offset, _, batch in page.entries:
            records = _records_of(batch, replica)
            if records is not None and self._hides(offset, batch):
                continue
            is_sound = records is not None
            self._found += self._is_in_order(batch.id, offset, out, is_genuine=is_sound)
            if records is not None and is_reserved(records):
                replica.ensure_retention().charters.record(offset, batch, records)
        self._offset = max(self._offset, page.next)
        if self._offset >= end:
            self._has_doubts = self._found != self._ids
            if replica.retention is not None:
                replica.retention.restart_rows(replica.end)
            self._begin()

    def _hides(self, offset: int, batch: RecordBatch) -> bool:
        """Return True if a stored batch is in quarantine, or goes there now."""
        retention = self._replica.retention
        if retention is None or retention.quarantine.has(batch.id, offset):
            return retention is not None
        is_early = retention.needs_scrub and retention.hides_early(offset, batch)
        if is_early:
            self._replica.remove(batch.id, offset)
        return is_early

    def _is_in_order(self, key: bytes, offset: int, out: Outbox, *, is_genuine: bool) -> bool:
        """Index a sound batch, quarantine a corrupt or duplicate one; return True if sound."""
        replica = self._replica
        known = replica.offset_of(key)
        if is_genuine:
            if known is not None and known != offset and replica.read(key, known, out) is None:
                known = None
            if known is None:
                replica.index().add(key, offset)
            if known is None or known == offset:
                return True
        elif known == offset:
            replica.index().remove(key)
        out.append(Discard(offset))  # corrupt, or the second batch of this id
        return False


def _records_of(batch: RecordBatch, replica: Replica) -> tuple[BatchRecord, ...] | None:
    """Return the records; None unless the id is right and readers accept the batch."""
    if not (batch.is_acceptable and batch.is_genuine(replica.topic)):
        return None
    try:
        return batch.records()
    except ValueError:
        return None
