"""Input partitions: ranges in groups of equal size, and equal shares of several logs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skipring.spark.partitions import cut, shared_out


def _ranges(sizes: list[int]) -> list[range]:
    starts = [sum(sizes[:place]) + 3 * place for place in range(len(sizes))]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]


@given(
    st.lists(st.integers(0, 40)).map(_ranges),
    st.integers(1, 30),
)
def test_ranges_are_cut_into_groups_of_the_same_size(ranges: list[range], size: int) -> None:
    groups = list(cut(ranges, size))
    flat = [offset for group in groups for part in group for offset in part]
    assert flat == [offset for part in ranges for offset in part]
    assert all(sum(map(len, group)) == size for group in groups[:-1])
    assert all(0 < sum(map(len, group)) <= size for group in groups)


@given(st.dictionaries(st.text(), st.integers(0, 10**6)), st.integers(1, 10**6))
def test_limit_is_shared_by_the_topics_and_all_of_them_advance(
    ahead: dict[str, int], rows_max: int
) -> None:
    taken = shared_out(ahead, rows_max)
    assert taken.keys() == ahead.keys()
    assert all(0 <= taken[topic] <= count for topic, count in ahead.items())
    assert all(taken[topic] for topic, count in ahead.items() if count)
    assert sum(taken.values()) <= max(rows_max, 0) + len(ahead)
    assert shared_out(ahead, None) == ahead
