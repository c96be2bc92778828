"""Scrubber: compare values in memory with the values they derive from, in slices.

It finds wrong digests, wrong ids and wrong offsets (T10 to T12).
"""

from __future__ import annotations

from typing import Final

from skipring.core.effects import Discard, Outbox
from skipring.core.publications import Publication
from skipring.core.replica import Replica
from skipring.core.state import ScrubState

ROWS_BYTES: Final = 1 << 16  # Limit of ours: what a scrub reads, and the rest of its last row.


class Scrubber:
    """Walks, one after the other, through the rows that are there when a walk begins."""

    __slots__ = ("_end", "_found", "_has_doubts", "_holdings", "_ids", "_offset")

    def __init__(self, holdings: Replica) -> None:
        self._holdings = holdings
        self._has_doubts = False  # the last walk has not found as many rows as there were ids
        self._begin()

    def state(self) -> ScrubState:
        """How far we have come."""
        return ScrubState(
            offset=self._offset,
            end=self._end,
            ids=self._ids,
            found=self._found,
            has_doubts=self._has_doubts,
        )

    def load(self, state: ScrubState) -> None:
        """Go on where we are supposed to have come to."""
        self._offset, self._end = state.offset, state.end
        self._ids, self._found, self._has_doubts = state.ids, state.found, state.has_doubts

    def _begin(self) -> None:
        self._offset = 0  # of the next row
        self._end = self._holdings.end
        self._ids = self._holdings.count
        self._found = 0  # rows of which the trie knows where they are

    def step(self, ids: int, out: Outbox) -> None:
        """Derive the digests of the next ids anew, and hold as many rows against the trie.

        Ids lie anywhere in the archive, so to read the row of each costs more than all the rest:
        that is done if a walk through all rows has found another number of them. What waits to be
        indexed goes on waiting: it is in nobody's digest yet.
        """
        entries = self._holdings.scrub_index(ids)
        if self._has_doubts:
            for key, offset in entries:
                self._holdings.read(key, offset, out)
        self._walk(ids, out)

    def _walk(self, rows: int, out: Outbox) -> None:
        """Look at the next rows; after the last one begin anew."""
        end, room = min(self._end, self._holdings.end), ROWS_BYTES
        self._offset = max(self._offset, 0)  # memory may be corrupted
        stop = min(self._offset + rows, end)
        while self._offset < stop and room > 0:
            publication = self._holdings.row(self._offset)
            if publication is not None:
                self._holdings.raise_number(publication)
                self._found += self._is_in_order(publication, self._offset, out)
                room -= publication.size_bytes
            self._offset += 1
        if self._offset >= end:
            self._has_doubts = self._found != self._ids
            self._begin()

    def _is_in_order(self, publication: Publication, offset: int, out: Outbox) -> bool:
        """Put a row into the trie if it is missing there, aside if it is spoilt; False if it is."""
        holdings, key = self._holdings, publication.id
        known = holdings.offset_of(key)
        if publication.is_genuine(holdings.topic):
            if known is not None and known != offset and holdings.read(key, known, out) is None:
                known = None
            if known is None:
                holdings.trie.add(key, offset)
            if known is None or known == offset:
                return True
        elif known == offset:
            holdings.trie.remove(key)
        out.effects.append(Discard(offset))  # spoilt, or there a second time
        return False
