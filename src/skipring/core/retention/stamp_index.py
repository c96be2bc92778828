"""Index of batches by stamp: sorted buckets with their sizes, about 22 bytes for each batch."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from skipring.core.retention.charter import Policy

BUCKET_MAX: Final = 1024  # Measured: an insertion takes about 1 microsecond up to this size.
SLACK: Final = 16  # rows may exceed a limit by this part of it, so that the floor moves rarely


class RowTotals(NamedTuple):
    """Number of records, and size of their batches in messages."""

    records: int
    size_bytes: int

    def reaches(self, policy: Policy) -> bool:
        """Return True if one of the limits by count and bytes is reached."""
        count, size = policy.max_count, policy.max_bytes
        return (count is not None and self.records >= count) or (
            size is not None and self.size_bytes >= size
        )


class _Bucket:
    """Consecutive batches, sorted by stamp and offset."""

    __slots__ = ("offsets", "records", "size_bytes", "sizes", "stamps", "total")

    def __init__(self) -> None:
        self.stamps, self.offsets = array("q"), array("q")
        self.records, self.sizes = array("I"), array("I")
        self.total = self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.stamps)

    @property
    def first(self) -> tuple[int, int]:
        return self.stamps[0], self.offsets[0]

    def place(self, stamp: int, offset: int) -> int:
        """Return the place of the first batch that is not before (stamp, offset)."""
        low = bisect_left(self.stamps, stamp)
        return bisect_left(self.offsets, offset, low, bisect_right(self.stamps, stamp, low))

    def insert(self, place: int, stamp: int, offset: int, extent: RowTotals) -> None:
        self.stamps.insert(place, stamp)
        self.offsets.insert(place, offset)
        self.records.insert(place, extent.records)
        self.sizes.insert(place, extent.size_bytes)
        self.total += extent.records
        self.size_bytes += extent.size_bytes

    def remove(self, place: int) -> RowTotals:
        del self.stamps[place], self.offsets[place]
        extent = RowTotals(self.records.pop(place), self.sizes.pop(place))
        self.total -= extent.records
        self.size_bytes -= extent.size_bytes
        return extent

    def extend(self, other: _Bucket) -> None:
        self.stamps.extend(other.stamps)
        self.offsets.extend(other.offsets)
        self.records.extend(other.records)
        self.sizes.extend(other.sizes)
        self.total += other.total
        self.size_bytes += other.size_bytes

    def split(self) -> _Bucket:
        """Remove the second half and return it."""
        half, second = len(self) // 2, _Bucket()
        second.stamps, self.stamps = self.stamps[half:], self.stamps[:half]
        second.offsets, self.offsets = self.offsets[half:], self.offsets[:half]
        second.records, self.records = self.records[half:], self.records[:half]
        second.sizes, self.sizes = self.sizes[half:], self.sizes[:half]
        second.total, second.size_bytes = sum(second.records), sum(second.sizes)
        self.total -= second.total
        self.size_bytes -= second.size_bytes
        return second

    def from_place(self, place: int) -> Iterator[tuple[int, RowTotals]]:
        """Yield stamps and extents from a place on."""
        columns = (self.stamps, self.records, self.sizes)
        for stamp, records, size in islice(zip(*columns, strict=True), place, None):
            yield stamp, RowTotals(records, size)


class StampIndex:
    """Batches of a topic in the order of their stamps."""

    __slots__ = ("_buckets", "_firsts", "records", "size_bytes")

    def __init__(self) -> None:
        self._buckets: list[_Bucket] = []
        self._firsts: list[tuple[int, int]] = []  # of each bucket
        self.records = self.size_bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._buckets))

    def add(self, stamp: int, offset: int, records: int, size_bytes: int) -> bool:
        """Add a batch; return False if it is known."""
        if not self._buckets:
            self._insert_bucket(0, _Bucket())
        number = max(bisect_right(self._firsts, (stamp, offset)) - 1, 0)
        bucket = self._buckets[number]
        place = bucket.place(stamp, offset)
        if place < len(bucket) and (bucket.stamps[place], bucket.offsets[place]) == (stamp, offset):
            return False
        if place == len(bucket) >= BUCKET_MAX and number + 1 == len(self._buckets):
            bucket, place, number = _Bucket(), 0, number + 1  # keep a bucket of older ones full
            self._insert_bucket(number, bucket)
        bucket.insert(place, stamp, offset, RowTotals(records, size_bytes))
        self._firsts[number] = bucket.first
        self.records += records
        self.size_bytes += size_bytes
        if len(bucket) > BUCKET_MAX:
            self._insert_bucket(number + 1, bucket.split())
        return True

    def has(self, stamp: int, offset: int) -> bool:
        """Return True if a batch is known."""
        number = bisect_right(self._firsts, (stamp, offset)) - 1
        if number < 0:
            return False
        bucket = self._buckets[number]
        place = bucket.place(stamp, offset)
        return place < len(bucket) and (bucket.stamps[place], bucket.offsets[place]) == (
            stamp,
            offset,
        )

    def _insert_bucket(self, number: int, bucket: _Bucket) -> None:
        self._buckets.insert(number, bucket)
        self._firsts.insert(number, bucket.first if len(bucket) else (0, 0))

    def remove(self, stamp: int, offset: int) -> bool:
        """Remove a batch; return False if it is unknown."""
        if not self.has(stamp, offset):
            return False
        number = bisect_right(self._firsts, (stamp, offset)) - 1
        bucket = self._buckets[number]
        extent = bucket.remove(bucket.place(stamp, offset))
        self.records -= extent.records
        self.size_bytes -= extent.size_bytes
        self._shrink(number)
        return True

    def _shrink(self, number: int) -> None:
        """Drop an empty bucket; join a small one with the next."""
        bucket = self._buckets[number]
        if number + 1 < len(self._buckets):
            following = self._buckets[number + 1]
            if len(bucket) + len(following) <= BUCKET_MAX // 2:
                bucket.extend(following)
                del self._buckets[number + 1], self._firsts[number + 1]
        if len(bucket):
            self._firsts[number] = bucket.first
        else:
            del self._buckets[number], self._firsts[number]

    def below(self, stamp: int) -> Iterator[tuple[int, int]]:
        """Yield stamp and offset of the batches below a stamp, oldest first."""
        for bucket in self._buckets:
            for entry in zip(bucket.stamps, bucket.offsets, strict=True):
                if entry[0] >= stamp:
                    return
                yield entry

    def above(self, stamp: int) -> Iterator[tuple[int, int]]:
        """Yield stamp and offset of the batches above a stamp, newest first."""
        for bucket in reversed(self._buckets):
            for entry in zip(reversed(bucket.stamps), reversed(bucket.offsets), strict=True):
                if entry[0] <= stamp:
                    return
                yield entry

    @property
    def last(self) -> int:
        """Return the latest stamp; 0 without batches."""
        return self._buckets[-1].stamps[-1] if self._buckets else 0

    @property
    def extent(self) -> RowTotals:
        """Return the extent of all batches."""
        return RowTotals(self.records, self.size_bytes)

    def extent_below(self, stamp: int) -> RowTotals:
        """Return the extent of the batches below a stamp; the cost grows with their number."""
        records = size = 0
        for number, bucket in enumerate(self._buckets):
            if bucket.first[0] >= stamp:
                break
            following = self._firsts[number + 1 : number + 2]
            if following and following[0][0] < stamp:
                records, size = records + bucket.total, size + bucket.size_bytes
                continue
            place = bisect_left(bucket.stamps, stamp)
            records += sum(bucket.records[:place])
            size += sum(bucket.sizes[:place])
        return RowTotals(records, size)

    def fill(self, policy: Policy, stamp: int) -> bool:
        """Return True if the batches from a stamp on reach a limit by themselves."""
        below = self.extent_below(stamp)
        return RowTotals(self.records - below.records, self.size_bytes - below.size_bytes).reaches(
            policy
        )

    def exceeds(self, policy: Policy, slack: int = SLACK) -> bool:
        """Return True if a limit by count or bytes is exceeded by 1/``slack`` of it."""
        limits = zip(self.extent, (policy.max_count, policy.max_bytes), strict=True)
        return any(
            limit is not None and found > limit + (limit // slack if slack else 0)
            for found, limit in limits
        )

    def full_floor(self, policy: Policy, slack: int = SLACK) -> int:
        """Return the floor by count and bytes; 0 while no limit is exceeded by 1/``slack`` of it.

        It is the stamp of the batch at which the running total, newest first, reaches a limit.
        Batches with the same stamp stay. A ``slack`` of 0 means: none.
        """
        floor = 0
        for part, limit in ((0, policy.max_count), (1, policy.max_bytes)):
            if limit is not None:
                extra = limit // slack if slack else 0
                if self.extent[part] > limit + extra:
                    floor = max(floor, self._reaching(limit, part))
        return floor

    def _reaching(self, limit: int, part: int) -> int:
        """Return the highest stamp from which on the records or bytes reach a limit."""
        rest, floor = self.extent[part], 0
        for bucket in self._buckets:
            total = bucket.size_bytes if part else bucket.total
            if rest - total >= limit:
                rest -= total
                continue
            for stamp, extent in bucket.from_place(0):
                if rest < limit:
                    return floor
                floor, rest = stamp, rest - extent[part]
            if rest < limit:
                return floor
        return floor
