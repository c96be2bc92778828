"""How the cost of a delivery grows, in rings that are small."""

from typing import Any

import pytest

from skipring.errors import SkipringError
from skipring.lab.bench import growth
from skipring.lab.bench.contest import RunResult
from skipring.lab.bench.fanout import measure
from skipring.lab.bench.peers.run import BenchRun

N, COUNT = 3, 20

Rows = list[dict[str, Any]]


def _cost_of(run: BenchRun) -> RunResult:
    """A delivery costs as many microseconds as its payload has bytes, times topics and n."""
    cpu = {"publisher": 1e-6 * run.size * run.topics * run.n * (run.n * run.count)}
    own = dict.fromkeys(("run_frames", "idle_frames", "messages", "hottest_bytes"), 0.0)
    phases = dict.fromkeys(("joining_cpu_us", "joining_frames", "run_cpu_us", "idle_cpu_us"), 0.0)
    figures = {"delivered": float(run.n * run.count), **own, **phases}
    return RunResult(wall_s=1.0, cpu_s=cpu, cpu_settled_s=cpu, settled_s=1.0, figures=figures)


def test_each_case_is_compared_with_the_smallest_of_its_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[BenchRun] = []
    monkeypatch.setattr(growth, "hold", lambda run: held.append(run) or _cost_of(run))
    *rows, last = measure([256], repeats=1, systems=["skipring"], jobs=[growth.JOB])
    assert [(row["by"], row["n"], row["size"], row["topics"]) for row in rows] == [
        *(("size", 64, size, 1) for size in (16, 128, 1024, 16384)),
        *(("topics", 16, 128, topics) for topics in (1, 4, 16)),
        *(("n", n, 128, 1) for n in (16, 64, 256)),
    ]
    assert last["ratios"]["cpu_skipring_size_1024_over_16"] == 64.0
    assert last["ratios"]["cpu_skipring_topics_16_over_1"] == 16.0
    assert last["ratios"]["cpu_skipring_n_256_over_16"] == 16.0
    assert len(held) == len({(run.n, run.size, run.topics) for run in held}) == 8


def test_a_case_that_fails_has_no_ratio_and_the_others_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hold(run: BenchRun) -> RunResult:
        if run.size > 10_000:
            raise SkipringError("too large")
        return _cost_of(run)

    monkeypatch.setattr(growth, "hold", hold)
    *rows, last = measure([64], repeats=1, systems=["skipring"], jobs=[growth.JOB])
    assert [row["size"] for row in rows[:4]] == [16, 128, 1024, 16384]
    assert rows[3]["failed"] == "too large"
    names = set(last["ratios"])
    assert "cpu_skipring_size_1024_over_16" in names
    assert "cpu_skipring_size_16384_over_16" not in names


@pytest.mark.heavy
@pytest.mark.parametrize("system", ["skipring", "nats"])
def test_with_several_topics_every_subscriber_gets_all_of_each(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "SERIES", {"topics": (1, 3)})
    rows = list(measure([N], count=COUNT, repeats=1, systems=[system], jobs=[growth.JOB]))[:-1]
    if not rows:
        pytest.skip("not installed")
    assert [row["topics"] for row in rows] == [1, 3]
    for row in rows:
        assert row["delivered"] == row["expected"] == N * COUNT
    assert rows[0]["cpu_us_per_delivery_over_smallest"] == 1.0
