"""Measurement of disk and memory of a topic with a limit in bytes."""

from __future__ import annotations

import pytest

from skipring.lab.retention import measure


@pytest.mark.heavy
def test_disk_and_memory_of_each_member_are_measured() -> None:
    (row,) = measure(limit_mib=64, times=3, members=2)
    assert (row["limit_mib"], row["published_mib"]) == (64, 192)
    assert row["disk_share_max"] <= 2.2
    assert row["read_share"] == 1
    assert 0.9 < row["disk_share_end"] < row["disk_share_max"] + 1e-9
    assert row["rss_mib_max"] > 1
