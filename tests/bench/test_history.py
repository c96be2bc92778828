"""What ``skipring bench history`` measures, with few publications."""

from typing import Any

import pytest

from skipring.bench.history import measure, ratios

COUNT = 50

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def rows() -> Rows:
    return list(measure(COUNT, repeats=1, systems=["skipring"]))


@pytest.mark.heavy
def test_a_newcomer_gets_everything(rows: Rows) -> None:
    row, last = rows
    assert (row["job"], row["system"], row["count"]) == ("history", "skipring", COUNT)
    assert row["delivered"] == row["expected"] == COUNT
    assert row["repeats"] == 1
    assert last == {"ratios": {}}


@pytest.mark.heavy
def test_the_cost_is_that_of_the_newcomer_and_of_those_who_have_it(rows: Rows) -> None:
    row = rows[0]
    assert 0 < row["cpu_s_min"] <= row["cpu_s"] <= row["cpu_s_max"]
    assert row["cpu_s_newcomer"] > 0 < row["cpu_s_servers"]
    assert row["cpu_s_settled"] >= row["cpu_s_newcomer"]
    assert row["settled_s"] >= row["wall_s"] > 0


def test_a_ratio_is_reached_from_1_on() -> None:
    costs = {"skipring": 2.0, "skipring-tls": 3.0, "jetstream": 8.0, "redis-streams": 1.0}
    whole = {"delivered": 7, "expected": 7}
    rows: Rows = [{"system": system, "cpu_s": cost, **whole} for system, cost in costs.items()]
    assert ratios(rows) == {
        "cpu_skipring-tls_over_skipring": 1.5,
        "cpu_jetstream_over_skipring": 4.0,
        "cpu_jetstream_over_skipring_over_wanted": 2.0,
        "cpu_redis-streams_over_skipring": 0.5,
        "cpu_redis-streams_over_skipring_over_wanted": 0.5,
    }
    assert ratios(rows[1:]) == {}


def test_who_stops_early_is_not_compared() -> None:
    whole: Rows = [{"system": "skipring", "cpu_s": 2.0, "delivered": 7, "expected": 7}]
    assert (
        ratios([*whole, {"system": "jetstream", "cpu_s": 1.0, "delivered": 6, "expected": 7}]) == {}
    )


def test_a_peer_that_is_not_installed_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    rows = list(measure(COUNT, repeats=1, systems=["jetstream"]))
    assert rows[0]["skipped"].startswith("not installed: apt-get install nats-server")
    assert rows[1:] == [{"ratios": {}}]
