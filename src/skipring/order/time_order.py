"""Order by time, publisher and number, with a bounded hold-back window.

The order holds back a publication until the clock is ``wait_s`` past its time. A publication is
late if a later one was already released. One whose time is more than ``wait_s`` ahead of the clock
is released at once and marked: to wait for its time would delay it without a bound, and to
release it in order would make all others late.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final, Generic

from skipring.core.peers import NodeId
from skipring.order.gaps import HELD, Backlog, Gap, P, Place, Release, place_of, size_of

SECOND_US: Final = 1_000_000
NO_PLACE: Final[Place] = (0, "", 0)  # before every other place


class TimeOrder(Generic[P]):
    """Order of the publications by time, as one reader gets them.

    ``passed`` is the place up to which publications were released in an earlier run.
    """

    def __init__(
        self, *, wait_s: float, clock_us: int, passed: Place = NO_PLACE, limits: Backlog = HELD
    ) -> None:
        self._wait_us = int(wait_s * SECOND_US)
        self._passed = passed
        self._limits = limits
        self._heap: list[tuple[Place, int, P]] = []
        self._ties = 0
        self._monotonic_s: float | None = None
        self.now = clock_us
        self.held_bytes = 0

    @property
    def held_records(self) -> int:
        """Return the number of publications that are held back."""
        return len(self._heap)

    @property
    def is_waiting(self) -> bool:
        """Return False: missing publications are unknown."""
        return False

    def held(self) -> Iterable[P]:
        """Yield the publications that are held back."""
        for _, _, publication in self._heap:
            yield publication

    def passed(self, unread: Iterable[Place] = ()) -> Place:
        """Return the place up to which the application has publications in order."""
        return min([self._passed, *unread])

    def add(
        self, publisher: NodeId, first: int, end: int, publications: list[P]
    ) -> list[Release[P] | Gap]:
        """Add publications of one publisher."""
        del publisher, first, end  # each publication has its own place
        out: list[Release[P] | Gap] = []
        ahead_us, heap = self.now + self._wait_us, self._heap
        for publication in publications:
            place = place_of(publication)
            if place < self._passed or place[0] > ahead_us:
                is_late = place < self._passed
                out.append(Release([publication], is_late=is_late, is_ahead=not is_late))
                continue
            self._ties += 1
            heappush(heap, (place, self._ties, publication))
            self.held_bytes += size_of(publication)
        while len(heap) > self._limits.records_max or self.held_bytes > self._limits.bytes_max:
            out.append(self._release_first())
        return out

    def _release_first(self) -> Release[P]:
        place, _, publication = heappop(self._heap)
        self._passed = max(self._passed, place)
        self.held_bytes -= size_of(publication)
        return Release([publication])

    # -- time --------------------------------------------------------------------------------

    def on_time(self, now_s: float, clock_us: int, floor: int = 0) -> None:
        """Set the clock, in microseconds since the epoch, at a time that only rises.

        A clock that was set back continues at half its speed until the real one reaches it, so no
        publication is held back for more than four times ``wait_s``.
        """
        del floor  # this order misses no numbers
        elapsed_s = 0.0 if self._monotonic_s is None else max(now_s - self._monotonic_s, 0.0)
        self._monotonic_s = now_s
        self.now = max(clock_us, self.now + int(elapsed_s * SECOND_US / 2))

    def expire(self, until: float, confirmed_s: float) -> list[Release[P] | Gap]:
        """Release publications that are ``wait_s`` old, if all up to ``until`` were added."""
        del confirmed_s  # neighbours confirm sets of publications, not times
        out: list[Release[P] | Gap] = []
        while self._heap and self._heap[0][0][0] <= until - self._wait_us:
            out.append(self._release_first())
        return out

    def flush(self) -> list[Release[P] | Gap]:
        """Release everything that is held back: nothing else will be added."""
        return [self._release_first() for _ in range(len(self._heap))]
