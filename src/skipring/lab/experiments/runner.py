"""Doing the runs of a matrix as Spark tasks (``skipring lab run``).

The driver cuts the work into chunks and keeps each chunk as soon as it is done, so a run that is
killed goes on where it was. Two chunks are at work at a time: while the last tasks of one are
being finished, the next one has begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final
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
from skipring.lab.experiments.experiments import perform
from skipring.lab.experiments.matrix import Matrix, Trial
from skipring.lab.experiments.results import Results, opened
from skipring.lab.experiments.schemas import RESULTS, ROUNDS, RUNS, WORK, spark_schema
from skipring.lab.experiments.work_plan import chunks, estimated_s, partitions

CHUNKS_AT_ONCE: Final = 2
# Measured: Java's second compiler costs 4 s of CPU at the start and 2 s in the first job, and has
# nothing to do here, where all work is Python's. For a local master, where the driver is alone.
LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"
}
LOOK_S: Final = 0.25  # between two reports of progress, and until an interrupt is noticed

_SAMPLES: Final = "samples"


class TrialProgress(Struct, frozen=True):
    """How far the runs of a matrix are."""

    done: int
    total: int
    share: float  # of the estimated work, between 0 and 1: runs differ in size


class RunSummary(Struct, frozen=True):
    """What there is at the end."""

    total: int  # runs of the matrix
    found: int  # of which were there already
    done: int  # of which were done now
    failed: dict[str, str]  # of which raised an error, and which


def settings_for(master: str | None) -> Mapping[str, str]:
    """What a session that only does runs is best started with."""
    return LOCAL_SETTINGS if master is None or master.startswith("local") else {}


def _ignore(progress: TrialProgress) -> None:
    """Drop a report of progress."""


def run_matrix(
    spark: SparkSession,
    matrix: Matrix,
    directory: Path,
    *,
    partition_count: int | None = None,
    tell: Callable[[TrialProgress], None] = _ignore,
) -> RunSummary:
    """Do all runs of a matrix that the directory does not have yet."""
    with opened(directory, matrix) as results:
        finished = results.finished()
        pending = [run for run in matrix.runs if run.run_id not in finished]
        work = _Work(spark, pending, partition_count)
        work.finish(results, lambda done, share: tell(_progress(matrix, pending, done, share)))
        asked = {run.run_id for run in matrix.runs}
        failed = {name: text for name, text in results.failed().items() if name in asked}
    total = len(matrix.runs)
    return RunSummary(total, total - len(pending), len(pending), failed)


def _progress(matrix: Matrix, pending: Sequence[Trial], done: int, share: float) -> TrialProgress:
    total = len(matrix.runs)
    return TrialProgress(total - len(pending) + done, total, share)


class _Work:
    """Runs that are being done."""

    def __init__(
        self, spark: SparkSession, runs: Sequence[Trial], partition_count: int | None
    ) -> None:
        self._spark = spark
        self._context = spark.sparkContext
        self._tag = f"skipring-lab-{uuid4().hex}"  # to cancel the jobs of this run only
        self._chunks = chunks(runs, lambda: self._context.defaultParallelism)
        self._partition_count = partition_count
        self._runs = len(runs)
        self._seconds = sum(map(estimated_s, runs))
        self._done: Accumulator[int] = self._context.accumulator(0)
        self._done_s: Accumulator[float] = self._context.accumulator(0.0)

    def finish(self, results: Results, tell: Callable[[int, float], None]) -> None:
        """Do all runs, and keep each chunk as soon as it is done."""
        waiting: set[Future[pa.Table]] = set()
        with ThreadPoolExecutor(CHUNKS_AT_ONCE) as pool:
            try:
                waiting |= {pool.submit(self._do, chunk) for chunk in self._next(CHUNKS_AT_ONCE)}
                while waiting:
                    done, _ = wait(waiting, LOOK_S, return_when=FIRST_COMPLETED)
                    waiting -= done
                    waiting |= {pool.submit(self._do, chunk) for chunk in self._next(len(done))}
                    for future in done:
                        results.add(*_tables(future.result()))
                    tell(*self._so_far())
            except (PySparkException, Py4JError) as error:
                raise SkipringError(f"Spark could not do the runs: {_first_line(error)}") from error
            finally:
                self._cancel(waiting)

    def _next(self, count: int) -> Iterator[list[Trial]]:
        return islice(self._chunks, count)

    def _cancel(self, waiting: set[Future[pa.Table]]) -> None:
        """End what is running; again and again, since a job may be about to start just now."""
        while waiting:
            self._context.cancelJobsWithTag(self._tag)
            _, waiting = wait(waiting, LOOK_S)

    def _do(self, chunk: list[Trial]) -> pa.Table:
        """Do a chunk as one Spark job."""
        self._context.addJobTag(self._tag)  # tags belong to a thread
        parts = partitions(chunk, self._partition_count)
        table = self._spark.createDataFrame(_work_table(parts), spark_schema(WORK))
        spread = table.repartitionById(len(parts), "partition")
        work = partial(_do_batches, done=self._done, done_s=self._done_s)
        return spread.mapInArrow(work, spark_schema(RESULTS)).toArrow()

    def _so_far(self) -> tuple[int, float]:
        """Runs and share of the work that are done; a task that was retried counts twice."""
        done = min(self._done.value, self._runs)
        share = self._done_s.value / self._seconds if self._seconds else 1.0
        return done, min(share, 1.0)


def _work_table(parts: Sequence[Sequence[Trial]]) -> pa.Table:
    """The parameters of all runs, with the partition each is done in."""
    rows = [
        {"partition": number, **asdict(run)} for number, part in enumerate(parts) for run in part
    ]
    return pa.Table.from_pylist(rows, schema=WORK)


def _do_batches(
    batches: Iterator[pa.RecordBatch], done: Accumulator[int], done_s: Accumulator[float]
) -> Iterator[pa.RecordBatch]:
    """Do the runs of a partition; this is what Spark's workers call."""
    for batch in batches:
        runs = [Trial(**_without_partition(row)) for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist([_done_row(run) for run in runs], schema=RESULTS)
        done.add(len(runs))
        done_s.add(sum(map(estimated_s, runs)))


def _without_partition(row: dict[str, Any]) -> dict[str, Any]:
    del row["partition"]
    return row


def _done_row(run: Trial) -> dict[str, Any]:
    outcome = perform(run)
    return outcome.row | {_SAMPLES: outcome.samples}


def _tables(results: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Runs and rounds of what the tasks have handed back, in the order of the runs' names."""
    ordered = results.sort_by("run_id").combine_chunks()
    samples = ordered[_SAMPLES]
    rows = pc.list_flatten(samples)
    names = ordered["run_id"].take(pc.list_parent_indices(samples))
    columns = [names, *(pc.struct_field(rows, name) for name in ROUNDS.names[1:])]
    return ordered.select(RUNS.names), pa.table(columns, names=ROUNDS.names)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
