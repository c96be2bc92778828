"""Steps of a micro-batch: bronze, deliveries, silver, rejected, gold, in this order.

Each step is a function of the tables that the steps before it and earlier micro-batches have
written. A micro-batch that was killed between two steps runs again with the same outcome.
"""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from time import monotonic
from typing import Final

from msgspec import Struct
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from skipring.spark.pipeline import gold, silver
from skipring.spark.pipeline.lake import (
    BATCH,
    DATE,
    Name,
    Writer,
    batch_folder,
    dates_in,
    day_of,
    kept,
    make_tables,
    table,
)
from skipring.spark.pipeline.silver import PayloadFormat

_PUBLICATION: Final = "publication"
_DELIVERY: Final = "delivery"


def together(publications: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return publications and deliveries in two columns, one of which is null in each row."""
    one = publications.select(F.struct("*").alias(_PUBLICATION))
    other = deliveries.select(F.struct("*").alias(_DELIVERY))
    return one.unionByName(other, allowMissingColumns=True)


def counts(rows: DataFrame) -> tuple[int, int]:
    """Return the number of publications and of deliveries."""
    (found,) = rows.agg(F.count(_PUBLICATION), F.count(_DELIVERY)).collect()
    return int(found[0]), int(found[1])


def publications(rows: DataFrame) -> DataFrame:
    """Return the publications, with the date of their time."""
    found = rows.where(F.col(_PUBLICATION).isNotNull()).select(f"{_PUBLICATION}.*")
    return found.withColumn(DATE, day_of("timestamp"))


def deliveries(rows: DataFrame) -> DataFrame:
    """Return the deliveries, with the date of arrival."""
    found = rows.where(F.col(_DELIVERY).isNotNull()).select(f"{_DELIVERY}.*")
    return found.withColumn(DATE, day_of("arrived"))


class Figures(Struct, frozen=True, kw_only=True):
    """Result of a micro-batch: rows per table, and changed windows."""

    batch: int
    bronze: int
    deliveries: int
    silver: int
    rejected: int
    duplicates: int
    windows: int
    seconds: float


class Steps:
    """Runner of the steps of one micro-batch after the other."""

    def __init__(self, lake: Path, values: PayloadFormat, window_s: int) -> None:
        self._lake = lake
        self._values = values
        self._window_s = window_s
        self._writer = Writer(lake)
        self._is_first = True

    def take(self, rows: DataFrame, batch: int) -> Figures:
        """Run a micro-batch, possibly for the second time."""
        begun = monotonic()
        if self._is_first:
            make_tables(self._lake)
            self._writer.recover()
            self._writer.forget_after(batch)
            self._is_first = False
        with kept(rows):
            published, told = counts(rows)
            found = publications(rows), deliveries(rows)
            self._writer.write_batch(Name.BRONZE, batch, found[0], published)
            self._writer.write_batch(Name.DELIVERIES, batch, found[1], told)
        good, bad = (self._write_silver if published else self._clear_silver)(rows, batch)
        return Figures(
            batch=batch,
            bronze=published,
            deliveries=told,
            silver=good,
            rejected=bad,
            duplicates=published - good - bad,
            windows=self._write_gold(rows, batch),
            seconds=round(monotonic() - begun, 3),
        )

    def _write_silver(self, rows: DataFrame, batch: int) -> tuple[int, int]:
        tables = self._tables(rows)
        dates = dates_in(batch_folder(self._lake, Name.BRONZE, batch))
        is_known = (F.col(BATCH) < batch) & _is_of(dates)
        known = tables[Name.SILVER].where(is_known).select("id")
        known = known.union(tables[Name.REJECTED].where(is_known).select("id"))
        new = silver.fresh(tables[Name.BRONZE].where(F.col(BATCH) == batch), known)
        with kept(silver.decoded(new, self._values)) as found:
            good = self._writer.write_batch(Name.SILVER, batch, silver.accepted(found), None)
            bad = self._writer.write_batch(Name.REJECTED, batch, silver.rejected(found), None)
        return good, bad

    def _clear_silver(self, rows: DataFrame, batch: int) -> tuple[int, int]:
        """Remove the rows that a killed attempt of a now empty micro-batch left."""
        for name in (Name.SILVER, Name.REJECTED):
            self._writer.write_batch(name, batch, rows, 0)
        return 0, 0

    def _write_gold(self, rows: DataFrame, batch: int) -> int:
        """Recompute the windows that a micro-batch touches; return their number."""
        tables, width_s = self._tables(rows), self._window_s
        published = gold.published(tables[Name.SILVER], tables[Name.REJECTED], width_s)
        is_new = F.col(BATCH) == batch
        told = tables[Name.DELIVERIES].where(is_new)
        with kept(gold.touched(published.where(is_new), told, published)) as windows:
            starts = windows.select(F.to_date("window_start"), "window_start").collect()
            if not starts:
                return 0
            days = sorted({row[0] for row in starts}, key=str)
            affected = gold.within(published.where(_is_of(_with_the_next(days))), windows)
            told_of = gold.about(
                tables[Name.DELIVERIES], affected
            )  # before arrivals are reduced to the first
            anew = gold.figures(affected, told_of, width_s)
            others = gold.without(tables[Name.GOLD].where(_is_of(days)), windows)
            self._writer.write_days(Name.GOLD, others.unionByName(anew))
        return len(starts)

    def _tables(self, rows: DataFrame) -> dict[Name, DataFrame]:
        """Return the current tables."""
        return {name: table(rows.sparkSession, self._lake, name) for name in Name}


def _is_of(dates: list[date | None]) -> Column:
    """Return a condition: the row is in a partition of these dates."""
    there = [each for each in dates if each is not None]
    is_there = F.col(DATE).isin(there) if there else F.lit(False)
    return is_there | F.col(DATE).isNull() if None in dates else is_there


def _with_the_next(days: list[date | None]) -> list[date | None]:
    """Return the days and their next days: a window may end on the day after its start."""
    after = {day + timedelta(days=1) for day in days if day is not None}
    return sorted({*days, *after}, key=str)
