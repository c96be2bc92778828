"""Writing to a lake so that a kill at any moment leaves every table whole.

A part of a table (what a micro-batch gives, a day of gold) is written beside the tables, then made
ready in one step, a rename, and then takes the place of the part that was there. What is ready is
finished at the next start; what is not is forgotten, and the micro-batch is done again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from skipring.spark.pipeline.tables import BATCH, DATE, Name, batch_folder
from skipring.storage.files import failures_told

ROWS_PER_FILE: Final = 1_000_000  # Our guess: of some hundred bytes each, as Parquet likes them.
NO_DATE: Final = "__HIVE_DEFAULT_PARTITION__"  # Spark's name for none
# Tasks say for themselves whether they succeeded; nobody looks for a file that says so.
_OPTIONS: Final = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


class Writer:
    """Puts parts of tables in their places; one at a time."""

    def __init__(self, lake: Path) -> None:
        self._lake = lake
        self._staged = lake / "work" / "staged"
        self._ready = lake / "work" / "ready"
        self._old = lake / "work" / "old"

    def recover(self) -> None:
        """Finish what was ready, and forget what was not."""
        with failures_told(self._lake):
            shutil.rmtree(self._staged, ignore_errors=True)
            self._place()

    def forget_after(self, batch: int) -> None:
        """Remove what later micro-batches have written, which Spark does not know of."""
        with failures_told(self._lake):
            for name in Name:
                for folder in (self._lake / name).glob(f"{BATCH}=*"):
                    if int(folder.name.partition("=")[2]) > batch:
                        shutil.rmtree(folder)

    def write_batch(self, name: Name, batch: int, rows: DataFrame, count: int | None) -> int:
        """Write what a micro-batch gives for a table; how many rows these are."""
        folder = batch_folder(self._lake, name, batch)
        if count != 0:
            self._stage(rows.drop(BATCH), count)
        with failures_told(self._lake):
            if not _files(self._staged):
                _remove(folder)  # the same micro-batch may have had another outcome before
                return 0
            self._make_ready([(self._staged, folder)])
            self._place()
            return rows_in(folder)

    def write_days(self, name: Name, rows: DataFrame) -> None:
        """Replace the days of a table that the rows are of."""
        self._stage(rows, None)
        with failures_told(self._lake):
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
        """Put what is ready in the place of what was there."""
        for ready in sorted(self._ready.glob("*/*")):
            place = self._lake / ready.relative_to(self._ready)
            place.parent.mkdir(exist_ok=True)
            _remove(self._old)
            if place.exists():
                place.rename(self._old)
            ready.rename(place)
        _remove(self._old)


def rows_in(folder: Path) -> int:
    """How many rows there are in the files below a folder."""
    return sum(pq.read_metadata(path).num_rows for path in _files(folder))


def rows_by_part(folder: Path) -> dict[str, int]:
    """The same for each part of a table."""
    return {part.name: rows_in(part) for part in folder.glob("*=*")}


def dates_in(folder: Path) -> list[date | None]:
    """The dates that a part of a table is divided by."""
    names = (path.name.partition("=")[2] for path in folder.glob(f"{DATE}=*"))
    return [None if name == NO_DATE else date.fromisoformat(name) for name in sorted(names)]


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


def _remove(folder: Path) -> None:
    if os.path.lexists(folder):
        shutil.rmtree(folder)
