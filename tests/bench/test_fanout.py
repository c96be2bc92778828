"""What ``skipring bench fanout`` measures, on rings that are small."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from skipring.bench import fanout, loss
from skipring.bench.contest import PLAYER, Cast, hold
from skipring.bench.fanout import LATENCY, LOSS, THROUGHPUT, measure, ratios
from skipring.bench.peers import catalogue
from skipring.bench.peers.catalogue import OURS
from skipring.bench.peers.run import Run
from skipring.cli import skipring
from skipring.errors import SkipringError

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


def _row(job: str, system: str, **figures: float) -> dict[str, Any]:
    return {"job": job, "system": system, "n": 64, **figures}


def test_a_ratio_is_reached_from_1_on() -> None:
    own = {"messages_per_delivery": 1.0, "supervisor_messages_per_publication": 0.0}
    settled = {"cpu_us_per_delivery_settled": 3.0}
    found = ratios(
        [
            _row(THROUGHPUT, "skipring", cpu_us_per_delivery=2.0, **settled, **own),
            _row(THROUGHPUT, "nats", cpu_us_per_delivery=5.0),
            _row(THROUGHPUT, "zeromq", cpu_us_per_delivery=1.0),
            _row(THROUGHPUT, "redis", cpu_us_per_delivery=8.0),
            {"job": THROUGHPUT, "system": "zenoh", "n": 64, "skipped": "not installed: ..."},
            _row(LATENCY, "skipring", cpu_us_per_delivery=2.0, p50_ms=2.0, **own),
            _row(LATENCY, "nats", cpu_us_per_delivery=9.0, p50_ms=1.5),
            {"job": LOSS, "system": "skipring", "n": 64, "complete": True},
        ]
    )
    assert found == {
        "cpu_nats_over_skipring_n64": 2.5,
        "cpu_nats_over_skipring_n64_over_wanted": 1.0,
        "cpu_zeromq_over_skipring_n64": 0.5,
        "cpu_zeromq_over_skipring_n64_over_wanted": 1.5,
        "cpu_redis_over_skipring_n64": 4.0,
        "p50_nats_over_skipring_n64": 0.75,
        "p50_nats_over_skipring_n64_over_wanted": 0.5,
        "messages_per_delivery_throughput_n64": 1.0,
        "messages_per_delivery_throughput_n64_over_wanted": 1.2,
        "messages_per_delivery_latency_n64": 1.0,
        "messages_per_delivery_latency_n64_over_wanted": 1.2,
        "supervisor_messages_per_publication_throughput_n64": 0.0,
        "supervisor_messages_per_publication_throughput_n64_over_wanted": 1.0,
        "supervisor_messages_per_publication_latency_n64": 0.0,
        "supervisor_messages_per_publication_latency_n64_over_wanted": 1.0,
        "cpu_settled_over_delivered_n64": 1.5,
        "complete_after_loss_n64_over_wanted": 1.0,
    }


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
    assert loss.ratios([row]) == {"complete_after_loss_n4_over_wanted": 0.0}


def test_a_run_whose_process_ends_says_what_it_said_last(tmp_path: Path) -> None:
    run = Run(system="nothing", n=1, directory=tmp_path)
    with ExitStack() as stack:
        cast = Cast(run, PLAYER, ["publisher"], stack)
        cast.players["publisher"].wait(30)
        with pytest.raises(SkipringError, match="publisher of nothing ended early: KeyError: 'no"):
            cast.pause()


def test_the_command_prints_the_rows_and_knows_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "find_spec", lambda _: None)
    command = ["bench", "fanout", "--n", "2,3", "--systems", "zenoh", "--job", THROUGHPUT]
    got = CliRunner().invoke(skipring, command)
    assert [json.loads(line) for line in got.output.splitlines()] == list(
        measure([2, 3], systems=["zenoh"], jobs=[THROUGHPUT])
    )
    wrong = CliRunner().invoke(skipring, ["bench", "fanout", "--systems", "zenoh,kafka"])
    assert wrong.exit_code == 2
    assert "'kafka' is not one of" in wrong.output


@pytest.mark.heavy
def test_a_profile_of_each_process_is_written_where_it_is_wanted(tmp_path: Path) -> None:
    hold(Run(system=OURS, n=2, count=10, profiles=tmp_path))
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["skipring-n2-publisher.prof", "skipring-n2-subscribers.prof"]


@pytest.mark.parametrize("n", [1, 64, 256, 100_000])
def test_a_run_of_usual_size_has_a_usual_number_of_publications(n: int) -> None:
    assert fanout.COUNT_MIN <= fanout.usual_count(n) <= fanout.COUNT_MAX
