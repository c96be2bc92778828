"""Input partitions: ranges in groups of equal size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skipring.spark.partitions import cut


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
