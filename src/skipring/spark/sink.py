"""Writes: each row becomes one publication, even if its task runs several times.

A task publishes its rows in record batches. The id of a batch depends on its fields, and all fields
depend on the rows and their order. The first number is a hash of the write (the query, or option
``writeId``), the micro-batch, the partition and the number of the batch in the task. A task that
runs again makes the same batches, and members ignore ids that they have. A task that gets its rows
in another order publishes the rows of the changed batches again.

In a compacted topic each row is a batch. In topics that need times, rows without one get the time
at which the driver planned the write, one microsecond later for each row of the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa
from msgspec.structs import replace
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from skipring.core.batches import (
    BATCH_BYTES_MAX,
    RECORDS_MAX,
    BatchRecord,
    RecordBatch,
    check_record,
)
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import SEQ_BELIEVED_MAX
from skipring.core.retention.charter import UNLIMITED, Policy
from skipring.errors import InputError, MessageError
from skipring.observability.clock import publication_time_us
from skipring.spark.options import WriteOptions
from skipring.spark.ring_client import RingClient
from skipring.wire.limits import check_topic

QUERY: Final = "sql.streaming.queryId"  # names of local properties that Spark sets for tasks
BATCH: Final = "streaming.sql.batchId"
AT_ONCE: Final = 64  # Guess: this many batches share one write to a member's disk.
BYTES_AT_ONCE: Final = 1 << 20  # Guess: a quarter of what connections queue for a peer.
OPEN_BYTES_MAX: Final = 4 << 20  # Guess: records in the unfinished batches of all topics.
# Limits of the encoded size of a record, besides its bytes and texts, and of a header.
_RECORD_OVERHEAD: Final = 24
_HEADER_OVERHEAD: Final = 6

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
    options: WriteOptions,
    write_id: str,
    batch: str,
    batches: Iterator[pa.RecordBatch],
    planned_us: int = 0,
) -> Written:
    """Publish the rows of a task; return once all of them are durable at a member."""
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    place = f"{write_id}/{batch}/{partition}"
    rows = (row for given in batches for row in _rows(given, options))
    count = 0
    with RingClient(options.access) as client:
        batcher = RowBatcher(options.publisher, place, cache(client.policy), planned_us)
        for topic, portion in _portions(batcher.batches(rows)):
            client.publish(topic, portion)
            count += sum(each.count for each in portion)
    return Written(count)


class _OpenBatch:
    """Records of one topic that wait for more."""

    def __init__(self, records_max: int) -> None:
        self.records: list[BatchRecord] = []
        self.size = 0
        self._records_max = records_max

    def has_room(self, size: int) -> bool:
        """Return True if a record of this size fits; every record fits into an empty batch."""
        is_short = len(self.records) < self._records_max and self.size + size <= BATCH_BYTES_MAX
        return is_short or not self.records

    def add(self, record: BatchRecord, size: int) -> None:
        """Add a record."""
        self.records.append(record)
        self.size += size


class RowBatcher:
    """Division of a task's rows into batches, by nothing but the rows and their order.

    ``place`` identifies the task among all tasks of all writes. Rows without a time get one from
    ``planned_us`` on if the policy of their topic needs it.
    """

    def __init__(
        self,
        publisher: NodeId,
        place: str,
        policy_of: Callable[[TopicId], Policy] = lambda _: UNLIMITED,
        planned_us: int = 0,
    ) -> None:
        self._publisher = publisher
        self._policy_of = policy_of
        self._planned_us = planned_us
        self._rows = 0
        self._hash = blake2b(place.encode(), digest_size=8, person=b"skipring spark")
        self._made = 0
        self._open: dict[TopicId, _OpenBatch] = {}
        self._open_bytes = 0

    def batches(
        self, rows: Iterable[tuple[TopicId, BatchRecord]]
    ) -> Iterator[tuple[TopicId, RecordBatch]]:
        """Yield the batches of a task; records of one topic stay in order."""
        for topic, given in rows:
            policy, record = self._policy_of(topic), given
            self._rows += 1
            if policy.needs_times and not record.time:
                record = replace(record, time=self._planned_us + self._rows)
            size = _size_bytes(record)
            batch = self._open.get(topic)
            if batch is not None and not batch.has_room(size):
                yield self._finished(topic)
                batch = None
            if batch is None:
                batch = self._open[topic] = _OpenBatch(1 if policy.compact else RECORDS_MAX)
            batch.add(record, size)
            self._open_bytes += size
            if self._open_bytes > OPEN_BYTES_MAX:
                yield from self._all_finished()
        yield from self._all_finished()

    def _all_finished(self) -> list[tuple[TopicId, RecordBatch]]:
        return [self._finished(topic) for topic in list(self._open)]

    def _finished(self, topic: TopicId) -> tuple[TopicId, RecordBatch]:
        done = self._open.pop(topic)
        self._open_bytes -= done.size
        batch = RecordBatch.of(
            done.records,
            publisher=self._publisher,
            first=self._next_first(),
            topic=topic,
            unordered=True,
        )
        return topic, batch

    def _next_first(self) -> int:
        """Return the first number of the next batch, beyond the range that publishers use."""
        state = self._hash.copy()
        state.update(self._made.to_bytes(8, "big"))
        self._made += 1
        room = SEQ_BELIEVED_MAX - RECORDS_MAX  # all numbers of the batch are below 2^63
        return SEQ_BELIEVED_MAX + int.from_bytes(state.digest(), "big") % room


def _size_bytes(record: BatchRecord) -> int:
    """Return a limit of the encoded size of a record."""
    size = _RECORD_OVERHEAD + len(record.payload) + len(record.key or b"")
    for name, text in record.headers.items():
        size += _HEADER_OVERHEAD + len(name.encode()) + len(text.encode())
    return size


def _rows(given: pa.RecordBatch, options: WriteOptions) -> Iterator[tuple[TopicId, BatchRecord]]:
    """Yield topic and record of each row; raise InputError if a row cannot be published."""
    columns = {name: _values(given, name) for name in COLUMNS}
    rows = zip(*columns.values(), strict=True)
    for value, key, topic, time, headers in rows:
        if value is None:
            raise InputError("a row without a value; filter them out, as in value IS NOT NULL")
        if time is not None and time < 0:
            raise InputError("a row with a timestamp before 1970, which no publication can have")
        record = BatchRecord(
            payload=_bytes(value),
            time=time or 0,
            key=None if key is None else _bytes(key),
            headers=_headers(headers),
        )
        chosen = options.topic or topic
        try:
            check_topic(chosen or "")
            check_record(record)
        except MessageError as error:
            raise InputError(f"a row cannot be published: {error}") from None
        yield chosen, record


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
    batches: Iterable[tuple[TopicId, RecordBatch]],
) -> Iterator[tuple[TopicId, list[RecordBatch]]]:
    """Yield batches in order, in portions of one topic that a member commits at once."""
    topic: TopicId = ""
    portion: list[RecordBatch] = []
    size = 0
    for chosen, batch in batches:
        if portion and (chosen != topic or len(portion) >= AT_ONCE or size >= BYTES_AT_ONCE):
            yield topic, portion
            portion, size = [], 0
        topic = chosen
        portion.append(batch)
        size += batch.size_bytes
    if portion:
        yield topic, portion


class BatchWriter(DataSourceArrowWriter):
    """Writer of a DataFrame."""

    def __init__(self, options: WriteOptions, write_id: str) -> None:
        self._options = options
        self._write_id = write_id  # created by the planner, the same for all tasks
        self._planned_us = publication_time_us()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows of a task."""
        return publish_rows(self._options, self._write_id, "", iterator, self._planned_us)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writer of a stream, batch by batch."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._planned_us = publication_time_us()  # of one micro-batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows of a task."""
        context = TaskContext.get()
        assert context is not None, "a stream is written by tasks"
        query = self._options.write_id or context.getLocalProperty(QUERY) or ""
        batch = context.getLocalProperty(BATCH) or ""
        assert query, "a task of a stream knows its query"
        assert batch, "a task of a stream knows its batch"
        return publish_rows(self._options, query, batch, iterator, self._planned_us)
