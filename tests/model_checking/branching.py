"""Random source that enumerates every outcome of each random choice."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NoReturn


class Branching(Random):
    """Random source that enumerates outcomes; machines only test whether a number is 0."""

    def __init__(self) -> None:
        super().__init__(0)
        self._way: list[int] = []
        self._drawn = 0

    def ways(self) -> Iterator[None]:
        """Yield once for each combination of outcomes of the draws between two yields."""
        self._way = []
        while True:
            self._drawn = 0
            yield
            while self._way and self._way[-1] == 1:
                self._way.pop()
            if not self._way:
                return
            self._way[-1] = 1

    def getrandbits(self, k: int, /) -> int:
        """Return 0 on one branch and 1 on the other."""
        return self._draw() if k > 0 else 0

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """Return 0 on one branch and 1 on the other, if the range contains 1."""
        assert (stop, step) == (None, 1)
        return self._draw() if start > 1 else 0

    def random(self) -> NoReturn:
        """Raise an error: the outcomes of a float cannot be enumerated."""
        raise AssertionError("a machine drew a float")

    def _draw(self) -> int:
        if self._drawn == len(self._way):
            self._way.append(0)
        self._drawn += 1
        return self._way[self._drawn - 1]
