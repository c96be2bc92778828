"""``skipring bench history`` with few publications."""

import os
from pathlib import Path
from typing import Any

import pytest

from skipring.lab.bench.history import measure, ratios
from skipring.lab.bench.run import TOPIC
from skipring.lab.bench.servers import BATCH, fill_store
from skipring.lab.bench.worker import history_payload
from skipring.storage.store import LogStore

COUNT = 50

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def rows() -> Rows:
    return list(measure([COUNT], repeats=1, systems=["skipring"]))


@pytest.mark.heavy
def test_new_node_gets_everything(rows: Rows) -> None:
    row, last = rows
    assert (row["job"], row["system"], row["count"]) == ("history", "skipring", COUNT)
    assert row["delivered"] == COUNT
    assert row["repeats"] == 1
    assert last == {"ratios": {}}


@pytest.mark.heavy
def test_cost_includes_newcomer_and_servers(rows: Rows) -> None:
    row = rows[0]
    assert 0 < row["cpu_s_min"] <= row["cpu_s"] <= row["cpu_s_max"]
    assert row["cpu_s_newcomer"] > 0 < row["cpu_s_servers"]
    assert row["cpu_s_settled"] >= row["cpu_s_newcomer"]
    assert row["settled_s"] >= row["wall_s"] > 0


@pytest.mark.heavy
def test_first_arrival_precedes_the_last(rows: Rows) -> None:
    row = rows[0]
    assert 0 < row["first_s"] <= row["wall_s"]
    for name in ("first_s", "wall_s", "rss_mib_newcomer"):
        assert 0 < row[f"{name}_min"] <= row[name] <= row[f"{name}_max"]


def test_stored_history_has_full_batches_and_depends_on_the_count_only(tmp_path: Path) -> None:
    ids = []
    for name in ("one", "other"):
        fill_store(tmp_path / name, 2 * BATCH + 7, 32)
        with LogStore.open(tmp_path / name) as store:
            log = store.log(TOPIC)
            batches = [entry.batch for entry in log.read_range(0, log.end)]
            assert log.durable_end == log.end == 2 * BATCH + 7
        assert [batch.count for batch in batches] == [BATCH, BATCH, 7]
        assert all(batch.is_genuine(TOPIC) for batch in batches)
        payloads = [record.payload for batch in batches for record in batch.records()]
        assert payloads == [history_payload(n, 32) for n in range(2 * BATCH + 7)]
        ids.append([batch.id for batch in batches])
    assert ids[0] == ids[1]


def _row(system: str, count: int, cpu_s: float) -> dict[str, Any]:
    costs = {"cpu_s": cpu_s, "cpu_us_per_publication": 1e6 * cpu_s / count}
    return {"system": system, "count": count, **costs}


def test_goals_are_set_for_systems_that_store() -> None:
    costs = {
        "skipring": 2.0,
        "skipring-tls": 3.0,
        "jetstream": 6.0,
        "jetstream-stored": 8.0,
        "redis-streams": 0.5,
        "redis-streams-stored": 1.0,
    }
    rows = [_row(system, 100, cost) for system, cost in costs.items()]
    assert ratios(rows) == {
        "cpu_skipring-tls_over_skipring_100": 1.5,
        "cpu_jetstream_over_skipring_100": 3.0,
        "cpu_jetstream-stored_over_skipring_100": 4.0,
        "cpu_jetstream-stored_over_skipring_100_at_least": 2.0,
        "cpu_jetstream-stored_over_skipring_100_reached": 2.0,
        "cpu_redis-streams_over_skipring_100": 0.25,
        "cpu_redis-streams-stored_over_skipring_100": 0.5,
        "cpu_redis-streams-stored_over_skipring_100_at_least": 1.0,
        "cpu_redis-streams-stored_over_skipring_100_reached": 0.5,
    }
    assert ratios(rows[1:]) == {}


def test_only_the_longest_history_has_goals() -> None:
    rows = [
        _row("skipring", 10, 1.0),
        _row("jetstream-stored", 10, 1.0),
        _row("skipring", 100, 5.0),
        _row("jetstream-stored", 100, 20.0),
    ]
    assert ratios(rows) == {
        "cpu_jetstream-stored_over_skipring_10": 1.0,
        "cpu_jetstream-stored_over_skipring_100": 4.0,
        "cpu_jetstream-stored_over_skipring_100_at_least": 2.0,
        "cpu_jetstream-stored_over_skipring_100_reached": 2.0,
        "cpu_skipring_history_100_over_10": 0.5,
        "cpu_jetstream-stored_history_100_over_10": 2.0,
    }


def test_incomplete_fetch_is_not_compared() -> None:
    early = _row("jetstream", 100, 1.0) | {"failed": "6 of 100 publications arrived"}
    assert ratios([_row("skipring", 100, 2.0), early]) == {}


@pytest.mark.heavy
def test_failed_system_is_reported_and_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\necho no room >&2\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("skipring.lab.bench.systems.catalog.find_spec", lambda _: object())
    bad, good, last = measure([COUNT], repeats=1, systems=["redis-streams", "skipring"])
    assert bad["failed"] == "redis-server does not start: no room"
    assert good["delivered"] == COUNT
    assert last == {"ratios": {}}


def test_missing_system_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    rows = list(measure([COUNT], repeats=1, systems=["jetstream"]))
    assert rows[0]["skipped"].startswith("not installed: apt-get install nats-server")
    assert rows[1:] == [{"ratios": {}}]
