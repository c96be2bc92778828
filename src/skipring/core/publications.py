"""Publications of the application: identity, and sequence numbers.

A publication is one record of a batch (``batches``). The paper's publication (section 4.2) is the
batch.

A sequence number is ``incarnation << 22 | counter``. A process takes a new incarnation at every
start, so a process that has lost its disk, was restored from a backup or was cloned never gives one
number to two publications (decision 46). The numbers of one incarnation are a *sequence*; they only
rise. Incarnation 0 continues the stored numbers; simulated worlds use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from skipring.core.peers import NodeId

ID_BYTES: Final = 32
ID_BITS: Final = 8 * ID_BYTES  # m in section 4.2
# Limit: nodes ignore larger numbers, so a publisher continues after a smaller one.
SEQ_BELIEVED_MAX: Final = 1 << 62

PublicationId: TypeAlias = Annotated[
    bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES, description=f"{ID_BYTES} bytes")
]


class Publication(Struct, frozen=True, kw_only=True, gc=False):
    """Publication of an application: one record of a batch, with its number and id."""

    publisher: NodeId
    seq: int
    payload: bytes
    time: int = 0  # microseconds since the epoch at the publisher; 0 if unknown
    key: bytes | None = None  # belongs to the user
    headers: dict[str, str] = {}
    id: bytes = b""
    late: bool = False  # a reader has handed out a later publication of its order


class Revision(Struct, frozen=True, order=True, gc=False):
    """Place of a record in the order of all records of a topic, and so of the writes of a key.

    The highest one is the value of the key.
    """

    time: int  # microseconds since the epoch
    publisher: NodeId
    seq: int
    id: bytes = b""  # decides between the records of two processes with one name and number


DELETED: Final = "skipring.deleted"  # header of a tombstone, with the value 1


# -- sequence numbers --------------------------------------------------------------------------

COUNTER_BITS: Final = 22
COUNTERS: Final = 1 << COUNTER_BITS
RANDOM_BITS: Final = 14  # two starts within 16 s collide with probability 1/16,384
_CHANCE: Final = (1 << RANDOM_BITS) - 1
TIME_BITS: Final = 26  # 34 years in units of 16 s
START_US: Final = 1_704_067_200_000_000  # 2024-01-01, microseconds since the epoch
UNIT_US: Final = 16_000_000
TOLERANCE_US: Final = 60_000_000  # Guess: clocks of a cluster differ by less.

INCARNATIONS_MAX: Final = 256  # Limit: incarnations of one name of which numbers are known.


def incarnation_at(time_us: int, chance: int = (1 << RANDOM_BITS) - 1) -> int:
    """Return the incarnation of a process that starts at a time, with 14 random bits."""
    units = max(time_us - START_US, 0) // UNIT_US
    return min(units, (1 << TIME_BITS) - 1) << RANDOM_BITS | chance


def raise_newest(newest: dict[int, int], seq: int) -> bool:
    """Record a number of one name as the newest of its incarnation; return True if it is.

    Ignore numbers from 2^62 on. Beyond INCARNATIONS_MAX, forget the lowest incarnation.
    """
    incarnation = seq >> COUNTER_BITS
    if not newest.get(incarnation, -1) < seq < SEQ_BELIEVED_MAX:
        return False
    newest[incarnation] = seq
    if len(newest) > INCARNATIONS_MAX:
        del newest[min(newest)]
    return True


def newest_of(numbers: Iterable[int]) -> dict[int, int]:
    """Return the newest number of each incarnation of one name."""
    newest: dict[int, int] = {}
    for seq in numbers:
        raise_newest(newest, seq)
    return newest


class OwnSequence:
    """Issuer of one node's numbers in a topic; it never issues a number twice."""

    __slots__ = ("_is_challenged", "_issued", "ahead", "incarnation", "node")

    def __init__(self, node: NodeId, incarnation: int) -> None:
        self.incarnation = incarnation
        self.ahead = 0  # incarnations of this name that are ahead of the clock
        self.node = node
        self._issued = -1  # the last number of this incarnation
        self._is_challenged = True  # compare stored numbers before the first is issued

    def on_seen(self, seq: int) -> None:
        """Compare stored numbers again if another process has issued a number under this name."""
        if seq > self._issued:
            self._is_challenged = True

    def covers(self, publisher: NodeId, seq: int) -> bool:
        """Return True if a number belongs to the current incarnation of this name."""
        return publisher == self.node and seq >> COUNTER_BITS == self.incarnation

    def issue(self, count: int, newest: dict[int, int], time_us: int) -> int:
        """Issue consecutive numbers of one incarnation; return the first.

        ``newest`` has the newest number of each incarnation of this name, ``time_us`` is the clock.
        """
        last = newest.get(self.incarnation, -1)
        if self._is_challenged or last != self._issued or not self._has_room(count):
            self._renew(count, newest, time_us)
        first = max(self._issued + 1, self.incarnation << COUNTER_BITS)
        self._issued = first + count - 1
        raise_newest(newest, self._issued)
        return first

    def _has_room(self, count: int) -> bool:
        first = max(self._issued + 1, self.incarnation << COUNTER_BITS)
        return first + count <= (self.incarnation + 1) << COUNTER_BITS

    def _renew(self, count: int, newest: dict[int, int], time_us: int) -> None:
        """Choose an incarnation above all known ones of this name that are not ahead of the clock.

        The step contains random bits: another process of this name may know the same numbers.
        """
        limit = incarnation_at(time_us + TOLERANCE_US)
        self.ahead = sum(i > limit for i in newest)
        self._is_challenged = False
        if self.incarnation == 0:
            self._issued = newest.get(0, -1)
            if self._has_room(count):
                return
        self.incarnation = min(self.incarnation, limit)  # it is below unless it is corrupt
        others = [i for i, last in newest.items() if i <= limit and last > self._issued]
        highest = max(others, default=-1)
        if highest >= self.incarnation or not self._has_room(count):
            chance = self.incarnation & _CHANCE
            renewed = max(highest, self.incarnation) + 1 + chance
            if renewed > limit:  # above this process's own, even if others were forgotten
                renewed = max(limit - _CHANCE + chance, self.incarnation + 1)
            while renewed in newest:
                renewed += 1
            self.incarnation = renewed
            self._issued = -1
