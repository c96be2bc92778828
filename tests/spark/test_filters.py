"""Filters that members evaluate: each is exact or left to Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from skipring.core.limits import FILTER_VALUES_MAX, KEY_BYTES_MAX, NUMBER_MAX
from skipring.core.log_messages import RecordFilter
from skipring.core.publications import ID_BYTES
from skipring.spark.filters import KEYS_BYTES_MAX, Pushed, push, with_id_range

BEFORE = Pushed(RecordFilter(), ("orders", "news"))
TIME = datetime(2026, 1, 1, tzinfo=UTC)
TIME_US = 1_767_225_600_000_000


def where(*filters: Filter) -> RecordFilter:
    """Return the filter of the members; Spark evaluates no other one."""
    pushed, rest = push(filters, BEFORE)
    assert rest == []
    return pushed.where


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (EqualTo(("publisher",), "a"), RecordFilter(publishers=("a",))),
        (EqualNullSafe(("key",), b"k"), RecordFilter(keys=(b"k",))),
        (In(("publisher",), ("a", "b", "a", "no name")), RecordFilter(publishers=("a", "b"))),
        (In(("key",), (b"", bytes(KEY_BYTES_MAX + 1))), RecordFilter(keys=(b"",))),
        (EqualTo(("sequence",), 7), RecordFilter(sequence=(7, 7))),
        (GreaterThan(("sequence",), 7), RecordFilter(sequence=(8, NUMBER_MAX))),
        (LessThan(("sequence",), 7), RecordFilter(sequence=(0, 6))),
        (GreaterThanOrEqual(("timestamp",), TIME), RecordFilter(times=(TIME_US, NUMBER_MAX))),
        (LessThanOrEqual(("timestamp",), TIME), RecordFilter(times=(0, TIME_US))),
        (
            EqualTo(("timestamp",), TIME + timedelta(microseconds=1)),
            RecordFilter(times=(TIME_US + 1, TIME_US + 1)),
        ),
    ],
)
def test_filter_is_evaluated_by_members(given: Filter, expected: RecordFilter) -> None:
    assert where(given) == expected


def test_filters_apply_together() -> None:
    found = where(
        In(("publisher",), ("a", "b")),
        In(("publisher",), ("b", "c")),
        In(("key",), (b"1", b"2")),
        EqualTo(("key",), b"2"),
        GreaterThanOrEqual(("sequence",), 3),
        LessThan(("sequence",), 9),
        LessThanOrEqual(("sequence",), 20),
    )
    assert found == RecordFilter(publishers=("b",), keys=(b"2",), sequence=(3, 8))


@pytest.mark.parametrize(
    "filters",
    [
        [EqualTo(("publisher",), "a"), EqualTo(("publisher",), "b")],
        [EqualTo(("publisher",), "no name")],
        [EqualTo(("topic",), "other")],
        [GreaterThan(("sequence",), 9), LessThan(("sequence",), 10)],
        [LessThan(("sequence",), 0)],
        [GreaterThan(("sequence",), NUMBER_MAX)],
        [LessThan(("timestamp",), datetime(1970, 1, 1, tzinfo=UTC))],
        [EqualTo(("id",), bytes(32)), EqualTo(("id",), b"\1" * 32)],
        [GreaterThan(("id",), b"\2"), LessThan(("id",), b"\1")],
    ],
)
def test_contradiction_reads_nothing(filters: list[Filter]) -> None:
    pushed, _ = push(filters, BEFORE)
    assert with_id_range(filters, pushed).is_empty


def test_topics_are_narrowed() -> None:
    pushed, rest = push([In(("topic",), ("news", "other"))], BEFORE)
    assert (pushed.topics, rest) == (("news",), [])
    given = [EqualTo(("topic",), "news")]
    assert push(given, BEFORE._replace(topics=None)) == (BEFORE._replace(topics=None), given)


UNKNOWN: list[Filter] = [
    IsNotNull(("publisher",)),
    Not(EqualTo(("publisher",), "a")),
    StringStartsWith(("publisher",), "a"),
    GreaterThan(("publisher",), "a"),
    EqualTo(("publisher", "inner"), "a"),
    EqualTo(("value",), b"x"),
    EqualTo(("offset",), 3),
    EqualNullSafe(("key",), None),
    In(("key",), tuple(b"%d" % number for number in range(FILTER_VALUES_MAX + 1))),
    In(("key",), tuple(bytes([number]) * 1000 for number in range(KEYS_BYTES_MAX // 1000 + 1))),
    EqualTo(("timestamp",), datetime(2026, 1, 1)),  # noqa: DTZ001  (without a zone)
    In(("sequence",), (1, 2)),
]


@pytest.mark.parametrize("given", UNKNOWN, ids=str)
def test_other_filters_are_left_to_spark(given: Filter) -> None:
    assert push([given], BEFORE) == (BEFORE, [given])


ID = bytes(range(100, 100 + ID_BYTES))


@pytest.mark.parametrize(
    ("filters", "start"),
    [
        ([EqualTo(("id",), ID)], ID),
        ([GreaterThanOrEqual(("id",), b"\xab"), LessThan(("id",), b"\xac")], b"\xab"),
        ([GreaterThan(("id",), b"\xab\1"), LessThanOrEqual(("id",), b"\xab\1\7")], b"\xab\1"),
        ([GreaterThanOrEqual(("id",), b"\xff\xff")], b"\xff\xff"),
        ([GreaterThanOrEqual(("id",), b"\xab"), LessThan(("id",), b"\xad")], b""),
        ([EqualTo(("id",), ID), LessThan(("id",), b"\xff")], ID),
    ],
)
def test_filters_on_ids_give_a_prefix_and_are_left_to_spark(
    filters: list[Any], start: bytes
) -> None:
    pushed, rest = push(filters, BEFORE)
    assert with_id_range(filters, pushed).where == RecordFilter(id_start=start)
    assert rest == filters
