"""Index of batches by stamp, compared with a sorted list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipring.core.retention import stamp_index
from skipring.core.retention.charter import Policy
from skipring.core.retention.stamp_index import RowTotals, StampIndex

# stamp, offset, records, size; removed again or not
entries = st.lists(
    st.tuples(
        st.integers(0, 20),
        st.integers(0, 40),
        st.integers(1, 9),
        st.integers(64, 999),
        st.booleans(),
    ),
    max_size=60,
)


def full_floor(rows: list[tuple[int, int, int, int]], part: int, limit: int) -> int:
    """Return the stamp at which the running total, newest first, reaches a limit."""
    total = 0
    for row in sorted(rows, reverse=True):
        total += row[part]
        if total >= limit:
            return row[0]
    return 0


def totals(rows: list[tuple[int, int, int, int]]) -> RowTotals:
    return RowTotals(sum(row[2] for row in rows), sum(row[3] for row in rows))


@given(entries, st.integers(0, 21), st.integers(1, 60))
def test_index_equals_a_sorted_list(
    given_rows: list[tuple[int, int, int, int, bool]], stamp: int, limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stamp_index, "BUCKET_MAX", 4)
        index, model = StampIndex(), dict[tuple[int, int], tuple[int, int, int, int]]()
        for *row, _ in given_rows:
            assert index.add(*row) is ((row[0], row[1]) not in model)
            model.setdefault((row[0], row[1]), (row[0], row[1], row[2], row[3]))
        for each in given_rows:
            if each[4]:
                assert index.remove(*each[:2]) is (model.pop(each[:2], None) is not None)
    rows = sorted(model.values())
    below = [row for row in rows if row[0] < stamp]
    assert list(index.below(stamp)) == [row[:2] for row in below]
    assert len(index) == len(rows)
    assert index.extent == RowTotals(sum(r[2] for r in rows), sum(r[3] for r in rows))
    assert index.extent_below(stamp) == RowTotals(
        sum(r[2] for r in below), sum(r[3] for r in below)
    )
    counted, sized = Policy(max_count=limit), Policy(max_bytes=99 * limit)
    is_exceeded = index.records > limit
    assert index.full_floor(counted, slack=0) == (full_floor(rows, 2, limit) if is_exceeded else 0)
    is_exceeded = index.size_bytes > 99 * limit
    assert index.full_floor(sized, slack=0) == (
        full_floor(rows, 3, 99 * limit) if is_exceeded else 0
    )
    assert index.fill(counted, stamp) is (index.records - sum(r[2] for r in below) >= limit)


def test_limit_may_be_exceeded_by_a_sixteenth() -> None:
    index = StampIndex()
    for stamp in range(1, 35):
        index.add(stamp, stamp, 1, 64)
        assert bool(index.full_floor(Policy(max_count=32))) is (stamp > 34)
        assert index.exceeds(Policy(max_count=32)) is (stamp > 34)
    index.add(35, 35, 1, 64)
    assert index.full_floor(Policy(max_count=32)) == 4


def test_higher_floor_of_two_limits_counts() -> None:
    index = StampIndex()
    for stamp in range(1, 101):
        index.add(stamp, stamp, 1, 64)
    assert index.full_floor(Policy(max_count=50, max_bytes=640)) == 91
    assert index.full_floor(Policy(max_count=5, max_bytes=640)) == 96


def test_batches_with_sizes_beyond_16_bits_are_counted() -> None:
    index = StampIndex()
    index.add((1 << 63) - 1, 1 << 62, 256, 528 * 1024)
    assert index.extent == RowTotals(256, 528 * 1024)
