"""``skipring bench kv`` with few writes."""

from __future__ import annotations

import pytest

from skipring.lab.bench.kv import measure
from skipring.lab.bench.systems.catalog import OURS


@pytest.mark.heavy
def test_row_has_the_costs_of_writes_reads_watches_and_of_a_newcomer() -> None:
    (row,) = measure(keys=100, puts=2000, repeats=1, systems=[OURS])
    assert (row["job"], row["system"], row["keys"], row["puts"]) == ("kv", OURS, 100, 2000)
    names = ("put_many_cpu_us", "put_many_per_s", "newcomer_s", "put_cpu_us", "get_us")
    assert all(row[name] > 0 for name in names)
    assert 0 < row["put_p50_ms"] <= row["watch_p50_ms"]
    assert row["delivery_p50_ms"] > 0
    assert 100 <= row["live_records"] <= 110
