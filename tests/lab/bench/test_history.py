"""``skipring bench history`` with few publications."""

import os
from pathlib import Path
from typing import Any

import pytest

from skipring.lab.bench.history import measure
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
    (row,) = rows
    assert (row["job"], row["system"], row["count"]) == ("history", "skipring", COUNT)
    assert row["delivered"] == COUNT
    assert row["repeats"] == 1


@pytest.mark.heavy
def test_cost_includes_newcomer_and_servers(rows: Rows) -> None:
    row = rows[0]
    assert 0 < row["cpu_s_min"] <= row["cpu_s"] <= row["cpu_s_max"]
    assert row["cpu_s_newcomer"] > 0 < row["cpu_s_servers"]
    assert row["cpu_s_settled"] >= row["cpu_s_newcomer"]
    assert row["settled_s"] >= row["wall_s"] > 0


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


@pytest.mark.heavy
def test_failed_system_is_reported_and_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\necho no room >&2\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("skipring.lab.bench.systems.catalog.find_spec", lambda _: object())
    bad, good = measure([COUNT], repeats=1, systems=["redis-streams", "skipring"])
    assert bad["failed"] == "redis-server does not start: no room"
    assert good["delivered"] == COUNT
