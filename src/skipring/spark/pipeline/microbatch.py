"""Steps of a micro-batch: read once, drop known rows, and commit all tables together.

A micro-batch that runs again, in whole or in part, adds only rows that are not in the lake: rows
are known by their keys. The search for known keys reads only files with the times of the new rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from logging import getLogger
from time import monotonic
from typing import Final

from msgspec import Struct
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from skipring.spark.pipeline import gold
from skipring.spark.pipeline.gold import GoldSource
from skipring.spark.pipeline.lake import DATE, AddedRows, LakeTable, union
from skipring.spark.pipeline.silver import inferred
from skipring.spark.pipeline.times import Times, date_of, micros, minute
from skipring.spark.pipeline.upkeep import BRONZE, Upkeep

ROWS_PER_TASK: Final = 50_000  # Guess: a second of work.
PUBLICATION_KEY: Final = ("id",)
# A node that lost its disk reports a delivery again, with another time.
DELIVERY_KEY: Final = ("topic", "node", "id", "arrived")
_PUBLICATION: Final = "publication"
_DELIVERY: Final = "delivery"
NO_TIME: Final = (
    "publications without a time are in no gold table, and each micro-batch with some reads the "
    "ids of all of them: let the publishers set the time"
)
_LOG: Final = getLogger(__name__)
_PAYLOAD: Final = ("key", "value", "headers")


class BatchFigures(Struct, frozen=True, kw_only=True):
    """Result of a micro-batch: new rows of each table."""

    batch: int
    rows: dict[str, int]
    duplicates: int
    seconds: float


class StreamSurvey(Struct, frozen=True):
    """Number of rows of a stream in a micro-batch, and their times."""

    rows: int
    times: Times


class NewRows(Struct, frozen=True):
    """Rows that a micro-batch adds to a table, by date, and the times for gold."""

    table: LakeTable
    rows: DataFrame
    added: dict[str, AddedRows]
    touched: Times

    @property
    def count(self) -> int:
        """Return the number of rows."""
        return sum(each.rows for each in self.added.values())


def together(publications: DataFrame, deliveries: DataFrame | None) -> DataFrame:
    """Return publications and deliveries in two columns, one of which is null in each row."""
    one = publications.select(F.struct("*").alias(_PUBLICATION))
    if deliveries is None:
        return one
    other = deliveries.select(F.struct("*").alias(_DELIVERY))
    return one.unionByName(other, allowMissingColumns=True)


class Microbatch:
    """Runner of micro-batches on a lake, one after the other."""

    def __init__(self, upkeep: Upkeep) -> None:
        self._upkeep = upkeep
        self._lake = upkeep.lake
        self._has_warned = False

    def run(self, rows: DataFrame, batch: int) -> BatchFigures:
        """Run a micro-batch, possibly for the second time."""
        begun = monotonic()
        read = 0
        new: list[NewRows] = []
        with _kept(rows), ExitStack() as stack:
            for name, survey in _surveys(rows).items():
                part = rows.where(F.col(name).isNotNull()).select(f"{name}.*")
                if survey.rows and name == _PUBLICATION:
                    read = survey.rows
                    new += self._publications(part, survey, stack)
                elif survey.rows:
                    new.append(self._deliveries(part, survey, stack))
            self._commit(new)
        self._upkeep.maintain()
        counts = {each.table.name: each.count for each in new}
        return BatchFigures(
            batch=batch,
            rows={table.name: counts.get(table.name, 0) for table in self._upkeep.tables},
            duplicates=read - counts.get(BRONZE, 0),
            seconds=round(monotonic() - begun, 3),
        )

    def _commit(self, new: Sequence[NewRows]) -> None:
        """Write all tables, then the gold tables with touched windows."""
        if not any(each.count for each in new):
            return
        by_table = {each.table.name: each for each in new}
        sources = {
            table.name: GoldSource(table, found.rows, found.touched)
            if (found := by_table.get(table.name)) is not None
            else GoldSource(table)
            for table in self._upkeep.gold_sources
        }
        with self._lake.commit() as commit:
            for each in new:
                commit.append(each.table, each.rows, each.added)
            for table in self._upkeep.project.gold:
                if times := gold.touched(table, sources):
                    gold.write(self._lake, commit, table, sources, times)

    def _publications(
        self, rows: DataFrame, survey: StreamSurvey, stack: ExitStack
    ) -> list[NewRows]:
        """Return the new rows of bronze, silver and quarantine."""
        upkeep = self._upkeep
        self._warn_of(survey.times)
        fresh = self._fresh(upkeep.bronze, rows, PUBLICATION_KEY, survey)
        typed = stack.enter_context(_kept(upkeep.silver_table.typed(fresh)))
        groups = _summary(typed, upkeep.silver.time)
        names = sorted({name for group in groups for names in group.fields for name in names})
        if names and upkeep.add_columns(inferred(typed, names, upkeep.known_names)):
            typed = stack.enter_context(_kept(upkeep.silver_table.typed(fresh)))
            groups = _summary(typed, upkeep.silver.time)
        good = [group for group in groups if not group.is_bad]
        time = upkeep.silver.time
        own = [name for name in rows.columns if name in upkeep.bronze.names]
        raw = typed.select(*own, "_silver", "_reason", date_of(F.col("timestamp")).alias(DATE))
        silver = raw.where("_reason IS NULL").select(
            "_silver.*", date_of(F.col(f"_silver.{time}")).alias(DATE)
        )
        bad = raw.where("_reason IS NOT NULL").withColumn("reason", F.col("_reason"))
        minutes = {each for group in good for each in group.minutes}
        has_null = any(group.timeless for group in good)
        return [
            NewRows(
                upkeep.bronze, self._bronze(raw), _added(groups, DATE, "first", "last"), Times()
            ),
            NewRows(
                upkeep.silver,
                silver,
                _added(good, "silver_date", "silver_first", "silver_last"),
                Times.of_minutes(minutes, has_null=has_null),
            ),
            NewRows(
                upkeep.quarantine,
                bad.select(*upkeep.quarantine.names, DATE),
                _added([group for group in groups if group.is_bad], DATE, "first", "last"),
                Times(),
            ),
        ]

    def _warn_of(self, times: Times) -> None:
        """Log the cost of rows without a time, once."""
        if times.has_null and not self._has_warned:
            self._has_warned = True
            _LOG.warning(NO_TIME)

    def _bronze(self, raw: DataFrame) -> DataFrame:
        names = self._upkeep.bronze.names
        if self._upkeep.project.settings.keep_values:
            return raw.select(*names, DATE)
        return raw.select(
            *(F.lit(None).cast(raw.schema[name].dataType).alias(name) if name in _PAYLOAD else name
              for name in names),
            DATE,
        )  # fmt: skip

    def _deliveries(self, rows: DataFrame, survey: StreamSurvey, stack: ExitStack) -> NewRows:
        table = self._upkeep.deliveries
        fresh = self._fresh(table, rows, DELIVERY_KEY, survey)
        dated = fresh.select(*table.names, date_of(F.col(table.time)).alias(DATE))
        kept = stack.enter_context(_kept(dated))
        time = F.col(table.time)
        groups = kept.groupBy(DATE).agg(
            F.count("*").alias("rows"),
            F.min(micros(time)).alias("first"),
            F.max(micros(time)).alias("last"),
        )
        return NewRows(table, kept, _added(groups.collect(), DATE, "first", "last"), survey.times)

    def _fresh(
        self, table: LakeTable, rows: DataFrame, key: Sequence[str], survey: StreamSurvey
    ) -> DataFrame:
        """Return each row once, without those whose keys are in the lake.

        A key determines the time, so only files with the times of the rows can have it. In one
        task, neither step needs a shuffle.
        """
        tasks = 1 + survey.rows // ROWS_PER_TASK
        known = self._lake.rows(table, survey.times).select(*key)
        if tasks == 1:
            rows, known = rows.coalesce(1), known.coalesce(1)
        once = rows.dropDuplicates([*key])
        return once.join(known.hint("shuffle_hash"), [*key], "left_anti")


@contextmanager
def _kept(rows: DataFrame) -> Iterator[DataFrame]:
    """Persist rows during the block, for several uses."""
    rows.persist()
    try:
        yield rows
    finally:
        rows.unpersist()


def _surveys(rows: DataFrame) -> dict[str, StreamSurvey]:
    """Return the number and the times of the rows of each stream."""
    times = {_PUBLICATION: "timestamp", _DELIVERY: "arrived"}
    streams = [name for name in times if name in rows.columns]
    columns = []
    for name in streams:
        time = F.col(f"{name}.{times[name]}")
        is_timeless = F.col(name).isNotNull() & micros(time).isNull()
        columns += [F.count(name), F.collect_set(minute(time)), F.count_if(is_timeless)]
    (found,) = rows.agg(*columns).collect()
    return {
        name: StreamSurvey(
            found[3 * place],
            Times.of_minutes(found[3 * place + 1], has_null=found[3 * place + 2] > 0),
        )
        for place, name in enumerate(streams)
    }


def _summary(typed: DataFrame, silver_time: str) -> list[Row]:
    """Return the number of rows by dates and by whether they failed, and their times."""
    time, event = F.col("timestamp"), F.col(f"_silver.{silver_time}")
    groups = typed.groupBy(
        date_of(time).alias(DATE),
        date_of(event).alias("silver_date"),
        F.col("_reason").isNotNull().alias("is_bad"),
    )
    return groups.agg(
        F.count("*").alias("rows"),
        F.min(micros(time)).alias("first"),
        F.max(micros(time)).alias("last"),
        F.min(micros(event)).alias("silver_first"),
        F.max(micros(event)).alias("silver_last"),
        F.collect_set(minute(event)).alias("minutes"),
        F.count_if(micros(event).isNull()).alias("timeless"),
        F.collect_set("_fields").alias("fields"),
    ).collect()


def _added(groups: Sequence[Row], day: str, first: str, last: str) -> dict[str, AddedRows]:
    """Return the new rows of each date."""
    found: dict[str, AddedRows] = {}
    for group in groups:
        name = f"{DATE}={group[day]}"
        span = None if group[first] is None else (group[first], group[last])
        before = found.get(name, AddedRows(rows=0, span=None))
        found[name] = AddedRows(rows=before.rows + group.rows, span=union(before.span, span))
    return found
