"""``skipring bench fanout`` on small rings."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from skipring.cli import skipring
from skipring.errors import SkipringError
from skipring.lab.bench import fanout, harness
from skipring.lab.bench.fanout import (
    GROWTH,
    HOTTEST,
    LATENCY,
    LOSS,
    SUSTAINED,
    THROUGHPUT,
    measure,
    measure_loss,
    ratios,
)
from skipring.lab.bench.harness import RunResult, delivery_row
from skipring.lab.bench.run import BenchRun
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
        assert row["delivered"] == row["expected"] == N * COUNT
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


WHOLE = {"delivered": 320, "expected": 320}


def _row(job: str, system: str, cpu: float, settled: float, **figures: float) -> dict[str, Any]:
    costs = {"cpu_us_per_delivery": cpu, "cpu_us_per_delivery_settled": settled}
    return {"job": job, "system": system, "n": 64, **costs, **WHOLE, **figures}


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


def test_incomplete_run_is_marked_as_failed() -> None:
    outcome = _outcome(delivered=199.0)
    run = BenchRun(job=THROUGHPUT, system="nats", n=4, count=50)
    row = delivery_row(run, [_outcome(delivered=200.0), outcome])
    assert (row["delivered"], row["expected"]) == (199, 200)
    assert row["failed"] == "in 1 of 2 runs 199 of 200 arrived"
    assert "failed" not in delivery_row(run, [_outcome(delivered=200.0)])


def _outcome(delivered: float) -> RunResult:
    cpu = {"publisher": 1.0, "subscribers": 2.0}
    return RunResult(
        wall_s=1.0, cpu_s=cpu, cpu_settled_s=cpu, settled_s=1.0, figures={"delivered": delivered}
    )


def test_slow_system_has_no_sustained_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "find_spec", lambda _: None)
    systems = ["zenoh", "zeromq-asyncio"]
    rows = list(measure([256], systems=systems, jobs=[SUSTAINED]))
    assert [(row["system"], row["n"]) for row in rows[:-1]] == [("zenoh", fanout.N_MAX)]


@pytest.mark.heavy
def test_sustained_run_delivers_everything() -> None:
    row, last = measure([N], count=COUNT, repeats=1, systems=["skipring"], jobs=[SUSTAINED])
    assert (row["job"], row["n"], row["count"]) == (SUSTAINED, N, COUNT)
    assert row["delivered"] == row["expected"] == N * COUNT
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
        assert row["delivered"] == row["expected"] == 12 * 200
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
    assert row["delivered"] == row["expected"] == 600
    assert row["cpu_us_per_publication"] > 0 < row["rss_mib"]
    assert last == {"ratios": {}}


def test_hottest_ratio_divides_the_cost_of_a_broker_by_that_of_the_busiest_member() -> None:
    def row(system: str, cpu: float, settled: float) -> dict[str, object]:
        costs = {"cpu_us_per_publication": cpu, "cpu_us_per_publication_settled": settled}
        return {"job": HOTTEST, "system": system, "n": 64, **costs}

    rows = [row("skipring", 4.0, 16.0), row("nats", 24.0, 24.0)]
    assert ratios(rows) == {
        "cpu_nats_broker_over_hottest_n64": 6.0,
        "cpu_nats_broker_over_hottest_n64_settled": 1.5,
    }
    assert ratios([rows[0] | {"failed": "..."}, rows[1]]) == {}


# -- growth ------------------------------------------------------------------------------------


def _cost_of(run: BenchRun) -> RunResult:
    """Return a cost of one microsecond per payload byte, times topics and n."""
    cpu = {"publisher": 1e-6 * run.size * run.topics * run.n * (run.n * run.count)}
    own = dict.fromkeys(("run_frames", "idle_frames", "messages", "hottest_bytes"), 0.0)
    phases = dict.fromkeys(("joining_cpu_us", "joining_frames", "run_cpu_us", "idle_cpu_us"), 0.0)
    figures = {"delivered": float(run.n * run.count), **own, **phases}
    return RunResult(wall_s=1.0, cpu_s=cpu, cpu_settled_s=cpu, settled_s=1.0, figures=figures)


def test_each_case_is_compared_with_the_smallest_of_its_series(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[BenchRun] = []

    def record(run: BenchRun) -> RunResult:
        held.append(run)
        return _cost_of(run)

    monkeypatch.setattr(harness, "run_once", record)
    *rows, last = measure([256], repeats=1, systems=["skipring"], jobs=[GROWTH])
    assert [(row["by"], row["n"], row["size"], row["topics"]) for row in rows] == [
        *(("size", 64, size, 1) for size in (16, 128, 1024, 16384)),
        *(("topics", 16, 128, topics) for topics in (1, 4, 16)),
        *(("n", n, 128, 1) for n in (16, 64, 256)),
    ]
    assert last["ratios"]["cpu_skipring_size_1024_over_16"] == 64.0
    assert last["ratios"]["cpu_skipring_topics_16_over_1"] == 16.0
    assert last["ratios"]["cpu_skipring_n_256_over_16"] == 16.0
    assert len(held) == len({(run.n, run.size, run.topics) for run in held}) == 8


def test_failed_case_has_no_ratio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hold(run: BenchRun) -> RunResult:
        if run.size > 10_000:
            raise SkipringError("too large")
        return _cost_of(run)

    monkeypatch.setattr(harness, "run_once", hold)
    *rows, last = measure([64], repeats=1, systems=["skipring"], jobs=[GROWTH])
    assert [row["size"] for row in rows[:4]] == [16, 128, 1024, 16384]
    assert rows[3]["failed"] == "too large"
    names = set(last["ratios"])
    assert "cpu_skipring_size_1024_over_16" in names
    assert "cpu_skipring_size_16384_over_16" not in names


@pytest.mark.heavy
@pytest.mark.parametrize("system", ["skipring", "nats"])
def test_each_subscriber_receives_all_topics(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "SERIES", {"topics": (1, 3)})
    rows = list(measure([N], count=COUNT, repeats=1, systems=[system], jobs=[GROWTH]))[:-1]
    if not rows:
        pytest.skip("not installed")
    assert [row["topics"] for row in rows] == [1, 3]
    for row in rows:
        assert row["delivered"] == row["expected"] == N * COUNT
    assert rows[0]["cpu_us_per_delivery_over_smallest"] == 1.0
