"""Lake: tables of Parquet files by date, and commits that stay atomic if the process is killed.

A micro-batch writes its files beside the tables. One small file then makes the commit ready, and
each file replaces its predecessor in one atomic step. The next start finishes a commit that is
ready, and drops an incomplete one, which Spark runs again.

Rows are appended to the newest file of a date until it has OPEN_BYTES_MAX: the file with the old
and the new rows replaces the file with the old rows. So a reader of Parquet sees each row once at
any time, and short triggers do not create small files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime
from io import BytesIO
from itertools import chain, count
from typing import Final

import pyarrow.parquet as pq
from msgspec import Struct, json
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from skipring.spark.pipeline.lake_files import LakeFiles
from skipring.spark.pipeline.times import NO_DATE, Span, Times, micros

DATE: Final = "date"
TIMELESS: Final = f"{DATE}={NO_DATE}"
# Table without rows: readers need a file for the columns. The date is before all others, and
# readers that use the columns of the first file see new columns at once.
EMPTY: Final = f"{TIMELESS}/empty.parquet"
ROWS_PER_FILE: Final = 1_000_000  # Guess: of some hundred bytes each; Parquet favours large files.
OPEN_BYTES_MAX: Final = 1 << 20  # Guess: copied with each micro-batch, some hundredths of a second.
FILE_BYTES: Final = 128 << 20  # Guess: of compacted files; the usual size of a block.
WORK: Final = "work"
READY: Final = f"{WORK}/ready.json"


class LakeTable(Struct, frozen=True, kw_only=True):
    """Table of a lake: its columns without the date, and the column of its time."""

    name: str
    columns: str
    time: str

    @property
    def names(self) -> list[str]:
        """Return the names of the columns."""
        return [column.split("`")[1] for column in self.columns.split(", ")]


class LakePart(Struct, frozen=True, kw_only=True):
    """File of a table, with a range that contains its times; None: all without a time."""

    path: str
    size: int
    span: Span | None


class AddedRows(Struct, frozen=True, kw_only=True):
    """New rows of one date."""

    rows: int
    span: Span | None


class CommitPlan(Struct, frozen=True):
    """Steps of a commit: files to put in place, and files to remove before."""

    moves: tuple[tuple[str, str], ...]
    removals: tuple[str, ...] = ()


class Lake:
    """Tables of a lake, and the times of their files."""

    def __init__(self, spark: SparkSession, files: LakeFiles) -> None:
        self.spark = spark
        self.files = files
        self._parts: dict[tuple[str, str], list[LakePart]] = {}  # by table and date
        self._dates: dict[str, set[str]] = {}  # by table

    def recover(self) -> None:
        """Finish a commit that is ready; drop an incomplete one."""
        ready = self.files.read(READY)
        if ready is not None:
            self.place(json.decode(ready, type=CommitPlan))
        self.files.remove(WORK)
        self._parts.clear()
        self._dates.clear()

    def make_table(self, table: LakeTable) -> None:
        """Create a table, or update its columns."""
        schema = to_arrow_schema(
            self.spark.createDataFrame([], table.columns).schema, timezone="UTC"
        )
        content = BytesIO()
        pq.write_table(schema.empty_table(), content)
        self.files.make_directory(f"{table.name}/{TIMELESS}")
        self.files.write(f"{table.name}/{EMPTY}", content.getvalue())

    def drop(self, table: str) -> None:
        """Remove a table."""
        self.files.remove(table)
        self._dates.pop(table, None)
        self._parts = {key: it for key, it in self._parts.items() if key[0] != table}

    @contextmanager
    def commit(self) -> Iterator[LakeCommit]:
        """Yield a commit; the end of the block applies it, unless the block raises."""
        commit = LakeCommit(self)
        self.files.remove(WORK)
        yield commit
        plan = commit.plan
        if plan.moves or plan.removals:
            self.files.write(READY, json.encode(plan))
            self.place(plan)
        self.files.remove(WORK)
        for table, day, part in commit.parts:
            self._dates.setdefault(table, set()).add(day)
            known = self._parts.setdefault((table, day), [])
            known[:] = sorted(
                [part, *(it for it in known if it.path != part.path)], key=lambda it: it.path
            )

    def place(self, plan: CommitPlan) -> None:
        """Run the steps of a commit, also a second time after a kill."""
        for path in plan.removals:
            self.files.remove(path)
        for directory in sorted({target.rpartition("/")[0] for _, target in plan.moves}):
            self.files.make_directory(directory)
        for source, target in plan.moves:
            if self.files.exists(source):
                self.files.replace(source, target)
        self.files.remove(READY)

    # -- reads ---------------------------------------------------------------------------------

    def rows(self, table: LakeTable, times: Times) -> DataFrame:
        """Return the rows of a table at these times; only files with such times are read."""
        dates = [day for day in sorted(self.dates(table.name)) if times.has_date(date_in(day))]
        self._load(table, dates)
        parts = [
            part
            for day in dates
            for part in self._parts[table.name, day]
            if times.overlaps(part.span)
        ]
        return self.rows_of(table, parts).where(times.has(F.col(table.time)))

    def rows_of(self, table: LakeTable, parts: Iterable[LakePart]) -> DataFrame:
        """Return the rows of files."""
        return self.read(table.name, table.columns, [part.path for part in parts])

    def read(self, name: str, columns: str, paths: Iterable[str]) -> DataFrame:
        """Return the rows of files of a table with these columns, and their dates."""
        uris = [self.files.uri(path) for path in paths]
        schema = f"{columns}, {DATE} date"
        if not uris:
            return self.spark.createDataFrame([], schema)
        reader = self.spark.read.schema(schema).option("basePath", self.files.uri(name))
        return reader.parquet(*uris)

    def dates(self, table: str) -> set[str]:
        """Return the directories of the dates of a table."""
        if table not in self._dates:
            self._dates[table] = {entry.name for entry in self.files.list(table)}
        return self._dates[table]

    def open_part(self, table: LakeTable, day: str) -> LakePart | None:
        """Return the file of a date to which rows are appended; None if it is full."""
        self._load(table, [day])
        parts = self._parts[table.name, day]
        return parts[-1] if parts and parts[-1].size < OPEN_BYTES_MAX else None

    def parts(self, table: str, day: str) -> dict[str, int]:
        """Return the files of a date and their sizes."""
        found = self.files.list(f"{table}/{day}")
        return {f"{table}/{day}/{it.name}": it.size for it in found if it.name.startswith("part-")}

    def _load(self, table: LakeTable, dates: Iterable[str]) -> None:
        """Read the times of the files of dates that are new to this process, in one query."""
        missing = [day for day in dates if (table.name, day) not in self._parts]
        sizes = {day: self.parts(table.name, day) for day in missing}
        spans = self._spans(table, [path for found in sizes.values() for path in found])
        for day, found in sizes.items():
            self._parts[table.name, day] = [
                LakePart(path=path, size=size, span=spans[path])
                for path, size in sorted(found.items())
            ]

    def _spans(self, table: LakeTable, paths: list[str]) -> dict[str, Span | None]:
        if not paths:
            return {}
        time = micros(F.col(table.time))
        rows = self.read(table.name, table.columns, paths).select(
            F.col("_metadata.file_path").alias("path"), time.alias("time")
        )
        found = rows.groupBy("path").agg(F.min("time"), F.max("time")).collect()
        names = {tuple(path.rsplit("/", 2)[1:]): path for path in paths}
        spans: dict[str, Span | None] = dict.fromkeys(paths)
        for row in found:
            _, day, name = row[0].replace("%3D", "=").rsplit("/", 2)
            spans[names[day, name]] = None if row[1] is None else (row[1], row[2])
        return spans

    # -- maintenance ---------------------------------------------------------------------------

    def expire(self, tables: Iterable[str], before: date) -> list[str]:
        """Remove the dates of tables before a date; return the directories.

        Of rows without a time, remove the files that were last changed before.
        """
        old = []
        begin_s = datetime(before.year, before.month, before.day, tzinfo=UTC).timestamp()
        for table in tables:
            for part in self.files.list(f"{table}/{TIMELESS}"):
                if part.name.startswith("part-") and part.modified_s < begin_s:
                    self.files.remove(f"{table}/{TIMELESS}/{part.name}")
                    self._parts.pop((table, TIMELESS), None)
            for day in sorted(self.dates(table)):
                if (at := date_in(day)) is not None and at < before:
                    self.files.remove(f"{table}/{day}")
                    self.dates(table).discard(day)
                    self._parts.pop((table, day), None)
                    old.append(f"{table}/{day}")
        return old

    def compact(self, table: LakeTable, days: Iterable[str]) -> int:
        """Merge the files of dates into files of FILE_BYTES; return the number of merged files.

        A commit has one new file, so the rows of a new and an old file are never both visible.
        """
        merged = 0
        for day in days:
            for small in groups_of_small(self.parts(table.name, day)):
                merged += len(small)
                rows = self.read(table.name, table.columns, small)
                with self.commit() as commit:
                    commit.write_merged(rows, small)
                self._parts.pop((table.name, day), None)
        return merged


class LakeCommit:
    """Files of a pending commit."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._staged = (f"{WORK}/{number}" for number in count())
        self._moves: list[tuple[str, str]] = []
        self._removals: list[str] = []
        self.parts: list[tuple[str, str, LakePart]] = []

    @property
    def plan(self) -> CommitPlan:
        """Return the steps of the commit."""
        return CommitPlan(tuple(self._moves), tuple(self._removals))

    def append(self, table: LakeTable, rows: DataFrame, added: Mapping[str, AddedRows]) -> None:
        """Add rows to a table; ``added`` describes them by the directory of their date."""
        total = sum(each.rows for each in added.values())
        if not total:
            return
        file_count = -(-total // ROWS_PER_FILE)
        opened: dict[str, LakePart] = {}
        if file_count == 1:
            found = {day: self._lake.open_part(table, day) for day in added}
            opened = {day: part for day, part in found.items() if part is not None}
        if opened:
            rows = self._lake.rows_of(table, opened.values()).unionByName(rows)
        staged = self._stage(rows.coalesce(file_count), DATE)
        for day, given in added.items():
            span, names = given.span, self._names(table.name, day)
            if day in opened:
                span = union(span, opened[day].span)
                names = chain([opened[day].path], names)
            for entry in self._lake.files.list(f"{staged}/{day}"):
                path = next(names)
                self._moves.append((f"{staged}/{day}/{entry.name}", path))
                self.parts.append(
                    (table.name, day, LakePart(path=path, size=entry.size, span=span))
                )

    def write_buckets(self, table: str, rows: DataFrame, bucket: str, old: Iterable[str]) -> None:
        """Replace the files of a table by one file for each date and bucket of the rows."""
        staged = self._stage(rows.coalesce(1), DATE, bucket)
        files = self._lake.files
        new = set()
        for day in files.list(staged):
            for part in files.list(f"{staged}/{day.name}"):
                (entry,) = files.list(f"{staged}/{day.name}/{part.name}")
                path = f"{table}/{day.name}/{int(part.name.partition('=')[2]):02}.parquet"
                self._moves.append((f"{staged}/{day.name}/{part.name}/{entry.name}", path))
                new.add(path)
            self._lake.dates(table).add(day.name)
        self._removals += sorted(set(old) - new)

    def write_merged(self, rows: DataFrame, old: list[str]) -> None:
        """Replace files of a date by one file with the same rows; the last step shows it."""
        staged = self._stage(rows.drop(DATE).coalesce(1))
        (entry,) = self._lake.files.list(staged)
        first, *others = old
        self._moves.append((f"{staged}/{entry.name}", first))
        self._removals += others

    def _stage(self, rows: DataFrame, *partitions: str) -> str:
        place = next(self._staged)
        # No reader needs the file _SUCCESS: a part is complete once it is in place.
        writing = rows.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        writing.partitionBy(*partitions).parquet(self._lake.files.uri(place))
        return place

    def _names(self, table: str, day: str) -> Iterator[str]:
        return names_after(table, day, max(self._lake.parts(table, day), default=""))


def names_after(table: str, day: str, last: str) -> Iterator[str]:
    """Yield the names of new files after the last one."""
    number = int(last[-len("000000.parquet") : -len(".parquet")]) + 1 if last else 0
    return (f"{table}/{day}/part-{each:06}.parquet" for each in count(number))


def groups_of_small(sizes: Mapping[str, int]) -> list[list[str]]:
    """Return groups of at least two small files that fit together in FILE_BYTES, in order."""
    groups: list[list[str]] = []
    total = FILE_BYTES
    for path, size in sorted(sizes.items()):
        if size >= FILE_BYTES // 2:
            continue
        if total + size > FILE_BYTES:
            groups.append([])
            total = 0
        groups[-1].append(path)
        total += size
    return [group for group in groups if len(group) > 1]


def date_in(directory: str) -> date | None:
    """Return the date of a directory; None for rows without a time."""
    return None if directory == TIMELESS else date.fromisoformat(directory.partition("=")[2])


def union(one: Span | None, other: Span | None) -> Span | None:
    """Return a range that contains two; rows without a time are in files of their own."""
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])
