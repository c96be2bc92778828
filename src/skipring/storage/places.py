"""Where the packs of a topic are: a table from offsets to rows, three numbers for each pack."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise


class Places:
    """First offset, end and row of each pack, in the order of the offsets."""

    __slots__ = ("_ends", "_rows", "_starts")

    def __init__(self) -> None:
        self._starts, self._ends, self._rows = array("q"), array("q"), array("q")

    def add(self, start: int, end: int, row: int) -> None:
        """Add a pack; behind all others, or ``settle`` has to follow."""
        self._starts.append(start)
        self._ends.append(end)
        self._rows.append(row)

    def settle(self) -> bool:
        """Put what was added into order; False if two packs have the same offsets."""
        if any(this > after for this, after in pairwise(self._starts)):
            rows = sorted(zip(self._starts, self._ends, self._rows, strict=True))
            self._starts, self._ends, self._rows = (
                array("q", column) for column in zip(*rows, strict=True)
            )
        starts = self._starts[1:]
        return all(end <= after for end, after in zip(self._ends, starts, strict=False))

    @property
    def end(self) -> int:
        """The offset after the last one."""
        return self._ends[-1] if self._ends else 0

    @property
    def count(self) -> int:
        """How many publications the packs hold."""
        return sum(self._ends) - sum(self._starts)

    def after(self, offset: int) -> tuple[int, int, int] | None:
        """First offset, end and row of the first pack that ends after an offset."""
        index = bisect_right(self._ends, offset)
        if index == len(self._ends):
            return None
        return self._starts[index], self._ends[index], self._rows[index]

    def rows(self) -> Iterator[tuple[int, int]]:
        """First offset and row of each pack, in the order of the offsets."""
        return zip(self._starts, self._rows, strict=True)

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Offsets before the end that are in no pack."""
        end = 0
        for start, following in zip(self._starts, self._ends, strict=True):
            if start > end:
                yield end, start
            end = following

    def covers(self, offset: int) -> bool:
        """True if an offset is in a pack."""
        found = self.after(offset)
        return found is not None and found[0] <= offset
