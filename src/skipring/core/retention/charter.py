"""Charter of a topic: its policy, as a reserved record (M2 of decision 0057).

A charter has no signature yet; the field is kept for one. Members derive the effective charter from
their records, so a wrong cached one lives until it is derived again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, TypeAlias

from msgspec import DecodeError, Meta, Struct, msgpack

from skipring.core.batches import RESERVED, BatchRecord, Number
from skipring.core.retention.topic_clock import TopicClock

CHARTER_KEY: Final = RESERVED + b"charter"
DAY_S: Final = 86_400
SECONDS_MAX: Final = 1 << 32  # Limit: 136 years.
US: Final = 1_000_000  # microseconds in a second

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

    epoch: Number = 0
    stamp: Number  # the higher one wins in an epoch
    effective_from: Number = 0
    policy: Policy = UNLIMITED
    signature: bytes = b""


# A charter and the id of its row, the last part of the order.
CharterRow: TypeAlias = tuple[Charter, bytes]

_ENCODER: Final = msgpack.Encoder()
_CHARTER: Final = msgpack.Decoder(Charter)


def charter_record(charter: Charter) -> BatchRecord:
    """Return the reserved record of a charter."""
    return BatchRecord(_ENCODER.encode(charter), charter.stamp, CHARTER_KEY)


def charter_of(record: BatchRecord) -> Charter | None:
    """Return the charter of a record; None if it is another record or unreadable."""
    if record.key != CHARTER_KEY:
        return None
    try:
        return _CHARTER.decode(record.payload)
    except (DecodeError, ValueError):  # ValueError: not UTF-8
        return None


def effective(rows: Iterable[CharterRow], clock: TopicClock) -> CharterRow | None:
    """Return the highest charter that is in effect, or None.

    Its ``effective_from`` has passed by both clocks, and its stamp is not in the future.
    """
    acting = (
        row
        for row in rows
        if row[0].effective_from <= clock.earlier and row[0].stamp <= clock.horizon
    )
    return max(acting, key=rank, default=None)


def following_charter(policy: Policy, newest: Charter | None, now: int, delay_us: int) -> Charter:
    """Return a charter that replaces the newest one and begins after a delay."""
    epoch, stamp = (newest.epoch, newest.stamp) if newest is not None else (0, 0)
    stamp = max(now, stamp + 1)
    return Charter(epoch=epoch, stamp=stamp, effective_from=stamp + delay_us, policy=policy)


def rank(row: CharterRow) -> tuple[int, int, bytes]:
    """Return the place of a charter in the order of all charters of its topic."""
    return row[0].epoch, row[0].stamp, row[1]


def superseded(rows: Iterable[CharterRow], acting: CharterRow | None) -> list[bytes]:
    """Return the ids of the charters that the effective one permanently replaces."""
    if acting is None:
        return []
    return [row[1] for row in rows if rank(row) < rank(acting)]
