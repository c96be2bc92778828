"""Run of a pipeline: one streaming query over the topics of a project."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from logging import CRITICAL, getLogger
from threading import Event, Lock
from time import monotonic, sleep
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from skipring.errors import SkipringError, StoreBusyError
from skipring.net.access import Access
from skipring.spark import register
from skipring.spark.delivery_source import NAME
from skipring.spark.errors import translate_spark_errors
from skipring.spark.options import ReadOptions
from skipring.spark.pipeline.lake import Lake
from skipring.spark.pipeline.lake_files import LakeFiles
from skipring.spark.pipeline.microbatch import BatchFigures, Microbatch, together
from skipring.spark.pipeline.progress import PipelineProgress, Report, behind
from skipring.spark.pipeline.project import Project
from skipring.spark.pipeline.state import CHECKPOINT, LakeState, agreed, saved
from skipring.spark.pipeline.upkeep import Upkeep
from skipring.spark.session.builder import chosen_master, is_on_this_machine, submitted_settings
from skipring.spark.stream import StreamReader

POLL_S: Final = 0.2  # Guess: a delay of the output that a user does not notice.
# Guess: the JVM of a killed run ends within this time. Until then it may still write.
LOCK_WAIT_S: Final = 30.0
LOCK: Final = ".lock"
# Spark waits 10 s for a Python process to start, which is too short on a busy machine. A query goes
# on from its checkpoint.
SLOW_WORKER: Final = "failed to connect back"
STARTS_MAX: Final = 3
FINISH_S: Final = 10.0  # Guess: a user who interrupts does not want to wait longer.
DELIVERIES_MAX: Final = 400_000  # Guess: some seconds of work; deliveries are small.
# Measured: the steps of a micro-batch are small queries, which adaptive execution splits into jobs.
CONF: Final = {"spark.sql.adaptive.enabled": "false"}
UI: Final = {"spark.ui.enabled": "true", "spark.ui.port": "0"}
NO_UI: Final = {"spark.ui.enabled": "false"}


class PipelineRun(Struct, frozen=True, kw_only=True):
    """Project, and the ring that it follows."""

    project: Project
    access: Access
    is_once: bool = False  # read the available publications, then end
    began: dict[str, dict[str, str | int]] = {}  # start of a new lake


def run_conf(
    project: Project, given: Mapping[str, str], *, master: str | None, shows_ui: bool | None = None
) -> dict[str, str]:
    """Return the settings of a run's session; the caller's come before those of the project.

    By default Spark's page is shown if it is on loopback, because no other machine takes part.
    """
    conf = {**project.settings.spark, **given}
    if shows_ui is None:
        shows_ui = is_on_this_machine(master or chosen_master(conf, submitted_settings()))
    return {**CONF, **(UI if shows_ui else NO_UI), **conf}


def rooted(run: PipelineRun) -> PipelineRun:
    """Add the start of a new lake to a run; raise UnreachableError if a topic is unreadable."""
    starting = run.project.settings.starting
    options = ReadOptions.parse({**_source(run), "startingOffsets": starting}, is_stream=True)
    reader = StreamReader(options)
    try:
        return replace(run, began=reader.initialOffset())
    finally:
        reader.stop()


def run_pipeline(
    spark: SparkSession, run: PipelineRun, report: Report, is_over: Event
) -> dict[str, int]:
    """Follow the topics until ``is_over``; return the number of new rows of each table."""
    with translate_spark_errors(), opened_lake(spark, run.project) as (lake, known):
        state = saved(lake.files, known, began=known.began or run.began)
        upkeep = Upkeep(lake, run.project, state)
        upkeep.open()
        watch = _QueryWatch(report)
        turn = _Turn(is_over)
        for starts_left in reversed(range(STARTS_MAX)):
            query = start_query(spark, run, state, upkeep, watch.record, turn)
            try:
                _follow(query, watch, turn, is_over)
                break
            except Exception as error:
                if SLOW_WORKER not in str(error) or not starts_left:
                    raise
            finally:
                query.stop()
    return watch.totals


def _follow(query: StreamingQuery, watch: _QueryWatch, turn: _Turn, is_over: Event) -> None:
    """Report the progress of a query until it ends or ``is_over``; raise its error."""
    while query.isActive and not is_over.wait(POLL_S):
        watch.report(query)
    turn.await_end()
    watch.report(query, is_last=True)
    if not is_over.is_set():
        query.awaitTermination()


def optimize_lake(spark: SparkSession, project: Project) -> tuple[int, list[str]]:
    """Merge small files and remove expired dates; return the number and the dates."""
    with translate_spark_errors(), opened_lake(spark, project) as (lake, state):
        upkeep = Upkeep(lake, project, state)
        upkeep.open()
        return upkeep.optimize(), upkeep.expire()


@contextmanager
def opened_lake(spark: SparkSession, project: Project) -> Iterator[tuple[Lake, LakeState]]:
    """Lock a lake during the block; raise StoreBusyError if another process writes to it."""
    prepare(spark)
    files = LakeFiles(spark, project.lake)
    state = agreed(files, project)
    files.make_directory()
    deadline = monotonic() + LOCK_WAIT_S
    while True:
        with files.locked(LOCK) as is_locked:
            if is_locked:
                yield Lake(spark, files), state
                return
        if monotonic() > deadline:
            raise StoreBusyError(f"{files.uri()}: another pipeline runs on it; stop that one first")
        sleep(POLL_S)


class _Turn:
    """Turn of micro-batches: a running one may finish before the query stops, no other starts."""

    def __init__(self, is_over: Event) -> None:
        self._is_over = is_over
        self._lock = Lock()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run a micro-batch in the block; raise SkipringError if the pipeline ends."""
        with self._lock:
            if self._is_over.is_set():
                raise SkipringError("the pipeline was asked to end")
            yield

    def await_end(self) -> None:
        """Wait for the running micro-batch for at most FINISH_S; it can run again."""
        if self._lock.acquire(timeout=FINISH_S):
            self._lock.release()


def start_query(
    spark: SparkSession,
    run: PipelineRun,
    state: LakeState,
    upkeep: Upkeep,
    record: Callable[[BatchFigures], None],
    turn: _Turn,
) -> StreamingQuery:
    """Start the query; ``record`` is called after every micro-batch."""
    microbatch = Microbatch(upkeep)

    def process(rows: DataFrame, batch: int) -> None:
        # Spark passes this exception on as text, which must be short.
        with translate_spark_errors(), turn.running():
            record(microbatch.run(rows, batch))

    files = upkeep.lake.files
    writing = _streams(spark, run, state).writeStream.foreachBatch(process)
    writing = writing.option("checkpointLocation", files.uri(CHECKPOINT))
    writing = writing.queryName(f"skipring pipeline {files.uri()}")
    if run.is_once:
        return writing.trigger(availableNow=True).start()
    interval_ms = round(run.project.trigger_s * 1000)
    return writing.trigger(processingTime=f"{interval_ms} milliseconds").start()


def prepare(spark: SparkSession) -> None:
    """Set options for a lake: days in UTC, timestamps of every reader, nulls for errors.

    An expression that cannot be evaluated for a row is null: one row does not stop the pipeline.
    """
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    getLogger("py4j").setLevel(CRITICAL)  # it logs every exception that it passes on
    getLogger("SQLQueryContextLogger").disabled = True  # as above


def _streams(spark: SparkSession, run: PipelineRun, state: LakeState) -> DataFrame:
    """Return publications and deliveries of the topics as one stream."""
    register(spark)
    settings = run.project.settings
    publications = spark.readStream.format("skipring").options(
        **_source(run),
        startingOffsets=json.dumps(state.began),
        includeHeaders="map",
        failOnDataLoss=str(settings.fail_on_data_loss).lower(),
        maxOffsetsPerTrigger=str(settings.max_offsets),
    )
    if not settings.deliveries:
        return together(publications.load(), None)
    deliveries = spark.readStream.format(NAME).options(
        **_source(run),
        startingOffsets=settings.starting,
        maxOffsetsPerTrigger=str(DELIVERIES_MAX),
    )
    return together(publications.load(), deliveries.load())


def _source(run: PipelineRun) -> dict[str, str]:
    access = run.access
    files = {"ca": access.ca, "cert": access.cert, "key": access.key}
    given = {name: file for name, file in files.items() if file is not None}
    topics = ",".join(run.project.settings.topics)
    return {"supervisor": ",".join(access.supervisors), "subscribe": topics, **given}


class _QueryWatch:
    """Watch over a query: report each micro-batch once Spark has reported its offsets."""

    def __init__(self, report: Report) -> None:
        self.totals: dict[str, int] = {}
        self._report = report
        self._recorded: deque[BatchFigures] = deque()
        self._reported_at = monotonic()

    def record(self, figures: BatchFigures) -> None:
        """Record the result of a micro-batch; called in a thread of Spark."""
        self._recorded.append(figures)

    def report(self, query: StreamingQuery, *, is_last: bool = False) -> None:
        """Report the micro-batches that are complete."""
        progress = query.lastProgress
        reached = -1 if progress is None else int(progress["batchId"])
        while self._recorded and (is_last or self._recorded[0].batch <= reached):
            figures = self._recorded.popleft()
            is_latest = progress is not None and reached == figures.batch
            self._report(self._progress(figures, behind(progress) if is_latest else None))

    def _progress(self, figures: BatchFigures, more: dict[str, int] | None) -> PipelineProgress:
        for name, rows in figures.rows.items():
            self.totals[name] = self.totals.get(name, 0) + rows
        elapsed_s = monotonic() - self._reported_at
        self._reported_at = monotonic()
        read = figures.rows["bronze"] + figures.duplicates
        return PipelineProgress(
            figures=figures,
            totals=dict(self.totals),
            per_s=round(read / max(elapsed_s, POLL_S), 1),
            behind=more,
        )
