"""Log of publications: read by the machines, written by their host (effects Store, Discard).

Offsets only grow. The trie is the index over the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from skipring.core.publications import Encoded, Publication
from skipring.core.sequences import SequenceId, newest_of


class Log(Protocol):
    """Publications of one topic that a subscriber has stored."""

    @property
    def is_durable(self) -> bool:
        """Return True if publications are on disk after the next commit."""

    @property
    def end(self) -> int:
        """Return the offset after the last publication."""

    def read(self, offset: int) -> Publication | None:
        """Return the publication at an offset, or None if it cannot be read."""

    def entries(self) -> Iterator[tuple[bytes, int]]:
        """Yield the id of each publication, as it was stored, and its offset."""

    def publications(self) -> Iterator[Publication]:
        """Yield all readable publications in the order of their offsets."""

    def newest(self) -> dict[SequenceId, int]:
        """Return the largest number of each sequence of the stored publications."""


class MemoryLog:
    """Log in memory, for simulations and for nodes without a disk."""

    __slots__ = ("_rows",)

    def __init__(self, publications: Iterable[Publication] = ()) -> None:
        self._rows: list[Publication | None] | None = list(publications) or None

    @property
    def is_durable(self) -> bool:
        """Return False: nothing is on disk."""
        return False

    @property
    def end(self) -> int:
        """Return the offset after the last publication."""
        return len(self._rows) if self._rows is not None else 0

    def read(self, offset: int) -> Publication | None:
        """Return the publication at an offset, or None if there is none."""
        return self._rows[offset] if self._rows is not None and offset < len(self._rows) else None

    def entries(self) -> Iterator[tuple[bytes, int]]:
        """Yield the id of each publication, as it was stored, and its offset."""
        for offset, publication in enumerate(self._rows or ()):
            if publication is not None:
                yield publication.id, offset

    def publications(self) -> Iterator[Publication]:
        """Yield all publications in the order of their offsets."""
        for publication in self._rows or ():
            if publication is not None:
                yield publication

    def newest(self) -> dict[SequenceId, int]:
        """Return the largest number of each sequence of the stored publications."""
        return newest_of((each.publisher, each.seq) for each in self.publications())

    def write(
        self, offset: int, *publications: Publication, encoded: Encoded | None = None
    ) -> None:
        """Apply a Store effect; ``offset`` is the end of the log."""
        del encoded  # used only by a log on disk
        if self._rows is None:
            self._rows = []
        assert offset == len(self._rows), f"offset {offset} after {len(self._rows)} rows"
        self._rows += publications

    def discard(self, offset: int) -> None:
        """Apply a Discard effect."""
        if self._rows is not None and offset < len(self._rows):
            self._rows[offset] = None
