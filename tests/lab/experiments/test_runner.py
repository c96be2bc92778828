"""Runs as Spark tasks: the same rows for any partitions and after any kill; the work plan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from msgspec import Struct
from pyspark.sql import SparkSession

from skipring.errors import SkipringError
from skipring.lab.experiments import runner
from skipring.lab.experiments.matrix import Matrix, Trial, read_matrix
from skipring.lab.experiments.runner import (
    TrialProgress,
    chunks,
    estimated_s,
    partitions,
    run_matrix,
)
from skipring.lab.experiments.trials import perform

DEADLINE_S = 240.0
POLL_S = 0.02
BLOCKS = [
    'kind = "converge"\nn = [3, 8]\nadversary = ["A00", "A15", "A47"]\nseeds = 4\nclosure = 2',
    'kind = "steady"\nn = 8\nrounds = 5',
    'kind = "crash"\nn = [4, 8]',
    'kind = "spread"\nn = 8\nspread = ["tree", "flood"]',
    'kind = "topology"\nn = [1, 8]',  # the first of them raises an error
    'kind = "livelock"\nn = 8\nadversary = ["A05", "A22"]\nmax_rounds = 200',
    'kind = "potential"\nn = 8\nmode = ["paper", "fast"]',
    'kind = "session"\nn = 2\nseeds = 3',
    'kind = "converge"\nn = 8\nadversary = "A15"\nmode = "deterministic"\nclosure = 2',
]


def matrix_file(tmp_path: Path, *blocks: str) -> Path:
    path = tmp_path / "m.toml"
    path.write_text("\n[[experiment]]\n".join(['title = "t"', *blocks]), encoding="utf-8")
    return path


class Tables(Struct):
    """Both tables as Spark reads them, each in one order."""

    runs: list[dict[str, Any]]
    rounds: list[dict[str, Any]]


def tables(spark: SparkSession, out: Path) -> Tables:
    runs = spark.read.parquet(str(out / "runs")).orderBy("run_id")
    rounds = spark.read.parquet(str(out / "rounds")).orderBy("run_id", "round")
    return Tables(
        [row.asDict() for row in runs.collect()], [row.asDict() for row in rounds.collect()]
    )


def plain_tables(matrix: Matrix) -> Tables:
    """Return the rows of the same runs without Spark."""
    outcomes = sorted((perform(run) for run in matrix.runs), key=lambda found: found.row["run_id"])
    return Tables(
        [outcome.row for outcome in outcomes],
        [
            {"run_id": outcome.row["run_id"], **sample}
            for outcome in outcomes
            for sample in outcome.samples
        ],
    )


@pytest.mark.heavy
def test_rows_do_not_depend_on_the_number_of_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    matrix = read_matrix(matrix_file(tmp_path, *BLOCKS))
    expected = plain_tables(matrix)
    for count in (1, 2, 7):
        summary = run_matrix(spark, matrix, tmp_path / str(count), partition_count=count)
        assert tables(spark, tmp_path / str(count)) == expected, count
        assert (summary.total, summary.found, summary.done) == (len(matrix.runs), 0, 39)
        assert list(summary.failed.values()) == ["ValueError: empty range for randrange()"]


@pytest.mark.heavy
def test_only_new_runs_of_a_matrix_are_executed(spark: SparkSession, tmp_path: Path) -> None:
    out, reports = tmp_path / "out", list[TrialProgress]()
    first = read_matrix(matrix_file(tmp_path, *BLOCKS[:2]))
    run_matrix(spark, first, out)
    before = files(out)
    second = read_matrix(matrix_file(tmp_path, *BLOCKS[1:3]))
    summary = run_matrix(spark, second, out, report=reports.append)
    assert (summary.total, summary.found, summary.done) == (3, 1, 2)
    assert {path: stat for path, stat in files(out).items() if path in before} == before
    names = Counter(row["run_id"] for row in tables(spark, out).runs)
    assert names == dict.fromkeys((run.run_id for run in {*first.runs, *second.runs}), 1)
    assert (reports[-1].done, reports[-1].total, reports[-1].share) == (3, 3, 1.0)
    assert (out / "matrix.toml").read_text() == second.text


@pytest.mark.heavy
def test_failed_run_is_counted_and_not_repeated(spark: SparkSession, tmp_path: Path) -> None:
    matrix = read_matrix(matrix_file(tmp_path, BLOCKS[4]))
    run_matrix(spark, matrix, tmp_path / "out")
    summary = run_matrix(spark, matrix, tmp_path / "out")
    assert (summary.found, summary.done, len(summary.failed)) == (2, 0, 1)


@pytest.mark.heavy
def test_interrupt_cancels_running_tasks_and_leaves_no_partial_chunk(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Interrupt a run that would take a minute."""
    long = Matrix("t", "", (Trial(kind="steady", n=256, rounds=4000),))
    tracker, jobs = spark.sparkContext.statusTracker(), list[int]()

    def interrupt(progress: TrialProgress) -> None:
        jobs.extend(tracker.getActiveJobsIds())
        if tracker.getActiveStageIds():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_matrix(spark, long, tmp_path / "out", report=interrupt)
    wait_for(lambda: not tracker.getActiveJobsIds())
    # The first job of a query only shares out the work, and may just have been done.
    found = map(tracker.getJobInfo, range(jobs[0], jobs[-1] + 10))
    *_, last = [job for job in found if job is not None]
    assert last.status == "FAILED"
    assert files(tmp_path / "out") == {}
    small = read_matrix(matrix_file(tmp_path, BLOCKS[1]))
    assert run_matrix(spark, small, tmp_path / "out").done == 1


@pytest.mark.heavy
def test_failed_spark_task_is_an_error_in_one_sentence(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(batches: object, **_: object) -> object:
        os._exit(9)

    monkeypatch.setattr(runner, "_do_batches", die)
    matrix = read_matrix(matrix_file(tmp_path, BLOCKS[1]))
    with pytest.raises(SkipringError, match=r"^Spark could not execute the runs: ") as caught:
        run_matrix(spark, matrix, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert files(tmp_path / "out") == {}


# -- a driver that is killed -----------------------------------------------------------------

# Chunks of a fraction of a second, so that there are many.
PROGRAM = """
from skipring.lab.experiments import runner
runner.CHUNK_S = 0.1
from skipring.cli import main
main()
"""


def files(out: Path) -> dict[str, tuple[int, int]]:
    """Return the finished files of a directory, with time and inode of each."""
    return {
        str(path.relative_to(out)): (path.stat().st_mtime_ns, path.stat().st_ino)
        for path in sorted(out.glob("r*/chunk-*.parquet"))
    }


def wait_for(condition: Any) -> None:  # noqa: ANN401
    deadline = monotonic() + DEADLINE_S
    while not condition():
        assert monotonic() < deadline, "not in time"
        sleep(POLL_S)


def is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
def test_killed_run_resumes_after_its_last_chunk(spark: SparkSession, tmp_path: Path) -> None:
    """kill -9 of the driver in the middle: no run twice, none lost, the same rows as without."""
    block = 'kind = "converge"\nn = 16\nadversary = ["A00", "A15"]\nseeds = 200\nclosure = 0'
    path, out = matrix_file(tmp_path, block), tmp_path / "out"
    words = ["lab", "run", str(path), "--out", str(out), "--master", "local[2]"]
    driver = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(lambda: len(files(out)) >= 6 or driver.poll() is not None)
        driver.kill()
        assert driver.wait(DEADLINE_S) == -signal.SIGKILL
        wait_for(lambda: is_gone(driver.pid))  # its JVM and workers do not outlive it
    finally:
        if not is_gone(driver.pid):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(DEADLINE_S)
    # A chunk that has only its rounds was not finished and is written again.
    finished = {path.name for path in (out / "runs").glob("chunk-*.parquet")}
    before = {name: stat for name, stat in files(out).items() if Path(name).name in finished}
    matrix = read_matrix(path)
    summary = run_matrix(spark, matrix, out)
    assert 0 < summary.found < summary.total == 400
    assert summary.found + summary.done == 400
    assert {name: stat for name, stat in files(out).items() if name in before} == before
    assert tables(spark, out) == plain_tables(matrix)


# -- the work plan ---------------------------------------------------------------------------

SMALL = [
    Trial(kind="converge", n=16, adversary="A15", max_rounds=2000, seed=seed)
    for seed in range(3000)
]
HEAVY = [Trial(kind="steady", n=1024, rounds=200 + seed, seed=seed) for seed in range(5)]


@pytest.mark.parametrize("cores", [1, 2, 64])
def test_every_run_is_in_one_chunk(cores: int) -> None:
    done = [run for chunk in chunks(SMALL + HEAVY, lambda: cores) for run in chunk]
    assert sorted(done, key=lambda run: run.run_id) == sorted(
        SMALL + HEAVY, key=lambda run: run.run_id
    )


def test_heavy_runs_come_first_in_descending_order() -> None:
    first = next(chunks(SMALL + HEAVY, lambda: 64))
    assert first[: len(HEAVY)] == HEAVY[::-1]


@pytest.mark.parametrize("count", [None, 1, 7, 10_000])
def test_every_run_of_a_chunk_is_in_one_partition(count: int | None) -> None:
    parts = partitions(SMALL, count)
    assert all(parts)
    assert sorted(run.seed for part in parts for run in part) == list(range(3000))
    if count is not None:
        assert len(parts) == min(count, 3000)


def test_partitions_have_equal_loads_of_at_least_a_second() -> None:
    loads = [sum(map(estimated_s, part)) for part in partitions(SMALL[:1000])]
    assert min(loads) >= 1
    assert max(loads) - min(loads) <= 2 * estimated_s(SMALL[0])
