"""What ``skipring bench fanout`` measures, on rings that are small."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from skipring.cli import skipring
from skipring.errors import SkipringError
from skipring.lab.bench import fanout, jobs, loss
from skipring.lab.bench.contest import PLAYER, RunResult, Workers, hold
from skipring.lab.bench.fanout import LATENCY, SUSTAINED, THROUGHPUT, measure, ratios
from skipring.lab.bench.jobs import Job, row_of
from skipring.lab.bench.peers import catalogue
from skipring.lab.bench.peers.catalogue import OURS
from skipring.lab.bench.peers.run import BenchRun

N, COUNT = 4, 50

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def rows() -> Rows:
    systems = ["skipring", "skipring-tls"]
    return list(measure([N], count=COUNT, repeats=1, systems=systems, jobs=[THROUGHPUT, LATENCY]))


@pytest.mark.heavy
def test_each_measurement_is_a_row_and_the_ratios_are_last(rows: Rows) -> None:
    *measured, last = rows
    assert [(row["job"], row["system"], row["n"]) for row in measured] == [
        (job, system, N) for job in (THROUGHPUT, LATENCY) for system in ("skipring", "skipring-tls")
    ]
    assert list(last) == ["ratios"]


@pytest.mark.heavy
def test_everything_arrives_and_the_supervisor_hears_next_to_nothing(
    rows: Rows,
) -> None:
    for row in rows[:-1]:
        assert row["delivered"] == row["expected"] == N * COUNT
        assert 1 <= row["messages_per_delivery"] < 5  # 1 in calm weather, a flood makes 3.5
        assert row["supervisor_messages_per_publication"] < 1


@pytest.mark.heavy
def test_the_cost_is_that_of_all_processes_and_grows_until_all_is_stored(rows: Rows) -> None:
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


def test_a_ratio_is_reached_from_1_on_with_what_is_wanted_beside_it() -> None:
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


def test_a_sustained_run_has_ratios_of_its_own() -> None:
    found = ratios(
        [_row(SUSTAINED, "skipring", 5.0, 10.0, **OWN), _row(SUSTAINED, "nats", 5.0, 5.0)]
    )
    assert found["cpu_nats_over_skipring_sustained_n64"] == 1.0
    assert found["cpu_nats_over_skipring_sustained_n64_reached"] == 0.4
    assert found["cpu_nats_over_skipring_sustained_n64_settled"] == 0.5
    assert found["cpu_settled_over_delivered_sustained_n64"] == 2.0


@pytest.mark.parametrize("loser", ["skipring", "nats"])
def test_a_run_that_lost_something_has_no_ratio(loser: str) -> None:
    rows = [_row(THROUGHPUT, "skipring", 2.0, 4.0, **OWN), _row(THROUGHPUT, "nats", 5.0, 5.0)]
    assert "cpu_nats_over_skipring_n64" in ratios(rows)
    lost = [row | {"failed": "..."} if row["system"] == loser else row for row in rows]
    assert not [name for name in ratios(lost) if "nats" in name]


def test_a_run_in_which_not_all_has_come_is_named_as_failed() -> None:
    outcome = _outcome(delivered=199.0)
    job = Job(name=THROUGHPUT, n=4, size=128, count=50, repeats=2)
    row = row_of(job, "nats", [_outcome(delivered=200.0), outcome])
    assert (row["delivered"], row["expected"]) == (199, 200)
    assert row["failed"] == "in 1 of 2 runs 199 came of 200"
    assert "failed" not in row_of(job, "nats", [_outcome(delivered=200.0)])


def _outcome(delivered: float) -> RunResult:
    cpu = {"publisher": 1.0, "subscribers": 2.0}
    return RunResult(
        wall_s=1.0, cpu_s=cpu, cpu_settled_s=cpu, settled_s=1.0, figures={"delivered": delivered}
    )


def test_what_is_too_slow_for_a_sustained_run_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "find_spec", lambda _: None)
    systems = ["zenoh", "zeromq-asyncio", "gossipsub"]
    rows = list(measure([256], systems=systems, jobs=[SUSTAINED]))
    assert [(row["system"], row["n"]) for row in rows[:-1]] == [("zenoh", fanout.SUSTAINED_N)]


@pytest.mark.heavy
def test_a_sustained_run_is_measured_as_the_others_are() -> None:
    row, last = measure([N], count=COUNT, repeats=1, systems=["skipring"], jobs=[SUSTAINED])
    assert (row["job"], row["n"], row["count"]) == (SUSTAINED, N, COUNT)
    assert row["delivered"] == row["expected"] == N * COUNT
    assert f"cpu_settled_over_delivered_sustained_n{N}" in last["ratios"]


@pytest.mark.heavy
def test_with_frames_lost_and_a_node_killed_the_others_end_with_everything() -> None:
    row = loss.measure(n=8, count=200, share=0.05)
    assert row["complete"] is True
    assert (row["killed"], row["survivors"], row["publications"]) == (1, 7, 200)
    assert row["frames_dropped"] > 0
    assert row["missing"] == 0


@pytest.mark.heavy
def test_what_is_missing_is_said() -> None:
    row = loss.measure(n=4, count=100, share=1.0, deadline_s=0.5)  # nobody hears anything
    assert row["complete"] is False
    assert row["missing"] > 0
    name = "complete_after_loss_n4"
    assert loss.ratios([row]) == {name: 0.0, f"{name}_at_least": 1.0, f"{name}_reached": 0.0}


def test_a_loss_that_cannot_be_measured_is_said_and_has_no_ratio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(**_: object) -> None:
        raise SkipringError("no room")

    monkeypatch.setattr(loss, "measure", fail)
    row, last = measure([N], systems=["skipring"], jobs=[loss.JOB])
    assert row == {"job": "loss", "system": "skipring", "n": N, "failed": "no room"}
    assert last == {"ratios": {}}


def test_a_run_whose_process_ends_says_what_it_said_last(tmp_path: Path) -> None:
    run = BenchRun(system="nothing", n=1, directory=tmp_path)
    with ExitStack() as stack:
        cast = Workers(run, PLAYER, ["publisher"], stack)
        cast.players["publisher"].wait(30)
        with pytest.raises(SkipringError, match="publisher of nothing ended early: KeyError: 'no"):
            cast.pause()


def test_the_command_measures_skipring_beside_those_it_is_given(
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


@pytest.mark.heavy
def test_a_profile_of_each_process_is_written_where_it_is_wanted(tmp_path: Path) -> None:
    hold(BenchRun(system=OURS, n=2, count=10, profiles=tmp_path))
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["skipring-n2-publisher.prof", "skipring-n2-subscribers.prof"]


@pytest.mark.parametrize("n", [1, 64, 256, 100_000])
def test_a_run_of_usual_size_has_a_usual_number_of_publications(n: int) -> None:
    assert jobs.COUNT_MIN <= jobs.usual_count(n) <= jobs.COUNT_MAX
