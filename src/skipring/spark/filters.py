"""Filters of a query: those that members evaluate, and the rest for Spark.

A member skips segments and record batches without a wanted record. The tasks then drop the other
rows of the batches that it sends, so a pushed filter is exact. Only filters on ``id`` are evaluated
by Spark as well, because members know prefixes of ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from msgspec.structs import replace
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from skipring.api.cursor import EPOCH, MICROSECOND
from skipring.core.limits import FILTER_VALUES_MAX, KEY_BYTES_MAX, NUMBER_MAX, match_node
from skipring.core.log_messages import RecordFilter
from skipring.core.peers import TopicId
from skipring.core.publications import ID_BYTES

KEYS_BYTES_MAX: Final = 8192  # Limit: a request has at most 16 KiB.
# First and last number that pass a comparison.
_BOUNDS: Final[Mapping[type, Callable[[int], tuple[int, int]]]] = MappingProxyType(
    {
        EqualTo: lambda number: (number, number),
        EqualNullSafe: lambda number: (number, number),
        GreaterThan: lambda number: (number + 1, NUMBER_MAX),
        GreaterThanOrEqual: lambda number: (number, NUMBER_MAX),
        LessThan: lambda number: (0, number - 1),
        LessThanOrEqual: lambda number: (0, number),
    }
)


class Pushed(NamedTuple):
    """Filters that members evaluate, and the topics to read."""

    where: RecordFilter
    topics: tuple[TopicId, ...] | None  # None: a pattern names them

    @property
    def is_empty(self) -> bool:
        """Return True if no record can pass."""
        where = self.where
        ranges = [bounds for bounds in (where.times, where.sequence) if bounds is not None]
        is_nothing = () in (where.publishers, where.keys, self.topics)
        return is_nothing or any(first > last for first, last in ranges)


def push(filters: Iterable[Filter], pushed: Pushed) -> tuple[Pushed, list[Filter]]:
    """Return the filters with others that all apply, and those that Spark must evaluate."""
    rest = []
    for each in filters:
        column = ".".join(getattr(each, "attribute", ()))
        narrowed = _NARROWED[column](each, pushed) if column in _NARROWED else None
        if narrowed is None or column == "id":
            rest.append(each)
        pushed = narrowed or pushed
    return pushed, rest


def _values(given: Filter) -> list[Any] | None:
    """Return the values that a column may have; None if the filter is another one."""
    if isinstance(given, EqualTo | EqualNullSafe):
        values = [given.value]
    elif isinstance(given, In):
        values = list(given.value)
    else:
        return None
    is_short = len(values) <= FILTER_VALUES_MAX
    return list(dict.fromkeys(values)) if is_short and None not in values else None


def _by_topic(given: Filter, pushed: Pushed) -> Pushed | None:
    values = _values(given)
    if values is None or pushed.topics is None:
        return None
    return pushed._replace(topics=tuple(each for each in pushed.topics if each in values))


def _by_publisher(given: Filter, pushed: Pushed) -> Pushed | None:
    values = _values(given)
    if values is None:
        return None
    before = pushed.where.publishers
    # Others cannot be the name of a publisher, and members refuse them.
    names = [each for each in values if match_node(each) and (before is None or each in before)]
    return pushed._replace(where=replace(pushed.where, publishers=tuple(names)))


def _by_key(given: Filter, pushed: Pushed) -> Pushed | None:
    values = _values(given)
    if values is None:
        return None
    before = pushed.where.keys
    keys = [bytes(each) for each in values if len(each) <= KEY_BYTES_MAX]
    if sum(map(len, keys)) > KEYS_BYTES_MAX:
        return None
    kept = tuple(each for each in keys if before is None or each in before)
    return pushed._replace(where=replace(pushed.where, keys=kept))


def _by_time(given: Filter, pushed: Pushed) -> Pushed | None:
    value = getattr(given, "value", None)
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    bounds = _bounds(given, (value - EPOCH) // MICROSECOND, pushed.where.times)
    return bounds and pushed._replace(where=replace(pushed.where, times=bounds))


def _by_sequence(given: Filter, pushed: Pushed) -> Pushed | None:
    value = getattr(given, "value", None)
    if not isinstance(value, int):
        return None
    bounds = _bounds(given, value, pushed.where.sequence)
    return bounds and pushed._replace(where=replace(pushed.where, sequence=bounds))


def _bounds(given: Filter, number: int, before: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return a range of numbers together with an earlier one; None if the filter is another one."""
    if type(given) not in _BOUNDS:
        return None
    first, last = _BOUNDS[type(given)](number)
    low, high = before or (0, NUMBER_MAX)
    return max(low, first), min(high, last)


def _by_id(given: Filter, pushed: Pushed) -> Pushed | None:
    """Return the prefix of ids: of one id, or of all ids in a range whose other bound is known."""
    value = getattr(given, "value", None)
    if not isinstance(given, EqualTo | EqualNullSafe) or value is None:
        return None
    return _with_start(bytes(value)[:ID_BYTES], pushed)


def _with_start(start: bytes, pushed: Pushed) -> Pushed:
    """Return the filters with a prefix of ids; no record passes if another one contradicts it."""
    before = pushed.where.id_start
    if not (start.startswith(before) or before.startswith(start)):
        return pushed._replace(topics=())
    return pushed._replace(where=replace(pushed.where, id_start=max(start, before, key=len)))


def with_id_range(filters: Iterable[Filter], pushed: Pushed) -> Pushed:
    """Return the filters with the prefix that all ids between two bounds have."""
    low, high = 0, (1 << 8 * ID_BYTES) - 1
    for each in filters:
        value = getattr(each, "value", None)
        if getattr(each, "attribute", ()) != ("id",) or not isinstance(value, bytes | bytearray):
            continue
        number = int.from_bytes(bytes(value)[:ID_BYTES].ljust(ID_BYTES, b"\0"), "big")
        if isinstance(each, GreaterThan | GreaterThanOrEqual):
            low = max(low, number)
        elif isinstance(each, LessThan | LessThanOrEqual):
            is_open = isinstance(each, LessThan) and len(value) <= ID_BYTES
            high = min(high, number - is_open)
    if low > high:
        return pushed._replace(topics=())
    same = ID_BYTES - -(-(low ^ high).bit_length() // 8)
    return _with_start(low.to_bytes(ID_BYTES, "big")[:same], pushed)


_NARROWED: Final[Mapping[str, Callable[[Filter, Pushed], Pushed | None]]] = MappingProxyType(
    {
        "topic": _by_topic,
        "publisher": _by_publisher,
        "key": _by_key,
        "timestamp": _by_time,
        "sequence": _by_sequence,
        "id": _by_id,
    }
)
