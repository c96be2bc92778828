"""Scrubber: comparison of values in memory with the values they derive from, in slices.

It finds wrong digests, wrong ids and wrong offsets (T10 to T12).
"""

from __future__ import annotations

from typing import Final

from skipring.core.effects import Discard, Outbox
from skipring.core.publications import Publication, ids_of
from skipring.core.replica import Replica
from skipring.core.state import ScrubState

ROWS_BYTES: Final = 1 << 16  # Limit: the payloads of one step; the last one may exceed it.


class Scrubber:
    """Scrubber of one replica; a walk covers the records that exist when it begins."""

    __slots__ = ("_end", "_found", "_has_doubts", "_ids", "_offset", "_replica")

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._has_doubts = False  # the last walk found different numbers of records and ids
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
        self._offset = 0  # of the next record
        self._end = self._replica.end
        self._ids = self._replica.count
        self._found = 0  # records whose offset the trie has

    def step(self, ids: int, out: Outbox) -> None:
        """Derive the digests of the next ids again, and compare as many records with the trie.

        The records of these ids are anywhere in the log, so reading each of them costs more than
        the rest of a step. The scrubber reads them only if the last walk found different numbers
        of records and ids. It skips ids that wait to be indexed: no digest contains them yet.
        """
        entries = self._replica.scrub_index(ids)
        if self._has_doubts:
            for key, offset in entries:
                self._replica.read(key, offset, out)
        self._walk(ids, out)

    def _walk(self, rows: int, out: Outbox) -> None:
        """Check the next records; begin a new walk after the last one."""
        replica = self._replica
        end = min(self._end, replica.end)
        self._offset = max(self._offset, 0)  # memory may be corrupted
        found = self._read(min(self._offset + rows, end))
        replica.record_numbers(found.values())
        keys = ids_of(found.values(), replica.topic)
        for (offset, publication), key in zip(found.items(), keys, strict=True):
            is_genuine = key == publication.id if key else publication.is_genuine(replica.topic)
            self._found += self._is_in_order(publication.id, offset, out, is_genuine=is_genuine)
        if self._offset >= end:
            self._has_doubts = self._found != self._ids
            self._begin()

    def _read(self, stop: int) -> dict[int, Publication]:
        """Return the records up to ``stop``, within ROWS_BYTES, and advance past them."""
        found: dict[int, Publication] = {}
        room = ROWS_BYTES
        for offset, publication in self._replica.rows(self._offset, stop):
            found[offset] = publication
            room -= len(publication.payload or b"")
            if room <= 0:
                stop = offset + 1
                break
        self._offset = max(self._offset, stop)
        return found

    def _is_in_order(self, key: bytes, offset: int, out: Outbox, *, is_genuine: bool) -> bool:
        """Index a sound record, quarantine a corrupt or duplicate one; return True if sound."""
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
        out.effects.append(Discard(offset))  # corrupt, or the second record of this id
        return False
