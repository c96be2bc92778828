"""Runs of a matrix as Spark tasks (``skipring lab run``): work plan, execution and progress.

The driver divides the work into chunks and stores each chunk as soon as it is done, so a killed
run continues from the last chunk. Two chunks run at a time, so the cores stay busy while the last
tasks of a chunk end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from heapq import heapify, heapreplace
from itertools import islice
from math import log2
from pathlib import Path
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import asdict
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import Accumulator
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from skipring.errors import SkipringError
from skipring.lab.experiments.matrix import Matrix, Trial
from skipring.lab.experiments.results import (
    RESULTS,
    ROUNDS,
    RUNS,
    WORK,
    Results,
    opened,
    spark_schema,
)
from skipring.lab.experiments.trials import calm_rounds, perform

if TYPE_CHECKING:
    from rich.console import Console

# Measured on one core of 2026: the tick of a node and the messages of a round, with its sample.
NODE_ROUND_S: Final = 45e-6
RUN_S: Final = 1e-3  # Measured: the cost of the smallest run.
OVERLAY_NODE_S: Final = 20e-6  # Measured: a node of each overlay, for each level.
HEALING_ROUNDS: Final = {
    "fast": 14,
    "fixed": 50,
    "paper": 200,
    "deterministic": 14,
}  # Measured: rounds of typical healing.
SLOW: Final = {"delay": 6, "swizzle": 3}  # Measured: factors of slower schedulers.
SLOW_STATES: Final = {"A18b": 75}  # Measured: rounds of the state that heals by waiting.
OPERATION_ROUNDS: Final = 4  # Measured: until a ring is legitimate again after one change.
LOCKSTEP_SHARE: Final = 1  # Measured: some computations end before the limit, a round is slow.
CHURN_ROUNDS: Final = 100  # default of skipring.sim.process_faults.Churn
# Measured: this many scattered publications cost as much as the ring itself.
PUBLICATIONS: Final = 10

# Guesses: a Spark task costs some 10 ms, little beside a second; a kill loses at most two chunks.
PARTITION_S: Final = 1.5
CHUNK_S: Final = 30.0  # on every core
CHUNK_RUNS_MAX: Final = 5000  # the driver collects a chunk's rows in memory
HEAVY_S: Final = 5.0  # heavy runs are first, or the end would wait for one of them
SHUFFLE_SEED: Final = 5


def estimated_s(run: Trial) -> float:
    """Estimate the seconds of a run on one core."""
    if run.kind == "topology":
        return RUN_S + OVERLAY_NODE_S * run.n * log2(run.n + 1)
    scattered = run.publications if run.kind == "converge" else 0
    return RUN_S + NODE_ROUND_S * run.n * _rounds(run) * (1 + scattered / PUBLICATIONS)


def _rounds(run: Trial) -> float:
    if run.kind == "steady":
        return calm_rounds(run.n) + run.rounds
    if run.kind == "livelock":
        return LOCKSTEP_SHARE * run.max_rounds
    if run.kind != "converge":
        return calm_rounds(run.n) + min(OPERATION_ROUNDS, run.max_rounds) + run.closure
    healing = SLOW_STATES.get(run.adversary, HEALING_ROUNDS[run.mode]) * SLOW.get(run.scheduler, 1)
    churn = CHURN_ROUNDS if run.churn > 0 else 0
    return churn + min(healing / (1 - run.loss) ** 2, run.max_rounds) + run.closure


def chunks(runs: Iterable[Trial], cores: Callable[[], int]) -> Iterator[list[Trial]]:
    """Divide the work into chunks that are stored one by one: heavy runs first, then mixed.

    Count the cores again for each chunk, because executors of a cluster start one by one.
    """
    chunk: list[Trial] = []
    seconds, limit_s = 0.0, CHUNK_S * cores()
    for run in _ordered(runs):
        chunk.append(run)
        seconds += estimated_s(run)
        if seconds >= limit_s or len(chunk) == CHUNK_RUNS_MAX:
            yield chunk
            chunk = []
            seconds, limit_s = 0.0, CHUNK_S * cores()
    if chunk:
        yield chunk


def _ordered(runs: Iterable[Trial]) -> list[Trial]:
    """Return heavy runs first, the others shuffled, which makes chunks alike."""
    order = list(runs)
    Random(SHUFFLE_SEED).shuffle(order)
    order.sort(key=lambda run: min(0.0, HEAVY_S - estimated_s(run)))
    return order


def partitions(chunk: Sequence[Trial], count: int | None = None) -> list[list[Trial]]:
    """Divide a chunk into parts of equal work; each part has its heaviest run first."""
    work = sum(map(estimated_s, chunk))
    wanted = count or max(1, int(work / PARTITION_S))
    parts: list[list[Trial]] = [[] for _ in range(min(wanted, len(chunk)))]
    loads = [(0.0, number) for number in range(len(parts))]
    heapify(loads)
    for run in sorted(chunk, key=estimated_s, reverse=True):
        load, number = loads[0]
        parts[number].append(run)
        heapreplace(loads, (load + estimated_s(run), number))
    return parts


CHUNKS_AT_ONCE: Final = 2
# Measured: Java's second compiler costs 4 s of CPU at the start and 2 s in the first job, without
# a gain, because Python does all work. Only for a local master, which has no other executors.
LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"
}
POLL_S: Final = 0.25  # between two reports of progress, and between checks for an interrupt

_SAMPLES: Final = "samples"


class TrialProgress(Struct, frozen=True):
    """Progress of the runs of a matrix."""

    done: int
    total: int
    share: float  # share of the estimated work, since runs differ in size


class RunSummary(Struct, frozen=True):
    """Result of a lab run: counts of finished, executed and failed runs."""

    total: int  # runs of the matrix
    found: int  # found in the directory
    done: int  # executed now
    failed: dict[str, str]  # run and its error


def settings_for(master: str | None) -> Mapping[str, str]:
    """Return the settings of a session that only executes runs."""
    return LOCAL_SETTINGS if master is None or master.startswith("local") else {}


def run_matrix(
    spark: SparkSession,
    matrix: Matrix,
    directory: Path,
    *,
    partition_count: int | None = None,
    report: Callable[[TrialProgress], None] = lambda _: None,
) -> RunSummary:
    """Execute all runs of a matrix that the directory does not have yet."""
    with opened(directory, matrix) as results:
        finished = results.finished()
        pending = [run for run in matrix.runs if run.run_id not in finished]
        work = _Work(spark, pending, partition_count)
        work.finish(results, lambda done, share: report(_progress(matrix, pending, done, share)))
        asked = {run.run_id for run in matrix.runs}
        failed = {name: text for name, text in results.failed().items() if name in asked}
    total = len(matrix.runs)
    return RunSummary(total, total - len(pending), len(pending), failed)


def _progress(matrix: Matrix, pending: Sequence[Trial], done: int, share: float) -> TrialProgress:
    total = len(matrix.runs)
    return TrialProgress(total - len(pending) + done, total, share)


class _Work:
    """Runs in execution."""

    def __init__(
        self, spark: SparkSession, runs: Sequence[Trial], partition_count: int | None
    ) -> None:
        self._spark = spark
        self._context = spark.sparkContext
        self._tag = f"skipring-lab-{uuid4().hex}"  # cancels only the jobs of this run
        self._chunks = chunks(runs, lambda: self._context.defaultParallelism)
        self._partition_count = partition_count
        self._runs = len(runs)
        self._seconds = sum(map(estimated_s, runs))
        self._done: Accumulator[int] = self._context.accumulator(0)
        self._done_s: Accumulator[float] = self._context.accumulator(0.0)

    def finish(self, results: Results, report: Callable[[int, float], None]) -> None:
        """Execute all runs, and store each chunk as soon as it is finished."""
        waiting: set[Future[pa.Table]] = set()
        with ThreadPoolExecutor(CHUNKS_AT_ONCE) as pool:
            try:
                waiting |= {pool.submit(self._do, chunk) for chunk in self._next(CHUNKS_AT_ONCE)}
                while waiting:
                    done, _ = wait(waiting, POLL_S, return_when=FIRST_COMPLETED)
                    waiting -= done
                    waiting |= {pool.submit(self._do, chunk) for chunk in self._next(len(done))}
                    for future in done:
                        results.add(*_tables(future.result()))
                    report(*self._so_far())
            except (PySparkException, Py4JError) as error:
                raise SkipringError(
                    f"Spark could not execute the runs: {_first_line(error)}"
                ) from error
            finally:
                self._cancel(waiting)

    def _next(self, count: int) -> Iterator[list[Trial]]:
        return islice(self._chunks, count)

    def _cancel(self, waiting: set[Future[pa.Table]]) -> None:
        """Cancel the jobs until all have ended: a job may be about to start."""
        while waiting:
            self._context.cancelJobsWithTag(self._tag)
            _, waiting = wait(waiting, POLL_S)

    def _do(self, chunk: list[Trial]) -> pa.Table:
        """Execute a chunk as one Spark job."""
        self._context.addJobTag(self._tag)  # tags belong to a thread
        parts = partitions(chunk, self._partition_count)
        table = self._spark.createDataFrame(_work_table(parts), spark_schema(WORK))
        spread = table.repartitionById(len(parts), "partition")
        work = partial(_do_batches, done=self._done, done_s=self._done_s)
        return spread.mapInArrow(work, spark_schema(RESULTS)).toArrow()

    def _so_far(self) -> tuple[int, float]:
        """Return the finished runs and the share of the work; a retried task counts twice."""
        done = min(self._done.value, self._runs)
        share = self._done_s.value / self._seconds if self._seconds else 1.0
        return done, min(share, 1.0)


def _work_table(parts: Sequence[Sequence[Trial]]) -> pa.Table:
    """Return the parameters of all runs, with the partition of each."""
    rows = [
        {"partition": number, **asdict(run)} for number, part in enumerate(parts) for run in part
    ]
    return pa.Table.from_pylist(rows, schema=WORK)


def _do_batches(
    batches: Iterator[pa.RecordBatch], done: Accumulator[int], done_s: Accumulator[float]
) -> Iterator[pa.RecordBatch]:
    """Execute the runs of a partition, in a worker of Spark."""
    for batch in batches:
        rows = batch.to_pylist()
        runs = [Trial(**{name: row[name] for name in Trial.__struct_fields__}) for row in rows]
        outcomes = [perform(run) for run in runs]
        done_rows = [outcome.row | {_SAMPLES: outcome.samples} for outcome in outcomes]
        yield pa.RecordBatch.from_pylist(done_rows, schema=RESULTS)
        done.add(len(runs))
        done_s.add(sum(map(estimated_s, runs)))


def _tables(results: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return runs and rounds from the results of the tasks, ordered by the names of the runs."""
    ordered = results.sort_by("run_id").combine_chunks()
    samples = ordered[_SAMPLES]
    rows = pc.list_flatten(samples)
    names = ordered["run_id"].take(pc.list_parent_indices(samples))
    columns = [names, *(pc.struct_field(rows, name) for name in ROUNDS.names[1:])]
    return ordered.select(RUNS.names), pa.table(columns, names=ROUNDS.names)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]


# --- progress on a terminal -------------------------------------------------------------

LINE_S: Final = 10.0  # between two lines on a pipe


@contextmanager
def live_progress(console: Console, title: str) -> Iterator[Callable[[TrialProgress], None]]:
    """Show progress inside a block: a bar on a terminal, lines on a pipe."""
    # Executors import this module, too, and may lack rich.
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[runs]}"))
    is_bar, printed_at = console.is_terminal, monotonic()
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not is_bar
    ) as bar:
        task = bar.add_task(title, total=1.0, runs="Spark starts")

        def report(progress: TrialProgress) -> None:
            nonlocal printed_at
            runs = f"{progress.done} of {progress.total} runs"
            bar.update(task, completed=progress.share, runs=runs)
            if not is_bar and monotonic() - printed_at >= LINE_S:
                printed_at = monotonic()
                console.print(runs, highlight=False, soft_wrap=True)

        yield report
