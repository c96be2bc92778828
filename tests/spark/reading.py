"""Readers driven as Spark drives them, without a JVM."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from skipring.spark.arrow import ALL_ROWS, RowForm
from skipring.spark.batch import FilteredBatchReader
from skipring.spark.options import ReadOptions
from skipring.spark.stream import StreamReader
from tests.spark.rings import TOPIC, Ring

Json = dict[str, Any]

_opened: list[StreamReader] = []


def batch_reader(ring: Ring, form: RowForm = ALL_ROWS, **options: str) -> FilteredBatchReader:
    given = {"supervisor": ring.supervisor, "subscribe": TOPIC, **options}
    return FilteredBatchReader(ReadOptions.parse(given, is_stream=False), form)


def batch_rows(ring: Ring, form: RowForm = ALL_ROWS, **options: str) -> list[dict[str, Any]]:
    """Return the rows of a batch read."""
    reader = batch_reader(ring, form, **options)
    return rows_of(reader, reader.partitions())


def stream_reader(ring: Ring, **options: str) -> StreamReader:
    given = {"supervisor": ring.supervisor, "subscribe": TOPIC, "startingOffsets": "earliest"}
    if "startingTimestamp" in options:
        del given["startingOffsets"]
    reader = StreamReader(ReadOptions.parse({**given, **options}, is_stream=True))
    _opened.append(reader)
    return reader


def stop_readers() -> None:
    """Stop all stream readers, as Spark does when a query ends."""
    while _opened:
        _opened.pop().stop()


def rows_of(
    reader: DataSourceReader | DataSourceStreamReader, partitions: Iterable[InputPartition]
) -> list[dict[str, Any]]:
    """Return the rows that tasks read; partitions travel to them as bytes."""
    return [
        row
        for partition in partitions
        for batch in reader.read(pickle.loads(pickle.dumps(partition)))
        for row in batch.to_pylist()
    ]


def ids_of(rows: Iterable[dict[str, Any]]) -> list[bytes]:
    return [row["id"] for row in rows]


class Query:
    """Streaming query: the rows it has read, and its checkpoint."""

    def __init__(self, ring: Ring, **options: str) -> None:
        self._ring, self._options = ring, options
        self.reader = stream_reader(ring, **options)
        self.offset: Json = self.reader.initialOffset()
        self.rows: list[dict[str, Any]] = []

    def batch(self, limit: ReadLimit | None = None) -> int:
        """Run one micro-batch; return the number of its rows."""
        end = self.reader.latestOffset(self.offset, limit or ReadAllAvailable())
        found = self.run(self.offset, end) if end != self.offset else []
        self.rows += found
        self.offset = end
        return len(found)

    def drain(self, limit: ReadLimit) -> None:
        """Run micro-batches until one is empty."""
        while self.batch(limit):
            pass

    def run(self, start: Json, end: Json) -> list[dict[str, Any]]:
        """Return the rows between two offsets."""
        return rows_of(self.reader, self.reader.partitions(start, end))

    def restart(self, **options: str) -> None:
        """End, and continue from the checkpoint, possibly with other options."""
        self.reader.stop()
        self._options |= options
        self.reader = stream_reader(self._ring, **self._options)

    @property
    def ids(self) -> list[bytes]:
        return ids_of(self.rows)
