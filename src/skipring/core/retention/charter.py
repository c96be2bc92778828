"""Charter of a topic: its policy, as a reserved record (M2 of decision 0057).

A charter has no signature yet; the field is kept for one. Members derive the effective charter from
their records, so a wrong cached one lives until it is derived again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, NamedTuple, TypeAlias

from msgspec import DecodeError, Meta, Struct, msgpack

from skipring.core.batches import RESERVED, BatchRecord, Number
from skipring.core.limits import NUMBER_MAX
from skipring.core.retention.topic_clock import TopicClock

CHARTER_KEY: Final = RESERVED + b"charter"
DAY_S: Final = 86_400
SECONDS_MAX: Final = 1 << 32  # Limit: 136 years.
US: Final = 1_000_000  # microseconds in a second
EPOCH_MAX: Final = 0  # Limit: no member may raise the epoch until charters are signed.
DELAY_MAX_US: Final = 365 * DAY_S * US  # Limit: a later charter has no effect at all.
FINAL_US: Final = DAY_S * US  # Guess: an undo reaches all members within a day.

Epoch = Annotated[int, Meta(ge=0, le=EPOCH_MAX)]
Seconds = Annotated[int, Meta(ge=1, le=SECONDS_MAX)]
Amount = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]


class Policy(Struct, frozen=True, kw_only=True, gc=False):
    """Limits of a topic: rows outside them may be removed; None: no limit."""

    max_age_s: Seconds | None = None
    max_count: Amount | None = None  # records
    max_bytes: Amount | None = None  # of batches in messages
    compact: bool = False  # retain only the newest record of each key
    tombstones_s: Seconds | None = 30 * DAY_S  # None: deletions are never forgotten

    @property
    def age_us(self) -> int | None:
        """Return the age in microseconds from which rows may be removed."""
        return None if self.max_age_s is None else self.max_age_s * US

    @property
    def tombstones_us(self) -> int | None:
        """Return the age in microseconds from which tombstones may be removed."""
        if not self.compact or self.tombstones_s is None:
            return None
        return self.tombstones_s * US

    @property
    def is_limited(self) -> bool:
        """Return True if rows can be removed under this policy."""
        limits = (self.max_age_s, self.max_count, self.max_bytes)
        return self.compact or any(limit is not None for limit in limits)

    @property
    def needs_times(self) -> bool:
        """Return True if rows without a time are refused (M1.5)."""
        return self.compact or self.max_age_s is not None


UNLIMITED: Final = Policy()
RETAIN_NOTHING: Final = Policy(max_age_s=1)  # the policy of a deleted topic


class Charter(Struct, frozen=True, kw_only=True, gc=False):
    """Policy of a topic from a time on; unknown fields are ignored."""

    epoch: Epoch = 0
    stamp: Number  # the higher one wins in an epoch
    effective_from: Number = 0
    policy: Policy = UNLIMITED
    signature: bytes = b""


# A charter and the id of its row, the last part of the order.
CharterRow: TypeAlias = tuple[Charter, bytes]


class PlannedCharter(NamedTuple):
    """Charter, and the time from which it acts at this member."""

    row: CharterRow
    begin: int

    @property
    def final_at(self) -> int:
        """Return when no later charter can cancel this one any more."""
        charter = self.row[0]
        return self.begin + max(FINAL_US, charter.effective_from - charter.stamp)


_ENCODER: Final = msgpack.Encoder()
_CHARTER: Final = msgpack.Decoder(Charter)


def charter_record(charter: Charter) -> BatchRecord:
    """Return the reserved record of a charter."""
    return BatchRecord(_ENCODER.encode(charter), charter.stamp, CHARTER_KEY)


def charter_of(record: BatchRecord) -> Charter | None:
    """Return the charter of a record; None if it is another record, unreadable or out of bounds.

    The stamp of a charter is not above the time of its record, which is quarantined if it is in
    the future.
    """
    if record.key != CHARTER_KEY:
        return None
    try:
        charter = _CHARTER.decode(record.payload)
    except (DecodeError, ValueError):  # ValueError: not UTF-8
        return None
    is_late = charter.effective_from > charter.stamp + DELAY_MAX_US
    return None if charter.stamp > record.time or is_late else charter


def is_false(record: BatchRecord) -> bool:
    """Return True if a record with the key of charters is none: no member stores it."""
    return record.key == CHARTER_KEY and charter_of(record) is None


def effective(
    known: Iterable[PlannedCharter], clock: TopicClock, confirmed: bytes = b""
) -> CharterRow | None:
    """Return the charter that is in effect, or None.

    It is the highest charter that has begun and is not void. A ring neighbour's charter, which
    ``confirmed`` names, begins by the topic clock, others by both clocks. A charter is void once a
    higher one is known that was written before it begins: in any order of arrival.
    """
    found, lowest = None, NUMBER_MAX
    for each in sorted(known, key=lambda planned: rank(planned.row), reverse=True):
        is_void = lowest < each.begin and clock.topic < each.final_at
        now = clock.topic if each.row[1] == confirmed else clock.earlier
        if not is_void and each.begin <= now:
            found = found or each.row
        lowest = min(lowest, each.row[0].stamp)
    return found


def final_charter(known: Iterable[PlannedCharter], clock: TopicClock) -> CharterRow | None:
    """Return the highest charter that no later one can cancel, or None; lower ones never act."""
    rows = (each.row for each in known if each.final_at <= clock.topic)
    return max(rows, key=rank, default=None)


def following_charter(policy: Policy, newest: Charter | None, now: int, delay_us: int) -> Charter:
    """Return a charter that replaces the newest one and begins after a delay."""
    stamp = max(now, newest.stamp + 1 if newest is not None else 0)
    return Charter(stamp=stamp, effective_from=stamp + delay_us, policy=policy)


def rank(row: CharterRow) -> tuple[int, int, bytes]:
    """Return the place of a charter in the order of all charters of its topic."""
    return row[0].epoch, row[0].stamp, row[1]
