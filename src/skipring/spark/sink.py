"""Writes: each row becomes one publication, even if its task runs several times.

The id of a publication depends on its fields, and all fields depend on the row and its place. The
sequence is a hash of the write (the query, or option ``writeId``), the batch, the partition and the
index of the row in it. A task that runs again creates the same publications, and members ignore ids
that they have. Rows must therefore come in the same order each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from skipring.core.limits import check_publication
from skipring.core.peers import TopicId
from skipring.core.publications import SEQ_BELIEVED_MAX, Publication
from skipring.errors import InputError, MessageError
from skipring.spark.options import WriteOptions
from skipring.spark.ring_client import RingClient
from skipring.wire.limits import check_topic

QUERY: Final = "sql.streaming.queryId"  # names of local properties that Spark sets for tasks
BATCH: Final = "streaming.sql.batchId"
AT_ONCE: Final = 512  # Guess: this many share one write to a member's disk.
BYTES_AT_ONCE: Final = 1 << 20  # Guess: a quarter of what connections queue for a peer.

# As in Kafka's sink, only the value is required.
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "timestamp": ("timestamp",),
    "headers": ("map<string,binary>", "map<string,string>"),
}


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """Number of publications that a task has published."""

    publications: int


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raise InputError if the rows cannot be published."""
    columns = {field.name: field.dataType for field in schema.fields}
    if "value" not in columns:
        raise InputError(
            f"the rows have no column value ({', '.join(columns)}); make one of type binary or "
            "string, as in to_json(struct(*))"
        )
    if "topic" not in columns and options.topic is None:
        raise InputError('no topic: set the option "topic", or add a column topic')
    for name, kinds in COLUMNS.items():
        if name in columns and columns[name].simpleString() not in kinds:
            known = " or ".join(kinds)
            raise InputError(f"column {name} is {columns[name].simpleString()}, not {known}")


def publish_rows(
    options: WriteOptions, write_id: str, batch: str, batches: Iterator[pa.RecordBatch]
) -> Written:
    """Publish the rows of a task; return once all of them are durable at a member."""
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    numbers = _numbers(f"{write_id}/{batch}/{partition}")
    count = 0
    with RingClient(options.access) as client:
        for given in batches:
            rows = _publications(given, options, numbers)
            for topic, publications in _portions(rows):
                client.publish(topic, publications)
                count += len(publications)
    return Written(count)


def _numbers(place: str) -> Iterator[int]:
    """Yield the sequences of a task's rows, beyond the range that publishers use."""
    begun = blake2b(place.encode(), digest_size=8, person=b"skipring spark")
    row = 0
    while True:
        state = begun.copy()
        state.update(row.to_bytes(8, "big"))
        yield SEQ_BELIEVED_MAX | int.from_bytes(state.digest(), "big") % SEQ_BELIEVED_MAX
        row += 1


def _publications(
    given: pa.RecordBatch, options: WriteOptions, numbers: Iterator[int]
) -> Iterator[tuple[TopicId, Publication]]:
    columns = {name: _values(given, name) for name in COLUMNS}
    rows = zip(*columns.values(), strict=True)
    for value, key, topic, time, headers in rows:
        if value is None:
            raise InputError("a row without a value; filter them out, as in value IS NOT NULL")
        if time is not None and time < 0:
            raise InputError("a row with a timestamp before 1970, which no publication can have")
        publication = Publication(
            publisher=options.publisher,
            seq=next(numbers),
            payload=_bytes(value),
            key=None if key is None else _bytes(key),
            time=time or 0,
            headers=_headers(headers),
        )
        chosen = options.topic or topic
        try:
            check_topic(chosen or "")
            check_publication(publication)
        except MessageError as error:
            raise InputError(f"a row cannot be published: {error}") from None
        yield chosen, publication


def _values(given: pa.RecordBatch, name: str) -> list[Any]:
    if name not in given.schema.names:
        return [None] * given.num_rows
    column = given.column(name)
    if name == "timestamp":
        column = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    return list(column.to_pylist())


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _headers(given: list[tuple[str, str | bytes | None]] | None) -> dict[str, str]:
    try:
        return {name: _bytes(text or b"").decode() for name, text in given or ()}
    except UnicodeDecodeError:
        raise InputError("a header is not UTF-8 text") from None


def _portions(
    rows: Iterator[tuple[TopicId, Publication]],
) -> Iterator[tuple[TopicId, list[Publication]]]:
    """Yield rows in order, in portions of one topic that a member commits at once."""
    topic: TopicId = ""
    portion: list[Publication] = []
    size = 0
    for chosen, publication in rows:
        if portion and (chosen != topic or len(portion) >= AT_ONCE or size >= BYTES_AT_ONCE):
            yield topic, portion
            portion, size = [], 0
        topic = chosen
        portion.append(publication)
        size += publication.size_bytes
    if portion:
        yield topic, portion


class BatchWriter(DataSourceArrowWriter):
    """Writer of a DataFrame."""

    def __init__(self, options: WriteOptions, write_id: str) -> None:
        self._options = options
        self._write_id = write_id  # created by the planner, the same for all tasks

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows of a task."""
        return publish_rows(self._options, self._write_id, "", iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writer of a stream, batch by batch."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows of a task."""
        context = TaskContext.get()
        assert context is not None, "a stream is written by tasks"
        query = self._options.write_id or context.getLocalProperty(QUERY) or ""
        batch = context.getLocalProperty(BATCH) or ""
        assert query, "a task of a stream knows its query"
        assert batch, "a task of a stream knows its batch"
        return publish_rows(self._options, query, batch, iterator)
