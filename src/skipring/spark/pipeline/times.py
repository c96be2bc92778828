"""Sets of times: ranges of microseconds that prune dates, files and windows."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Final

from msgspec import Struct
from pyspark.sql import Column
from pyspark.sql import functions as F

MICROSECONDS: Final = 1_000_000
DAY_S: Final = 86_400
MINUTE_US: Final = 60 * MICROSECONDS
# A publication may have any time. Beyond these limits it has no window, as if its time were
# unknown: the year 2262, the largest time of pandas, and the end of the first day of the epoch.
# Rows without a time have the date of that day, because pandas reads no partitions without a value.
TIME_END_US: Final = 9_214_646_400_000_000
TIME_BEGIN_US: Final = 86_400 * MICROSECONDS
NO_DATE: Final = "1970-01-01"
SPANS_MAX: Final = 16  # Guess: a condition of this size is planned fast.

Span = tuple[int, int]  # first and last microsecond


class Times(Struct, frozen=True):
    """Ranges of times, and rows without a time."""

    spans: tuple[Span, ...] = ()
    has_null: bool = False

    @classmethod
    def of(cls, spans: Iterable[Span], *, has_null: bool = False) -> Times:
        """Return ranges that contain these; of too many the nearest are merged."""
        merged: list[Span] = []
        for first, last in sorted(spans):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(merged[-1][1], last)
            else:
                merged.append((first, last))
        while len(merged) > SPANS_MAX:
            gaps = [after[0] - before[1] for before, after in pairwise(merged)]
            at = gaps.index(min(gaps))
            merged[at : at + 2] = [(merged[at][0], merged[at + 1][1])]
        return cls(tuple(merged), has_null)

    @classmethod
    def of_minutes(cls, minutes: Iterable[int], *, has_null: bool = False) -> Times:
        """Return the ranges of minutes since the epoch."""
        spans = ((each * MINUTE_US, (each + 1) * MINUTE_US - 1) for each in minutes)
        return cls.of(spans, has_null=has_null)

    def __bool__(self) -> bool:
        return bool(self.spans) or self.has_null

    def aligned(self, width_s: int) -> Times:
        """Return the ranges of the whole windows."""
        width = width_s * MICROSECONDS
        spans = ((a - a % width, b - b % width + width - 1) for a, b in self.spans)
        return Times.of(spans, has_null=self.has_null)

    def extended(self, before_s: int = 0, after_s: int = 0) -> Times:
        """Return the ranges with the times before and after them."""
        before, after = before_s * MICROSECONDS, after_s * MICROSECONDS
        spans = ((a - before, b + after) for a, b in self.spans)
        return Times.of(spans, has_null=self.has_null)

    def joined(self, other: Times) -> Times:
        """Return the ranges of both."""
        return Times.of((*self.spans, *other.spans), has_null=self.has_null or other.has_null)

    def overlaps(self, span: Span | None) -> bool:
        """Return True if a file with these times may have rows; None is a file without times."""
        if span is None:
            return self.has_null
        return any(first <= span[1] and span[0] <= last for first, last in self.spans)

    def has_date(self, day: date | None) -> bool:
        """Return True if a day overlaps; None are the rows without a time."""
        if day is None:
            return self.has_null
        first = round(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * MICROSECONDS
        return self.overlaps((first, first + 86_400 * MICROSECONDS - 1))

    def has(self, time: Column) -> Column:
        """Return a condition for a column of timestamps."""
        found = F.lit(False)
        for first, last in self.spans:
            found = found | time.between(_timestamp(first), _timestamp(last))
        is_known = time.between(_timestamp(TIME_BEGIN_US), _timestamp(TIME_END_US - 1))
        return found | time.isNull() | ~is_known if self.has_null else found


def micros(time: Column) -> Column:
    """Return the microseconds of a time; null outside the limits."""
    at = F.unix_micros(time)
    return F.when(at.between(TIME_BEGIN_US, TIME_END_US - 1), at)


def minute(time: Column) -> Column:
    """Return the number of a time's minute."""
    return F.floor(micros(time) / MINUTE_US)


def date_of(time: Column) -> Column:
    """Return the date of a time, or NO_DATE."""
    none = F.lit(NO_DATE).cast("date")
    return F.when(micros(time).isNotNull(), F.to_date(time)).otherwise(none)


def window_start(time: Column, width_s: int) -> Column:
    """Return the start of a time's window; null without a time."""
    at = micros(time)
    return F.timestamp_micros(at - F.pmod(at, F.lit(width_s * MICROSECONDS)))


def _timestamp(time_us: int) -> Column:
    return F.timestamp_micros(F.lit(time_us))
