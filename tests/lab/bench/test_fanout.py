"""``skipring bench fanout`` on small rings."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from skipring.cli import skipring
from skipring.errors import SkipringError
from skipring.lab.bench import fanout
from skipring.lab.bench.fanout import (
    BUSY,
    HOPS,
    HOTTEST,
    JOBS,
    LATENCY,
    LOSS,
    SUSTAINED,
    THROUGHPUT,
    job_of,
    measure,
    measure_loss,
    ratios,
)
from skipring.lab.bench.systems import catalog
from skipring.lab.bench.systems.catalog import OURS, SYSTEMS

N, COUNT = 4, 50

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def rows() -> Rows:
    systems = ["skipring", "skipring-tls"]
    return list(measure([N], count=COUNT, repeats=1, systems=systems, jobs=[THROUGHPUT, LATENCY]))


@pytest.mark.heavy
def test_each_measurement_is_a_row_and_ratios_are_last(rows: Rows) -> None:
    *measured, last = rows
    assert [(row["job"], row["system"], row["n"]) for row in measured] == [
        (job, system, N) for job in (THROUGHPUT, LATENCY) for system in ("skipring", "skipring-tls")
    ]
    assert list(last) == ["ratios"]


@pytest.mark.heavy
def test_everything_arrives_with_few_messages_to_the_supervisor(
    rows: Rows,
) -> None:
    for row in rows[:-1]:
        assert row["delivered"] == N * COUNT
        assert 1 <= row["messages_per_delivery"] < 5  # 1 in calm weather, a flood makes 3.5
        assert row["supervisor_messages_per_publication"] < 1


@pytest.mark.heavy
def test_cost_is_the_sum_of_all_processes_and_grows_until_settled(rows: Rows) -> None:
    for row in rows[:-1]:
        parts = [row[f"cpu_us_{part}"] for part in ("publisher", "subscribers", "broker")]
        assert sum(parts) == pytest.approx(row["cpu_us_per_delivery"], abs=0.01)
        assert parts[0] > 0 < parts[1]
        assert row["cpu_us_per_delivery_settled"] >= row["cpu_us_per_delivery"]
        assert row["settled_s"] >= row["wall_s"] > 0
        assert row["rss_kib_per_subscriber"] > 0


@pytest.mark.heavy
def test_latencies_are_measured_at_a_rate_only(rows: Rows) -> None:
    for row in rows[:-1]:
        assert (row["rate"] > 0) is ("p50_ms" in row) is (row["job"] == LATENCY)
        if row["job"] == LATENCY:
            assert 0 < row["p50_ms"] <= row["p99_ms"]


@pytest.mark.heavy
def test_ratios_follow_from_the_rows(rows: Rows) -> None:
    own, secured, *_ = rows
    assert rows[-1]["ratios"]["cpu_skipring-tls_over_skipring_n4"] == pytest.approx(
        secured["cpu_us_per_delivery"] / own["cpu_us_per_delivery"], abs=0.01
    )
    assert ratios(rows[:-1]) == rows[-1]["ratios"]


def _row(job: str, system: str, cpu: float, settled: float, **figures: float) -> dict[str, Any]:
    costs = {"cpu_us_per_delivery": cpu, "cpu_us_per_delivery_settled": settled}
    return {"job": job, "system": system, "n": 64, **costs, **figures}


OWN = {"messages_per_delivery": 1.0, "supervisor_messages_per_publication": 0.0}


def test_ratios_are_shown_with_their_goals() -> None:
    found = ratios(
        [
            _row(THROUGHPUT, "skipring", 2.0, 4.0, **OWN),
            _row(THROUGHPUT, "nats", 5.0, 6.0),
            _row(THROUGHPUT, "zeromq", 1.0, 1.0),
            _row(THROUGHPUT, "redis", 8.0, 8.0),
            {"job": THROUGHPUT, "system": "zenoh", "n": 64, "skipped": "not installed: ..."},
            _row(LATENCY, "skipring", 2.0, 2.0, p50_ms=2.0, **OWN),
            _row(LATENCY, "nats", 9.0, 9.0, p50_ms=1.5),
            _row(LATENCY, "relay", 9.0, 9.0, p50_ms=1.2),
        ]
    )
    said = "supervisor_messages_per_publication"
    assert found == {
        "cpu_nats_over_skipring_n64": 2.5,
        "cpu_nats_over_skipring_n64_at_least": 2.5,
        "cpu_nats_over_skipring_n64_reached": 1.0,
        "cpu_nats_over_skipring_n64_settled": 1.5,
        "cpu_zeromq_over_skipring_n64": 0.5,
        "cpu_zeromq_over_skipring_n64_at_least": 0.3333,
        "cpu_zeromq_over_skipring_n64_reached": 1.5,
        "cpu_zeromq_over_skipring_n64_settled": 0.25,
        "cpu_redis_over_skipring_n64": 4.0,
        "cpu_redis_over_skipring_n64_settled": 2.0,
        "p50_nats_over_skipring_n64": 0.75,
        "p50_nats_over_skipring_n64_at_least": 1.5,
        "p50_nats_over_skipring_n64_reached": 0.5,
        "p50_relay_over_skipring_n64": 0.6,
        "p50_nats_over_relay_n64": 1.25,
        "cpu_settled_over_delivered_throughput_n64": 2.0,
    } | {
        f"{name}_{job}_n64{suffix}": value
        for job in (THROUGHPUT, LATENCY)
        for name, values in (("messages_per_delivery", (1.0, 1.2, 1.2)), (said, (0.0, 0.0, 1.0)))
        for suffix, value in zip(("", "_at_most", "_reached"), values, strict=True)
    }


def test_sustained_run_has_its_own_ratios() -> None:
    found = ratios(
        [_row(SUSTAINED, "skipring", 5.0, 10.0, **OWN), _row(SUSTAINED, "nats", 5.0, 5.0)]
    )
    assert found["cpu_nats_over_skipring_sustained_n64"] == 1.0
    assert found["cpu_nats_over_skipring_sustained_n64_reached"] == 0.4
    assert found["cpu_nats_over_skipring_sustained_n64_settled"] == 0.5
    assert found["cpu_settled_over_delivered_sustained_n64"] == 2.0


@pytest.mark.parametrize("loser", ["skipring", "nats"])
def test_incomplete_run_has_no_ratio(loser: str) -> None:
    rows = [_row(THROUGHPUT, "skipring", 2.0, 4.0, **OWN), _row(THROUGHPUT, "nats", 5.0, 5.0)]
    assert "cpu_nats_over_skipring_n64" in ratios(rows)
    lost = [row | {"failed": "..."} if row["system"] == loser else row for row in rows]
    assert not [name for name in ratios(lost) if "nats" in name]


def test_slow_system_has_no_sustained_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "find_spec", lambda _: None)
    systems = ["zenoh", "zeromq-asyncio"]
    rows = list(measure([256], systems=systems, jobs=[SUSTAINED]))
    assert [(row["system"], row["n"]) for row in rows[:-1]] == [("zenoh", 64)]


@pytest.mark.heavy
def test_sustained_run_delivers_everything() -> None:
    row, last = measure([N], count=COUNT, repeats=1, systems=["skipring"], jobs=[SUSTAINED])
    assert (row["job"], row["n"], row["count"]) == (SUSTAINED, N, COUNT)
    assert row["delivered"] == N * COUNT
    assert f"cpu_settled_over_delivered_sustained_n{N}" in last["ratios"]


@pytest.mark.heavy
def test_survivors_end_with_everything_after_loss_and_a_crash() -> None:
    row = measure_loss(n=8, count=200, share=0.05)
    assert row["complete"] is True
    assert (row["killed"], row["survivors"], row["publications"]) == (1, 7, 200)
    assert row["frames_dropped"] > 0
    assert row["missing"] == 0


@pytest.mark.heavy
def test_missing_publications_are_counted() -> None:
    row = measure_loss(n=4, count=100, share=1.0, deadline_s=0.5)  # all frames are lost
    assert row["complete"] is False
    assert row["missing"] > 0
    name = "complete_after_loss_n4"
    assert ratios([row]) == {name: 0.0, f"{name}_at_least": 1.0, f"{name}_reached": 0.0}


def test_failed_loss_run_is_reported_without_a_ratio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(**_: object) -> None:
        raise SkipringError("no room")

    monkeypatch.setattr(fanout, "measure_loss", fail)
    row, last = measure([N], systems=["skipring"], jobs=[LOSS])
    assert row == {"job": "loss", "system": "skipring", "n": N, "failed": "no room"}
    assert last == {"ratios": {}}


def test_command_adds_skipring_to_the_given_systems(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
        row, _ = measure([12], count=200, repeats=1, systems=["skipring"], jobs=[HOTTEST])
        assert (row["job"], row["system"], row["n"]) == ("hottest", "skipring", 12)
        if row["copies_per_publication"] > row["copies_per_publication_others"]:
            break
    assert row["copies_per_publication"] > row["copies_per_publication_others"] > 0
    assert row["cpu_us_per_publication_settled"] >= row["cpu_us_per_publication"] > 0
    assert 0 < row["rss_mib_min"] <= row["rss_mib"] <= row["rss_mib_max"]


@pytest.mark.heavy
def test_broker_is_measured_as_a_process() -> None:
    if SYSTEMS["nats"].missing is not None:
        pytest.skip("not installed")
    systems = ["zeromq", "nats"]  # the first has no broker
    row, last = measure([3], count=200, repeats=1, systems=systems, jobs=[HOTTEST])
    assert (row["system"], row["copies_per_publication"]) == ("nats", 3)
    assert row["cpu_us_per_publication"] > 0 < row["rss_mib"]
    assert last == {"ratios": {}}


# -- other jobs --------------------------------------------------------------------------------


@pytest.mark.heavy
def test_members_with_their_own_processes_show_the_latency_of_a_hop() -> None:
    row, last = measure([N], count=COUNT, repeats=1, systems=["skipring"], jobs=[HOPS])
    assert (row["job"], row["n"]) == (HOPS, N)
    assert 1 <= row["hops_max"] < N
    assert 0 < row["p50_ms_per_hop"] <= row["p50_ms"]
    assert row["cpu_us_per_delivery"] > 0
    assert last == {"ratios": {}}


@pytest.mark.heavy
def test_busy_run_competes_with_a_process_for_each_core() -> None:
    systems = ["skipring", "relay"]
    own, relay, last = measure([N], count=COUNT, repeats=1, systems=systems, jobs=[BUSY])
    assert (own["job"], relay["job"]) == (BUSY, BUSY)
    assert 0 < own["p50_ms"] <= own["p99_ms"]
    ratio = relay["p50_ms"] / own["p50_ms"]
    name = f"p50_relay_over_skipring_busy_n{N}"
    assert last["ratios"] == {name: pytest.approx(ratio, abs=0.01)}


@pytest.mark.heavy
@pytest.mark.parametrize("system", ["skipring", "nats"])
def test_each_subscriber_receives_all_topics(system: str) -> None:
    if SYSTEMS[system].missing is not None:
        pytest.skip("not installed")
    row, _ = measure([N], count=COUNT, repeats=1, systems=[system], jobs=["topics-16"])
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


def test_payload_sizes_have_ratios_without_goals() -> None:
    rows = [_row("size-16384", "skipring", 30.0, 60.0), _row("size-16384", "nats", 45.0, 45.0)]
    assert ratios(rows) == {
        "cpu_nats_over_skipring_size-16384_n64": 1.5,
        "cpu_nats_over_skipring_size-16384_n64_settled": 0.75,
    }
