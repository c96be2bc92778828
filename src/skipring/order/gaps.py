"""Gaps in sequences of publishers, and what an order releases to its reader."""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from msgspec import Struct, field

from skipring.core.peers import NodeId

RECENT_GAPS: Final = 128  # Guess: enough to see a pattern.


class Order(StrEnum):
    """Order in which a reader gets publications."""

    ARRIVAL = "arrival"  # as they were stored at the node
    PUBLISHER = "publisher"  # each sequence of a publisher by its numbers
    TIME = "time"  # by time, publisher and number


class GapReason(StrEnum):
    """Reason why a reader no longer waits for missing publications."""

    ABSENT = "absent"  # the ring neighbours have confirmed that they do not have them either
    TIMEOUT = "timeout"  # they did not arrive in time
    FULL = "full"  # too many publications were held back
    EXPIRED = "expired"  # they are older than the topic retains
    FORGOTTEN = "forgotten"  # the reader no longer knew the sequence; it may have handed them out


class Gap(Struct, frozen=True):
    """Missing publications of one publisher and incarnation: numbers ``first`` to ``last``.

    The numbers are those of ``Publication.seq``.

    >>> Gap("n00", 1, 4_194_304, 4_194_306, GapReason.TIMEOUT).count
    3
    """

    publisher: NodeId
    incarnation: int
    first: int
    last: int
    reason: GapReason

    @property
    def count(self) -> int:
        """Return the number of missing publications."""
        return self.last - self.first + 1


class GapLog(Struct):
    """Number of gaps and of late publications of a reader, and the last gaps.

    ``dropped`` counts the late publications that the reader did not get.
    """

    count: int = 0
    missing: int = 0  # publications in all gaps
    late: int = 0
    dropped: int = 0
    recent: deque[Gap] = field(default_factory=partial(deque, maxlen=RECENT_GAPS))

    def record(self, gap: Gap) -> None:
        """Record a gap."""
        self.count += 1
        self.missing += gap.count
        self.recent.append(gap)

    def record_late(self, count: int, *, is_dropped: bool) -> None:
        """Record late publications."""
        self.late += count
        self.dropped += count if is_dropped else 0


class Orderable(Protocol):
    """Publication with the fields that an order compares."""

    @property
    def publisher(self) -> NodeId:
        """Return the node that published it."""

    @property
    def seq(self) -> int:
        """Return its number."""

    @property
    def time(self) -> int:
        """Return its time."""

    @property
    def payload(self) -> bytes:
        """Return its payload."""

    @property
    def key(self) -> bytes | None:
        """Return its key."""

    @property
    def headers(self) -> dict[str, str]:
        """Return its headers."""


P = TypeVar("P", bound=Orderable)


class Release(Struct, Generic[P], frozen=True):
    """Publications that an order releases; the late ones and those ahead are not in order."""

    publications: list[P]
    is_late: bool = False  # a later publication of the order was released
    is_ahead: bool = False  # of the clock; only an order by time has such publications


# Time, publisher and number of a publication that the application does not have yet.
Place = tuple[int, NodeId, int]


def place_of(publication: Orderable) -> Place:
    """Return the place of a publication."""
    return publication.time, publication.publisher, publication.seq


def size_of(publication: Orderable) -> int:
    """Return the bytes of payload, key and headers."""
    size = len(publication.payload) + len(publication.key or b"")
    return size + sum([len(name) + len(text) for name, text in publication.headers.items()])


class Backlog(Struct, frozen=True):
    """Limits of the publications that an order holds back: number and bytes."""

    records_max: int
    bytes_max: int


# Guesses: 4 s of 8,000 publications per second; with their fields about 50 MiB.
HELD: Final = Backlog(1 << 15, 32 << 20)
