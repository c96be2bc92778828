"""``skipring bench fanout`` on small rings."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from skipring.cli import skipring
from skipring.lab.bench import fanout
from skipring.lab.bench.fanout import (
    HOPS,
    HOTTEST,
    JOBS,
    LATENCY,
    SUSTAINED,
    THROUGHPUT,
    job_of,
    measure,
)
from skipring.lab.bench.systems import catalog
from skipring.lab.bench.systems.catalog import OURS

N, COUNT = 4, 50

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def rows() -> Rows:
    systems = ["skipring", "skipring-tls"]
    return list(measure([N], count=COUNT, repeats=1, systems=systems, jobs=[THROUGHPUT, LATENCY]))


@pytest.mark.heavy
def test_each_measurement_is_a_row(rows: Rows) -> None:
    assert [(row["job"], row["system"], row["n"]) for row in rows] == [
        (job, system, N) for job in (THROUGHPUT, LATENCY) for system in ("skipring", "skipring-tls")
    ]


@pytest.mark.heavy
def test_everything_arrives_with_few_messages_to_the_supervisor(rows: Rows) -> None:
    for row in rows:
        assert row["delivered"] == N * COUNT
        assert 1 <= row["messages_per_delivery"] < 5  # 1 in calm weather, a flood makes 3.5
        assert row["supervisor_messages_per_publication"] < 1


@pytest.mark.heavy
def test_cost_is_the_sum_of_all_processes_and_grows_until_settled(rows: Rows) -> None:
    for row in rows:
        parts = [row[f"cpu_us_{part}"] for part in ("publisher", "subscribers", "broker")]
        assert sum(parts) == pytest.approx(row["cpu_us_per_delivery"], abs=0.01)
        assert parts[0] > 0 < parts[1]
        assert row["cpu_us_per_delivery_settled"] >= row["cpu_us_per_delivery"]
        assert row["settled_s"] >= row["wall_s"] > 0
        assert row["rss_kib_per_subscriber"] > 0


@pytest.mark.heavy
def test_latencies_are_measured_at_a_rate_only(rows: Rows) -> None:
    for row in rows:
        assert (row["rate"] > 0) is ("p50_ms" in row) is (row["job"] == LATENCY)
        if row["job"] == LATENCY:
            assert 0 < row["p50_ms"] <= row["p99_ms"]


def test_slow_system_has_no_sustained_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "find_spec", lambda _: None)
    systems = ["zenoh", "zeromq-asyncio"]
    rows = list(measure([256], systems=systems, jobs=[SUSTAINED]))
    assert [(row["system"], row["n"]) for row in rows] == [("zenoh", 64)]


def test_command_adds_skipring_to_the_given_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def measured(_: list[int], *, systems: list[str], **__: object) -> list[dict[str, object]]:
        asked.append(systems)
        return [{"system": name} for name in systems]

    monkeypatch.setattr(fanout, "measure", measured)
    for against in ("zenoh,nats", "nats,skipring", OURS):
        command = ["bench", "fanout", "--n", "2,3", "--against", against, "--job", THROUGHPUT]
        got = CliRunner().invoke(skipring, command)
        assert [json.loads(line)["system"] for line in got.output.splitlines()] == asked[-1]
    assert asked == [[OURS, "zenoh", "nats"], ["nats", OURS], [OURS]]
    wrong = CliRunner().invoke(skipring, ["bench", "fanout", "--against", "zenoh,kafka"])
    assert wrong.exit_code == 2
    assert "'kafka' is not one of" in wrong.output


# -- hottest -----------------------------------------------------------------------------------


@pytest.mark.heavy
def test_first_member_sends_most_and_is_measured_separately() -> None:
    for _ in range(3):  # on a busy machine the member may be evicted, and lose the first label
        (row,) = measure([12], count=200, repeats=1, systems=["skipring"], jobs=[HOTTEST])
        assert (row["job"], row["system"], row["n"]) == ("hottest", "skipring", 12)
        if row["copies_per_publication"] > row["copies_per_publication_others"]:
            break
    assert row["copies_per_publication"] > row["copies_per_publication_others"] > 0
    assert row["cpu_us_per_publication_settled"] >= row["cpu_us_per_publication"] > 0
    assert 0 < row["rss_mib_min"] <= row["rss_mib"] <= row["rss_mib_max"]


# -- other jobs --------------------------------------------------------------------------------


@pytest.mark.heavy
def test_members_with_their_own_processes_show_the_latency_of_a_hop() -> None:
    (row,) = measure([N], count=COUNT, repeats=1, systems=["skipring"], jobs=[HOPS])
    assert (row["job"], row["n"]) == (HOPS, N)
    assert 1 <= row["hops_max"] < N
    assert 0 < row["p50_ms_per_hop"] <= row["p50_ms"]
    assert row["cpu_us_per_delivery"] > 0


@pytest.mark.heavy
def test_each_subscriber_receives_all_topics() -> None:
    (row,) = measure([N], count=COUNT, repeats=1, systems=["skipring"], jobs=["topics-16"])
    assert (row["topics"], row["n"], row["delivered"]) == (16, N, N * COUNT)


def test_job_has_at_most_the_requested_subscribers() -> None:
    found = {name: job_of(name, 8).run for name in JOBS}
    assert {name: run.n + run.apart for name, run in found.items()} == {
        name: 4 if name.startswith("topics") else 8 for name in JOBS
    }
    assert (found[HOPS].n, found[HOPS].apart) == (1, 7)
    assert (job_of(HOPS, 3).run.n, job_of(HOPS, 3).run.apart) == (1, 2)
    assert job_of(THROUGHPUT, 256).run.n == 256
    assert job_of(LATENCY, 256).run.n == 64


def test_requested_parameters_replace_those_of_the_job() -> None:
    run = job_of("size-16384", 64, count=7, rate=None).run
    assert (run.size, run.count, run.rate) == (16_384, 7, 0.0)
    assert job_of(LATENCY, 64, rate=50.0).run.rate == 50.0
