"""Order of each publisher: the numbers of every sequence rise.

A sequence is the publications of one publisher in one incarnation. The order holds back a
publication until those with lower numbers of its sequence are released. If they do not arrive in
time, it reports a gap and continues. It keeps the next number of the most recent sequences, at most
``SEQUENCES_MAX``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from typing import Final, Generic

from skipring.core.peers import NodeId
from skipring.core.publications import COUNTER_BITS
from skipring.order.gaps import HELD, Backlog, Gap, GapReason, P, Place, Release, size_of

SEQUENCES_MAX: Final = 1024  # Guess; a cursor contains all of them.
TIMEOUT_WAITS: Final = 4  # Guess: without confirmations of the neighbours, wait longer.

Sequence = tuple[NodeId, int]  # publisher and incarnation
_Held = tuple[int, int, float, int, list[P]]  # first number, tie break, since, end, publications


class _Progress(Generic[P]):
    """Next number of a sequence, and the publications held back behind it."""

    __slots__ = ("held", "next", "since")

    def __init__(self, following: int) -> None:
        self.next = following
        self.held: list[_Held[P]] = []  # a heap
        self.since = 0.0  # when the missing publications were first missed


class PublisherOrder(Generic[P]):
    """Order of the publications of each publisher, as one reader gets them.

    ``from_start``: the reader reads the log from its start, so a sequence begins with counter 0.
    Otherwise it begins with the first publication that is read. ``wait_s`` bounds the wait for
    missing publications; ``step_s`` is the time between two calls of ``on_time``.
    """

    def __init__(
        self,
        *,
        wait_s: float,
        step_s: float,
        from_start: bool,
        following: Mapping[Sequence, int] | None = None,
        limits: Backlog = HELD,
    ) -> None:
        self._wait_s = wait_s
        self._step_s = step_s
        self._from_start = from_start
        self._limits = limits
        self._sequences: OrderedDict[Sequence, _Progress[P]] = OrderedDict(
            (key, _Progress(number)) for key, number in (following or {}).items()
        )
        self._waiting: dict[Sequence, _Progress[P]] = {}  # those that hold back publications
        self._ties = 0
        self._has_forgotten = False
        self._floor = 0  # the topic retains no publications with an earlier time
        self.now = 0.0
        self.held_records = 0
        self.held_bytes = 0

    @property
    def is_waiting(self) -> bool:
        """Return True while publications are missing."""
        return bool(self._waiting)

    @property
    def from_start(self) -> bool:
        """Return True if a sequence begins with counter 0."""
        return self._from_start

    def held(self) -> Iterable[P]:
        """Yield the publications that are held back."""
        for progress in self._waiting.values():
            for _, _, _, _, publications in progress.held:
                yield from publications

    def following(self, unread: Iterable[Place] = ()) -> dict[Sequence, int]:
        """Return the next number of each sequence, before the publications without a reader."""
        numbers = {key: progress.next for key, progress in self._sequences.items()}
        for _, publisher, seq in unread:
            key = publisher, seq >> COUNTER_BITS
            if seq < numbers.get(key, 0):
                numbers[key] = seq
        return numbers

    def add(
        self, publisher: NodeId, first: int, end: int, publications: list[P]
    ) -> list[Release[P] | Gap]:
        """Add the publications with numbers from ``first`` to before ``end``.

        The list may have fewer: those that the reader skips are in order, but not released.
        """
        out: list[Release[P] | Gap] = []
        key = publisher, first >> COUNTER_BITS
        progress = self._sequences.get(key)
        if progress is None:
            progress = self._begin(key, first, out)
        else:
            self._sequences.move_to_end(key)
        if first <= progress.next:
            _release(progress, end, publications, out)
            if progress.held:
                self._release_held(key, progress, out)
            return out
        self._hold(key, progress, first, end, publications)
        while (
            self.held_records > self._limits.records_max or self.held_bytes > self._limits.bytes_max
        ):
            self._skip_missing(next(iter(self._waiting)), GapReason.FULL, out)
        return out

    def _begin(self, key: Sequence, first: int, out: list[Release[P] | Gap]) -> _Progress[P]:
        """Begin a sequence; beyond the limit, forget the least recent one."""
        following = key[1] << COUNTER_BITS if self._from_start else first
        progress: _Progress[P] = _Progress(following)
        self._sequences[key] = progress
        if len(self._sequences) > SEQUENCES_MAX:
            oldest = next(iter(self._sequences))
            while oldest in self._waiting:
                self._skip_missing(oldest, GapReason.FULL, out)
            del self._sequences[oldest]
            self._has_forgotten = True
        return progress

    def _hold(
        self, key: Sequence, progress: _Progress[P], first: int, end: int, publications: list[P]
    ) -> None:
        since = self.now + self._step_s  # it was missed before the next call of ``on_time``
        if not progress.held:
            progress.since = since
            self._waiting[key] = progress
        self._ties += 1
        heappush(progress.held, (first, self._ties, since, end, publications))
        self.held_records += len(publications) or 1
        self.held_bytes += _size(publications)

    def _release_held(
        self, key: Sequence, progress: _Progress[P], out: list[Release[P] | Gap]
    ) -> None:
        """Release the held publications that no longer wait for lower numbers."""
        held = progress.held
        while held and held[0][0] <= progress.next:
            _, _, _, end, publications = heappop(held)
            self.held_records -= len(publications) or 1
            self.held_bytes -= _size(publications)
            _release(progress, end, publications, out)
        if held:
            progress.since = held[0][2]
        else:
            self._waiting.pop(key, None)

    def _skip_missing(self, key: Sequence, reason: GapReason, out: list[Release[P] | Gap]) -> None:
        """Report the lowest missing numbers of a sequence as a gap; continue after them."""
        progress = self._waiting[key]
        first, following = progress.next, progress.held[0][0]
        if self._has_forgotten and first == key[1] << COUNTER_BITS:
            reason = GapReason.FORGOTTEN
        out.append(Gap(key[0], key[1], first, following - 1, reason))
        progress.next = following
        self._release_held(key, progress, out)

    # -- time --------------------------------------------------------------------------------

    def on_time(self, now_s: float, clock_us: int = 0, floor: int = 0) -> None:
        """Set the time, which only rises, and the floor of the topic; the clock does not matter."""
        del clock_us
        self.now, self._floor = now_s, floor

    def expire(self, until: float, confirmed_s: float) -> list[Release[P] | Gap]:
        """Report gaps that are overdue, if everything that arrived before ``until`` was added.

        The ring neighbours have confirmed at ``confirmed_s`` that they have the same publications.
        """
        out: list[Release[P] | Gap] = []
        for key, progress in list(self._waiting.items()):
            while progress.held and (reason := self._overdue(progress, until, confirmed_s)):
                self._skip_missing(key, reason, out)
        return out

    def _overdue(
        self, progress: _Progress[P], until: float, confirmed_s: float
    ) -> GapReason | None:
        following, since = progress.held[0][4], progress.since
        if following and 0 < following[0].time < self._floor:  # those before it are older
            return GapReason.EXPIRED
        if until - since >= TIMEOUT_WAITS * self._wait_s:
            return GapReason.TIMEOUT
        is_absent = until - since >= self._wait_s and confirmed_s >= since
        return GapReason.ABSENT if is_absent else None

    def flush(self) -> list[Release[P] | Gap]:
        """Release everything that is held back: nothing else will be added."""
        out: list[Release[P] | Gap] = []
        while self._waiting:
            self._skip_missing(next(iter(self._waiting)), GapReason.ABSENT, out)
        return out


def _release(
    progress: _Progress[P], end: int, publications: list[P], out: list[Release[P] | Gap]
) -> None:
    """Release publications from the next number or a lower one on; the lower ones are late."""
    following = progress.next
    if publications:
        if publications[0].seq >= following:
            out.append(Release(publications))
        else:  # repaired after a gap, or numbers that were used twice
            late = [each for each in publications if each.seq < following]
            out.append(Release(late, is_late=True))
            if len(late) < len(publications):
                out.append(Release(publications[len(late) :]))
    progress.next = max(following, end)


def _size(publications: list[P]) -> int:
    return sum([size_of(each) for each in publications])
