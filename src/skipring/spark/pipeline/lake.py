"""Tables of a lake, and crash-safe writes: a kill at any moment leaves every table whole.

A part of a table (the rows of one micro-batch, or a day of gold) is staged beside the tables,
becomes ready with one rename, and then replaces the old part. The next start places parts that are
ready and deletes parts that are only staged; Spark then runs the micro-batch again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from skipring.spark.arrow import DELIVERY, publication_schema, spark_schema
from skipring.storage.data_dir import translate_os_errors


class Name(StrEnum):
    """Table of a lake, in the order in which a micro-batch writes them."""

    BRONZE = "bronze"  # publications as they were read
    DELIVERIES = "deliveries"  # how they arrived at the nodes, as the nodes recorded it
    SILVER = "silver"  # decoded publications, each once
    REJECTED = "rejected"  # publications that could not be decoded, with the reason
    GOLD = "gold"  # figures per window, topic and publisher


BATCH: Final = "batch"
# Limit: the year 2262, the largest time of pandas. A publication may have any time. Beyond this
# limit it has no date and no window, as if its time were unknown.
TIME_END_US: Final = 9_214_646_400_000_000
DATE: Final = "date"

PUBLICATION: Final = spark_schema(publication_schema("map"))
TRACE: Final = spark_schema(DELIVERY)
DECODED: Final = (
    "id binary, topic string, publisher string, sequence bigint, timestamp timestamp, "
    "key binary, key_text string, kind string, value_text string, value binary, "
    "value_bytes bigint, headers map<string,string>"
)
FIGURES: Final = (
    "topic string, publisher string, window_start timestamp, window_end timestamp, "
    "publications bigint, rejected bigint, value_bytes bigint, "
    "publications_per_s double, bytes_per_s double, "
    "deliveries bigint, nodes bigint, "
    "latency_p50_ms double, latency_p95_ms double, latency_p99_ms double, latency_max_ms double, "
    "hops_mean double, hops_max int, spread_share double, repair_share double"
)
# The date of a publication's time, or of an arrival; for gold, of the start of the window.
SCHEMAS: Final = {
    Name.BRONZE: f"{PUBLICATION}, batch bigint, date date",
    Name.DELIVERIES: f"{TRACE}, batch bigint, date date",
    Name.SILVER: f"{DECODED}, batch bigint, date date",
    Name.REJECTED: f"{PUBLICATION}, reason string, batch bigint, date date",
    Name.GOLD: f"{FIGURES}, date date",
}


def day_of(time: str) -> Column:
    """Return the date of a time; null beyond TIME_END_US."""
    return F.when(F.unix_micros(time) < TIME_END_US, F.to_date(time))


def make_tables(lake: Path) -> None:
    """Create the directories of the tables, so that tables without rows can be read."""
    for name in Name:
        (lake / name).mkdir(parents=True, exist_ok=True)


def table(spark: SparkSession, lake: Path, name: Name) -> DataFrame:
    """Return a whole table."""
    return spark.read.schema(SCHEMAS[name]).parquet(str(lake / name))


@contextmanager
def kept(rows: DataFrame) -> Iterator[DataFrame]:
    """Persist rows during the block, for several uses."""
    rows.persist()
    try:
        yield rows
    finally:
        rows.unpersist()


def batch_folder(lake: Path, name: Name, batch: int) -> Path:
    """Return the directory of a micro-batch in a table."""
    return lake / name / f"{BATCH}={batch}"


ROWS_PER_FILE: Final = 1_000_000  # Guess: of some hundred bytes each; Parquet favours large files.
NO_DATE: Final = "__HIVE_DEFAULT_PARTITION__"  # Spark's name for none
# No reader needs the file _SUCCESS: a part is complete once it is ready.
_OPTIONS: Final = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


class Writer:
    """Writer of parts of tables, one at a time."""

    def __init__(self, lake: Path) -> None:
        self._lake = lake
        self._staged = lake / "work" / "staged"
        self._ready = lake / "work" / "ready"
        self._old = lake / "work" / "old"

    def recover(self) -> None:
        """Place the parts that are ready; delete those that are only staged."""
        with translate_os_errors(self._lake):
            shutil.rmtree(self._staged, ignore_errors=True)
            self._place()

    def forget_after(self, batch: int) -> None:
        """Remove the parts of later micro-batches, which Spark has not committed."""
        with translate_os_errors(self._lake):
            for name in Name:
                for folder in (self._lake / name).glob(f"{BATCH}=*"):
                    if int(folder.name.partition("=")[2]) > batch:
                        shutil.rmtree(folder)

    def write_batch(self, name: Name, batch: int, rows: DataFrame, count: int | None) -> int:
        """Write the rows of a micro-batch to a table; return their number."""
        folder = batch_folder(self._lake, name, batch)
        if count != 0:
            self._stage(rows.drop(BATCH), count)
        with translate_os_errors(self._lake):
            if not _files(self._staged):
                _remove(folder)  # an earlier attempt of this micro-batch may have had rows
                return 0
            self._make_ready([(self._staged, folder)])
            self._place()
            return rows_in(folder)

    def write_days(self, name: Name, rows: DataFrame) -> None:
        """Replace the days of a table that occur in the rows."""
        self._stage(rows, None)
        with translate_os_errors(self._lake):
            days = sorted(self._staged.glob(f"{DATE}=*"))
            self._make_ready((day, self._lake / name / day.name) for day in days)
            self._place()

    def _stage(self, rows: DataFrame, count: int | None) -> None:
        files = 1 if count is None else -(-count // ROWS_PER_FILE)
        writing = rows.coalesce(max(files, 1)).write.mode("overwrite").options(**_OPTIONS)
        writing.partitionBy(DATE).parquet(str(self._staged))

    def _make_ready(self, parts: Iterable[tuple[Path, Path]]) -> None:
        for part, place in parts:
            ready = self._ready / place.relative_to(self._lake)
            ready.parent.mkdir(parents=True, exist_ok=True)
            part.rename(ready)

    def _place(self) -> None:
        """Replace parts of tables by those that are ready."""
        for ready in sorted(self._ready.glob("*/*")):
            place = self._lake / ready.relative_to(self._ready)
            place.parent.mkdir(exist_ok=True)
            _remove(self._old)
            if place.exists():
                place.rename(self._old)
            ready.rename(place)
        _remove(self._old)


def rows_in(folder: Path) -> int:
    """Return the number of rows in the files below a folder."""
    return sum(pq.read_metadata(path).num_rows for path in _files(folder))


def rows_by_part(folder: Path) -> dict[str, int]:
    """Return the number of rows of each part of a table."""
    return {part.name: rows_in(part) for part in folder.glob("*=*")}


def dates_in(folder: Path) -> list[date | None]:
    """Return the dates that partition a part of a table."""
    names = (path.name.partition("=")[2] for path in folder.glob(f"{DATE}=*"))
    return [None if name == NO_DATE else date.fromisoformat(name) for name in sorted(names)]


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


def _remove(folder: Path) -> None:
    if os.path.lexists(folder):
        shutil.rmtree(folder)
