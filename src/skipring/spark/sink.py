"""Writes: each row becomes a publication, once, however often its task is tried.

A publication's id follows from its fields, and all of them follow from the row and its place: the
number is a hash of what is written (the query, or option ``writeId``), the batch, the partition and
the place of the row in it. A task that is tried again makes the same publications, and members that
have them take nothing twice. So the rows must come in the same order again.
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

from skipring.core.peers import TopicId
from skipring.core.publications import SEQ_BELIEVED_MAX, Publication
from skipring.errors import InputError, MessageError
from skipring.spark.options import WriteOptions
from skipring.spark.ring_client import RingClient
from skipring.wire.limits import check_publication, check_topic

QUERY: Final = "sql.streaming.queryId"  # Spark's names of what a task knows of its query
BATCH: Final = "streaming.sql.batchId"
AT_ONCE: Final = 512  # Our guess: so many share one write to a member's disk.
BYTES_AT_ONCE: Final = 1 << 20  # Our guess: links hold four times as much for a peer.

# As Kafka's sink has it: only the value is needed.
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "timestamp": ("timestamp",),
    "headers": ("map<string,binary>", "map<string,string>"),
}


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has published."""

    publications: int


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """InputError if the rows cannot be published as they are."""
    columns = {field.name: field.dataType for field in schema.fields}
    if "value" not in columns:
        raise InputError(
            f"the rows have no column value ({', '.join(columns)}); make one of type binary or "
            "string, as in to_json(struct(*))"
        )
    if "topic" not in columns and options.topic is None:
        raise InputError('say where to publish: option "topic", or a column topic')
    for name, kinds in COLUMNS.items():
        if name in columns and columns[name].simpleString() not in kinds:
            known = " or ".join(kinds)
            raise InputError(f"column {name} is {columns[name].simpleString()}, not {known}")


def publish_rows(
    options: WriteOptions, write_id: str, batch: str, batches: Iterator[pa.RecordBatch]
) -> Written:
    """Publish what a task is given; returns once all of it is durable at a member."""
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    numbers = _numbers(f"{write_id}/{batch}/{partition}")
    count = 0
    with RingClient(options.access) as reach:
        for given in batches:
            rows = _publications(given, options, numbers)
            for topic, publications in _portions(rows):
                reach.publish(topic, publications)
                count += len(publications)
    return Written(count)


def _numbers(place: str) -> Iterator[int]:
    """Numbers of the rows of a task, beyond all that publishers count with."""
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
        raise InputError("a header that is no text in UTF-8; headers are texts") from None


def _portions(
    rows: Iterator[tuple[TopicId, Publication]],
) -> Iterator[tuple[TopicId, list[Publication]]]:
    """Rows in the same order, in portions of one topic each that a member takes at once."""
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
    """Publishes the rows of a DataFrame."""

    def __init__(self, options: WriteOptions, write_id: str) -> None:
        self._options = options
        self._write_id = write_id  # made where the job is planned, the same for all its tasks

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows of a task."""
        return publish_rows(self._options, self._write_id, "", iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes the rows of a stream, batch by batch."""

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
