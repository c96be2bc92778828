"""Run of a pipeline: one streaming query over publications and deliveries, and its progress."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from logging import CRITICAL, getLogger
from pathlib import Path
from threading import Event, Lock
from time import monotonic, sleep
from typing import Any, Final

from msgspec import Struct
from msgspec.json import encode
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.live import Live
from rich.table import Table

from skipring.errors import SkipringError, StoreBusyError
from skipring.net.access import Access
from skipring.spark import register
from skipring.spark.delivery_source import NAME
from skipring.spark.errors import translate_spark_errors
from skipring.spark.options import ReadOptions
from skipring.spark.pipeline.lake import Name, Writer, batch_folder, rows_by_part
from skipring.spark.pipeline.manifest import CHECKPOINT, Manifest, write_manifest
from skipring.spark.pipeline.microbatch import Figures, Steps, together
from skipring.spark.stream import StreamReader
from skipring.storage.data_dir import translate_os_errors


@contextmanager
def shown(console: Console, about: Manifest) -> Iterator[Tell]:
    """Show progress during the block: a table on a terminal, a line per micro-batch elsewhere."""
    if not console.is_terminal:
        yield lambda progress: console.print(as_line(progress), highlight=False, soft_wrap=True)
        return
    with Live(_waiting(about), console=console, auto_refresh=False) as live:
        live.refresh()
        yield lambda progress: live.update(as_table(about, progress), refresh=True)


def as_json(progress: PipelineProgress) -> str:
    """Return progress as one line of JSON."""
    totals = {str(name): count for name, count in progress.totals.items()}
    found = {
        **{name: getattr(progress.figures, name) for name in progress.figures.__struct_fields__},
        "per_s": progress.per_s,
        "behind": progress.behind,
        "totals": totals,
    }
    return encode(found).decode()


def as_line(progress: PipelineProgress) -> str:
    """Return progress as one line of text."""
    new = progress.figures
    parts = [
        f"batch {new.batch}: {new.bronze:,} publications ({progress.per_s:,.0f}/s)",
        f"{new.silver:,} new",
        f"{new.rejected:,} rejected",
        _many(new.duplicates, "duplicate"),
        f"{new.deliveries:,} deliveries",
        _many(new.windows, "window"),
        f"{_behind(progress)} behind",
        f"{new.seconds:.1f} s",
    ]
    return ", ".join(parts)


def as_table(about: Manifest, progress: PipelineProgress) -> Table:
    """Return progress as a table for a terminal."""
    new = progress.figures
    grid = _grid(about)
    grid.add_column("rows", justify="right")
    grid.add_column("last batch", justify="right")
    last = {
        Name.BRONZE: new.bronze,
        Name.DELIVERIES: new.deliveries,
        Name.SILVER: new.silver,
        Name.REJECTED: new.rejected,
        Name.GOLD: new.windows,
    }
    for name, count in last.items():
        unit = _many(count, "window") if name is Name.GOLD else f"{count:,}"
        style = "red" if name is Name.REJECTED and progress.totals[name] else None
        grid.add_row(name, f"{progress.totals[name]:,}", unit, style=style)
    grid.add_section()
    grid.add_row("rate", f"{progress.per_s:,.1f}/s", "")
    grid.add_row("behind the ring", _behind(progress), "")
    grid.add_row("duplicates removed", "", f"{new.duplicates:,}")
    grid.add_row("batch", f"{new.batch}", f"{new.seconds:.1f} s")
    return grid


def _waiting(about: Manifest) -> Table:
    grid = _grid(about)
    grid.add_row("Spark is starting, or there are no publications yet")
    return grid


def _grid(about: Manifest) -> Table:
    grid = Table(title=f"{', '.join(about.topics)}   windows of {about.window_s} s")
    grid.add_column("table")
    return grid


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


def _behind(progress: PipelineProgress) -> str:
    return "?" if progress.behind is None else f"{progress.behind:,}"


LOOK_S: Final = 0.2  # Guess: a delay of the output that a user does not notice.
# Guess: the JVM of a killed run ends within this time. Until then it may still write.
LOCK_WAIT_S: Final = 30.0
LOCK: Final = ".lock"
FINISH_S: Final = 10.0  # Guess: a user who interrupts does not want to wait longer.
OFFSETS_MAX: Final = 100_000  # Guess: publications of a micro-batch, some seconds of work.
DELIVERIES_MAX: Final = 400_000  # Guess: as above; deliveries are smaller.


class PipelinePlan(Struct, frozen=True, kw_only=True):
    """Configuration of a run."""

    access: Access
    lake: Path
    about: Manifest
    starting: str  # "earliest" or "latest"; for a new lake only
    trigger_s: float | None  # None: read the available publications, then end
    offsets_max: int = OFFSETS_MAX
    fails_on_data_loss: bool = True


class PipelineProgress(Struct, frozen=True, kw_only=True):
    """Progress of a pipeline after a micro-batch."""

    figures: Figures
    totals: Mapping[Name, int]  # rows in the lake
    per_s: float  # publications since the previous micro-batch
    behind: int | None  # publications of the ring that are not read; None if unknown


Tell = Callable[[PipelineProgress], None]


def rooted(plan: PipelinePlan) -> PipelinePlan:
    """Add the start of a new lake to a plan; raise UnreachableError if a topic is unreadable."""
    given = {**_access(plan.access), "subscribe": ",".join(plan.about.topics)}
    options = ReadOptions.parse({**given, "startingOffsets": plan.starting}, is_stream=True)
    reader = StreamReader(options)
    try:
        began = reader.initialOffset()
    finally:
        reader.stop()
    about = plan.about
    return plan if about.began else replace(plan, about=replace(about, began=began))


def make_place(lake: Path) -> None:
    """Create the directory of a lake if it is missing."""
    with translate_os_errors(lake):
        lake.mkdir(parents=True, exist_ok=True)


def run_pipeline(
    spark: SparkSession, plan: PipelinePlan, tell: Tell, is_over: Event
) -> dict[Name, int]:
    """Follow the topics until ``is_over``; return the rows of each table."""
    with translate_spark_errors(), locked(spark, plan.lake):
        write_manifest(plan.lake, plan.about)
        Writer(plan.lake).recover()
        watch = _QueryWatch(plan, tell)
        turn = _Turn(is_over)
        query = start_query(spark, plan, watch.note, turn)
        try:
            while query.isActive and not is_over.wait(LOOK_S):
                watch.look(query)
            turn.await_end()
            watch.look(query, is_last=True)
            if not is_over.is_set():
                query.awaitTermination()  # raises the error of the query
        finally:
            query.stop()
    return watch.totals


class _Turn:
    """Turn of micro-batches: a running one may finish before the query stops, no other starts."""

    def __init__(self, is_over: Event) -> None:
        self._is_over = is_over
        self._lock = Lock()

    @contextmanager
    def taken(self) -> Iterator[None]:
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
    spark: SparkSession, plan: PipelinePlan, note: Callable[[Figures], None], turn: _Turn
) -> StreamingQuery:
    """Start the query; ``note`` is called after every micro-batch."""
    prepare(spark)
    steps = Steps(plan.lake, plan.about.values, plan.about.window_s)

    def take(rows: DataFrame, batch: int) -> None:
        # Spark passes this exception on as text, which must be short.
        with translate_spark_errors(), turn.taken():
            note(steps.take(rows, batch))

    writing = both_streams(spark, plan).writeStream.foreachBatch(take)
    writing = writing.option("checkpointLocation", str(plan.lake / CHECKPOINT))
    writing = writing.queryName(f"skipring pipeline {plan.lake}")
    if plan.trigger_s is None:
        return writing.trigger(availableNow=True).start()
    return writing.trigger(processingTime=f"{round(plan.trigger_s * 1000)} milliseconds").start()


def prepare(spark: SparkSession) -> None:
    """Set what a lake depends on: days in UTC, and timestamps that every reader supports."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    getLogger("py4j").setLevel(CRITICAL)  # it logs every exception that it passes on


def both_streams(spark: SparkSession, plan: PipelinePlan) -> DataFrame:
    """Return publications and deliveries of the topics as one stream."""
    register(spark)
    options = {**_access(plan.access), "subscribe": ",".join(plan.about.topics)}
    publications = spark.readStream.format("skipring").options(
        **options,
        startingOffsets=json.dumps(plan.about.began),
        includeHeaders="map",
        failOnDataLoss=str(plan.fails_on_data_loss).lower(),
        maxOffsetsPerTrigger=str(plan.offsets_max),
    )
    deliveries = spark.readStream.format(NAME).options(
        **options, startingOffsets=plan.starting, maxOffsetsPerTrigger=str(DELIVERIES_MAX)
    )
    return together(publications.load(), deliveries.load())


def _access(access: Access) -> dict[str, str]:
    files = {"ca": access.ca, "cert": access.cert, "key": access.key}
    given = {name: file for name, file in files.items() if file is not None}
    return {"supervisor": ",".join(access.supervisors), **given}


class _QueryWatch:
    """Watch over a query: report each micro-batch once Spark has reported its offsets."""

    def __init__(self, plan: PipelinePlan, tell: Tell) -> None:
        self._rows = {name: rows_by_part(plan.lake / name) for name in Name}
        self._lake = plan.lake
        self._tell = tell
        self._noted: deque[Figures] = deque()
        self._told_at = monotonic()

    @property
    def totals(self) -> dict[Name, int]:
        """Return the number of rows of each table."""
        return {name: sum(rows.values()) for name, rows in self._rows.items()}

    def note(self, figures: Figures) -> None:
        """Record the result of a micro-batch; called in a thread of Spark."""
        self._noted.append(figures)

    def look(self, query: StreamingQuery, *, is_last: bool = False) -> None:
        """Report the micro-batches that are complete."""
        progress = query.lastProgress
        reached = -1 if progress is None else int(progress["batchId"])
        while self._noted and (is_last or self._noted[0].batch <= reached):
            figures = self._noted.popleft()
            is_latest = progress is not None and reached == figures.batch
            self._tell(self._progress(figures, behind(progress) if is_latest else None))

    def _progress(self, figures: Figures, more: int | None) -> PipelineProgress:
        for name in (Name.BRONZE, Name.DELIVERIES, Name.SILVER, Name.REJECTED):
            self._rows[name][batch_folder(self._lake, name, figures.batch).name] = getattr(
                figures, name
            )  # replaces the count of a killed attempt
        self._rows[Name.GOLD] = rows_by_part(self._lake / Name.GOLD)
        elapsed_s = monotonic() - self._told_at
        self._told_at = monotonic()
        return PipelineProgress(
            figures=figures,
            totals=self.totals,
            per_s=round(figures.bronze / max(elapsed_s, LOOK_S), 1),
            behind=more,
        )


def behind(progress: Any) -> int | None:  # noqa: ANN401  (Spark's own)
    """Return the number of unread publications; None if the stores differ."""
    source = progress["sources"][0]
    read, there = _parsed(source["endOffset"]), _parsed(source["latestOffset"])
    if not read or not there:
        return None  # Spark does not report it for a micro-batch that runs again
    total = 0
    for topic, position in there.items():
        known = read.get(topic)
        if known is None or any(known[key] != position[key] for key in ("store", "epoch")):
            return None
        total += max(0, position["offset"] - known["offset"])
    return total


def _parsed(offset: Any) -> dict[str, Any] | None:  # noqa: ANN401  (Spark's own)
    found: dict[str, Any] | None = json.loads(offset) if isinstance(offset, str) else offset
    return found


@contextmanager
def locked(spark: SparkSession, lake: Path) -> Iterator[None]:
    """Lock a lake during the block; raise StoreBusyError if another pipeline runs on it.

    The JVM holds the lock, because it writes the tables and may outlive a killed driver.
    """
    make_place(lake)
    jvm: Any = spark._jvm  # noqa: SLF001  (PySpark has no other way)
    file = jvm.java.io.RandomAccessFile(str(lake / LOCK), "rw")
    try:
        deadline = monotonic() + LOCK_WAIT_S
        while file.getChannel().tryLock() is None:
            if monotonic() > deadline:
                raise StoreBusyError(f"{lake}: another pipeline runs on it; stop that one first")
            sleep(LOOK_S)
        yield
    finally:
        file.close()  # releases the lock
