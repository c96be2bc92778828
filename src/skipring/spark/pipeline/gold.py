"""Gold: the user's SQL over the windows that a micro-batch touches.

The rows of a window depend only on its rows in the lake, not on their order of arrival. New rows
recompute the whole window: a late repair changes it, and a second computation changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from skipring.errors import InputError
from skipring.spark.pipeline.lake import DATE, Lake, LakeCommit, LakeTable, date_in
from skipring.spark.pipeline.project import DELIVERIES, SILVER, GoldTable
from skipring.spark.pipeline.times import DAY_S, MICROSECONDS, Times, date_of, window_start

WINDOW: Final = "window_start"
BUCKET: Final = "bucket"
HOUR_S: Final = 3600


class GoldSource(Struct, frozen=True):
    """Table that gold reads, with the rows that the commit adds to it."""

    table: LakeTable
    new: DataFrame | None = None
    touched: Times = Times()


Sources = Mapping[str, GoldSource]


def touched(gold: GoldTable, sources: Sources) -> Times:
    """Return the windows of a gold table that new rows change; rows without a time have none.

    A delivery can be read before its publication, so a publication also changes the minute after
    its own.
    """
    found = sources[gold.of].touched
    if gold.of == DELIVERIES and gold.lookback_s is not None:
        found = found.joined(sources[SILVER].touched.extended(after_s=60))
    return replace(found.aligned(gold.window_s), has_null=False)


def write(lake: Lake, commit: LakeCommit, gold: GoldTable, sources: Sources, times: Times) -> None:
    """Recompute the windows at these times, and add their files to a commit."""
    new = _query(lake, gold, sources, times)
    columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in new.schema)
    old = _files(lake, gold, times)
    if old:
        kept = lake.read(gold.name, columns, old).drop(DATE)
        new = kept.where(~times.has(F.col(WINDOW))).unionByName(new)
    bucket = F.hour(WINDOW) if gold.window_s <= HOUR_S else F.lit(0)
    known = new.where(F.col(WINDOW).isNotNull())
    rows = known.withColumn(DATE, date_of(F.col(WINDOW))).withColumn(BUCKET, bucket)
    commit.write_buckets(gold.name, rows, BUCKET, old)


def columns_of(lake: Lake, gold: GoldTable, sources: Sources) -> str:
    """Return the columns of a gold table; raise InputError if its query is wrong."""
    schema = _query(lake, gold, sources, Times()).schema
    if WINDOW not in schema.names or schema[WINDOW].dataType != TimestampType():
        raise InputError(f"gold/{gold.name}.sql has no column {WINDOW}; select and group by it")
    if taken := {DATE, BUCKET} & set(schema.names):
        raise InputError(f"gold/{gold.name}.sql: rename the column {min(taken)!r}")
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema)


def _query(lake: Lake, gold: GoldTable, sources: Sources, times: Times) -> DataFrame:
    """Return the result of the SQL of a gold table over the rows at these times."""
    for name, source in sources.items():
        wanted = times
        if name != gold.of:
            wanted = times.extended(before_s=gold.lookback_s) if gold.lookback_s else Times()
        time = F.col(source.table.time)
        rows = lake.rows(source.table, wanted)
        if source.new is not None:
            rows = rows.unionByName(source.new.where(wanted.has(time)))
        if name == gold.of:
            start = window_start(time, gold.window_s)
            end = F.timestamp_micros(F.unix_micros(start) + gold.window_s * MICROSECONDS)
            rows = rows.withColumn(WINDOW, start).withColumn("window_end", end)
        rows.createOrReplaceTempView(name)
    try:
        return lake.spark.sql(gold.sql)
    except (AnalysisException, ParseException) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"gold/{gold.name}.sql: {reason}") from None


def _files(lake: Lake, gold: GoldTable, times: Times) -> list[str]:
    """Return the files of a gold table with windows at these times."""
    found = []
    for day in sorted(lake.dates(gold.name)):
        if times.has_date(date_in(day)):
            found += [
                f"{gold.name}/{day}/{entry.name}"
                for entry in lake.files.list(f"{gold.name}/{day}")
                if _is_touched(entry.name, day, gold, times)
            ]
    return found


def _is_touched(name: str, day: str, gold: GoldTable, times: Times) -> bool:
    """Return True if a file may have windows at these times."""
    at = date_in(day)
    hour = name.partition(".")[0]
    if at is None or not hour.isdigit():
        return False
    first = datetime(at.year, at.month, at.day, int(hour), tzinfo=UTC).timestamp()
    width_s = HOUR_S if gold.window_s <= HOUR_S else DAY_S
    return times.overlaps(
        (round(first) * MICROSECONDS, (round(first) + width_s) * MICROSECONDS - 1)
    )
