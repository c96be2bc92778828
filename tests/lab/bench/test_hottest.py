"""What the busiest node of a ring spends, beside a broker."""

import pytest

from skipring.lab.bench import hottest
from skipring.lab.bench.fanout import measure
from skipring.lab.bench.peers.catalogue import SYSTEMS, missing


@pytest.mark.heavy
def test_the_first_member_sends_most_and_is_measured_apart() -> None:
    row, _ = measure([12], count=200, repeats=1, systems=["skipring"], jobs=[hottest.JOB])
    assert (row["job"], row["system"], row["n"]) == ("hottest", "skipring", 12)
    assert row["delivered"] == row["expected"] == 12 * 200
    assert row["copies_per_publication"] > row["copies_per_publication_others"] > 0
    assert row["cpu_us_per_publication_settled"] >= row["cpu_us_per_publication"] > 0
    assert 0 < row["rss_mib_min"] <= row["rss_mib"] <= row["rss_mib_max"]


@pytest.mark.heavy
def test_a_broker_is_measured_as_a_process_too() -> None:
    if missing(SYSTEMS["nats"]) is not None:
        pytest.skip("not installed")
    systems = ["zeromq", "nats"]  # the first has no broker
    row, last = measure([3], count=200, repeats=1, systems=systems, jobs=[hottest.JOB])
    assert (row["system"], row["copies_per_publication"]) == ("nats", 3)
    assert row["delivered"] == row["expected"] == 600
    assert row["cpu_us_per_publication"] > 0 < row["rss_mib"]
    assert last == {"ratios": {}}


def test_a_ratio_above_1_says_that_a_broker_needs_more() -> None:
    def row(system: str, cpu: float, settled: float) -> dict[str, object]:
        costs = {"cpu_us_per_publication": cpu, "cpu_us_per_publication_settled": settled}
        return {"job": hottest.JOB, "system": system, "n": 64, **costs}

    rows = [row("skipring", 4.0, 16.0), row("nats", 24.0, 24.0)]
    assert hottest.ratios(rows) == {
        "cpu_nats_broker_over_hottest_n64": 6.0,
        "cpu_nats_broker_over_hottest_n64_settled": 1.5,
    }
    assert hottest.ratios([rows[0] | {"failed": "..."}, rows[1]]) == {}
