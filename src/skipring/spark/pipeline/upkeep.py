"""Upkeep of a lake: start, new columns, changed gold tables, retention and compaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import wraps
from logging import getLogger
from typing import Any, Final, get_type_hints

from pyspark.sql import SparkSession

from skipring.errors import InputError
from skipring.spark.arrow import DELIVERY, spark_schema
from skipring.spark.pipeline import gold
from skipring.spark.pipeline.gold import GoldSource
from skipring.spark.pipeline.lake import TIMELESS, Lake, LakeTable, date_in
from skipring.spark.pipeline.project import DELIVERIES, SILVER, Project
from skipring.spark.pipeline.silver import PUBLICATION, SilverTable
from skipring.spark.pipeline.state import LakeState, saved
from skipring.spark.pipeline.times import Times

BRONZE: Final = "bronze"
QUARANTINE: Final = "quarantine"
TRACE: Final = spark_schema(DELIVERY)
COMPACTED_DAYS: Final = 3  # Guess: late rows of older days are few; optimize merges them.
_SQL_TYPES: Final = {int: "bigint", float: "double", str: "string", bool: "boolean"}
_MINUTES: Final = 1440  # of a day
_LOG: Final = getLogger(__name__)


class Upkeep:
    """Lake of a project, kept in line with the project's files."""

    def __init__(self, lake: Lake, project: Project, state: LakeState) -> None:
        self.lake = lake
        self.project = project
        self._state = state
        self._maintained: date | None = None
        self._refused: set[str] = set()  # new fields that cannot be columns
        self.silver_table = SilverTable(project.silver, state.columns)
        quarantine = f"{PUBLICATION}, `reason` string"
        self.bronze = LakeTable(name=BRONZE, columns=PUBLICATION, time="timestamp")
        self.quarantine = LakeTable(name=QUARANTINE, columns=quarantine, time="timestamp")
        self.deliveries = LakeTable(name=DELIVERIES, columns=TRACE, time="arrived")

    @property
    def silver(self) -> LakeTable:
        """Return the table of typed rows, with its current columns."""
        return _silver(self.silver_table)

    @property
    def known_names(self) -> set[str]:
        """Return the names of fields that are columns already, or cannot be columns."""
        return {*self.silver_table.types, *self._refused}

    @property
    def tables(self) -> list[LakeTable]:
        """Return the tables to which rows are appended."""
        own = [self.bronze, self.silver, self.quarantine]
        return [*own, self.deliveries] if self.project.settings.deliveries else own

    @property
    def gold_sources(self) -> list[LakeTable]:
        """Return the tables that gold tables read."""
        own = [self.silver]
        return [*own, self.deliveries] if self.project.settings.deliveries else own

    def open(self) -> None:
        """Finish the work of an earlier run, and update the tables to the project."""
        register_functions(self.lake.spark, self.project.functions)
        self.silver_table.check(self.lake.spark)
        self.lake.recover()
        is_changed = self.silver_table.types != self._state.columns
        self._save(columns=self.silver_table.types)
        for table in self.tables:
            if (is_changed and table.name == SILVER) or not self._has(table.name):
                self.lake.make_table(table)
        self._open_gold()
        self.maintain()

    def add_columns(self, types: Mapping[str, str]) -> bool:
        """Add columns to silver; return True if there are any.

        The state is written first: a column without rows does no harm after a kill.
        """
        added = self._accepted(types)
        if not added:
            return False
        columns = {**self._state.columns, **added}
        self._save(columns=columns)
        self.silver_table = SilverTable(self.project.silver, columns)
        self.lake.make_table(self.silver)
        return True

    def _accepted(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the new columns with which the schema and all gold queries stay valid."""
        if self._fits(types):
            return dict(types)
        accepted: dict[str, str] = {}
        for name, kind in types.items():
            if self._fits({**accepted, name: kind}):
                accepted[name] = kind
            else:
                self._refused.add(name)
                _LOG.warning("the field %r is not added: gold queries fail with this column", name)
        return accepted

    def _fits(self, types: Mapping[str, str]) -> bool:
        table = SilverTable(self.project.silver, {**self._state.columns, **types})
        sources = {each.name: GoldSource(each) for each in (*self.gold_sources, _silver(table))}
        try:
            table.check(self.lake.spark)
            for each in self.project.gold:
                gold.columns_of(self.lake, each, sources)
        except InputError:
            return False
        return True

    def maintain(self) -> None:
        """Once a day, remove expired dates and merge the small files of the last days."""
        today = datetime.now(UTC).date()
        if self._maintained == today:
            return
        self._maintained = today
        self.expire()
        for table in self.tables:
            closed = [date_in(day) for day in self.lake.dates(table.name)]
            since = today - timedelta(days=COMPACTED_DAYS)
            recent = sorted(day for day in closed if day is not None and since <= day < today)
            self.lake.compact(table, [f"date={day}" for day in recent])

    def expire(self) -> list[str]:
        """Remove the dates beyond the retention; return their directories."""
        days = self.project.retention_days
        if days is None:
            return []
        names = [*(table.name for table in self.tables), *(it.name for it in self.project.gold)]
        return self.lake.expire(names, datetime.now(UTC).date() - timedelta(days=days))

    def optimize(self) -> int:
        """Merge the small files of all dates; return the number of merged files."""
        return sum(
            self.lake.compact(table, sorted(self.lake.dates(table.name))) for table in self.tables
        )

    def _open_gold(self) -> None:
        """Rebuild the gold tables whose definition has changed, from all rows."""
        for table in self.project.gold:
            sources = {each.name: GoldSource(each) for each in self.gold_sources}
            columns = gold.columns_of(self.lake, table, sources)
            if self._has(table.name) and self._state.gold.get(table.name) == table.digest:
                continue
            self.lake.drop(table.name)
            self.lake.make_table(LakeTable(name=table.name, columns=columns, time=gold.WINDOW))
            if times := self._all_times(table.of):
                with self.lake.commit() as commit:
                    aligned = times.aligned(table.window_s)
                    gold.write(self.lake, commit, table, sources, aligned)
            self._save(gold={**self._state.gold, table.name: table.digest})

    def _all_times(self, table: str) -> Times:
        """Return the times of all dates of a table."""
        names = self.lake.dates(table)
        days = sorted(day for name in names if (day := date_in(name)) is not None)
        starts = [round(datetime(d.year, d.month, d.day, tzinfo=UTC).timestamp()) for d in days]
        ends = [start // 60 + _MINUTES - 1 for start in starts]
        every = Times.of_minutes([start // 60 for start in starts] + ends)
        whole = [(every.spans[0][0], every.spans[-1][1])] if every.spans else []
        return Times.of(whole)

    def _has(self, table: str) -> bool:
        return self.lake.files.exists(f"{table}/{TIMELESS}")

    def _save(self, **changes: Any) -> None:  # noqa: ANN401  (fields of the state)
        self._state = saved(self.lake.files, self._state, **changes)


def _silver(table: SilverTable) -> LakeTable:
    return LakeTable(name=SILVER, columns=table.columns, time=table.time)


def register_functions(spark: SparkSession, functions: Iterable[Callable[..., Any]]) -> None:
    """Register functions for SQL under their names; the annotation states the type.

    An exception in a function is a null: one row does not stop the pipeline.
    """
    for function in functions:
        if hasattr(function, "returnType"):  # made with pyspark's udf or pandas_udf
            spark.udf.register(function.__name__, function)
        else:
            returned = get_type_hints(function).get("return", str)
            kind = _SQL_TYPES.get(returned, "string")
            spark.udf.register(function.__name__, _or_null(function), kind)


def _or_null(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def guarded(*given: Any) -> Any:  # noqa: ANN401  (the user's own types)
        try:
            return function(*given)
        except Exception:  # noqa: BLE001  (the user's own code)
            return None

    return guarded
