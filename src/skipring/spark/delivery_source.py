"""Data source ``skipring_deliveries``: arrivals of publications at members with a disk.

This is telemetry. A stream follows every store that it finds, each at its own offset. It reads a
store that starts again (its node has lost its disk) from the start, so a delivery may occur twice:
a query that counts removes duplicates by (topic, node, id). Deliveries of a member that is gone are
missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct, ValidationError, convert
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from skipring.core.effects import Origin
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import ID_BYTES
from skipring.errors import InputError, MessageError, UnreachableError
from skipring.rpc.log_reader import MemberLog
from skipring.spark.arrow import DELIVERY, binary_ids, spark_schema
from skipring.spark.options import ACCESS_OPTIONS, EARLIEST, ReadOptions, check_names
from skipring.spark.partitions import cut, shared_out
from skipring.spark.ring_client import RingClient, freeze_gc, task_client
from skipring.wire.rpc import Address, DeliveryPage

NAME: Final = "skipring_deliveries"
DELIVERY_OPTIONS: Final = (*ACCESS_OPTIONS, "subscribe", "startingOffsets", "maxOffsetsPerTrigger")
STORES_MAX: Final = 1024  # Limit: stores of a topic that a stream remembers.
ROWS_PER_PARTITION: Final = 100_000  # Guess: a second of work, with the reads from disk.
_ORIGINS: Final = tuple(origin.value for origin in Origin)
_LOG: Final = getLogger(__name__)

Json = dict[str, Any]


class TracePosition(Struct, frozen=True, forbid_unknown_fields=True):
    """Position up to which a store has been read."""

    epoch: int
    offset: int


Marks = dict[TopicId, dict[str, TracePosition]]  # by topic and store


@dataclass(frozen=True)
class TracePartition(InputPartition):
    """Offsets of one member's store, read by one task."""

    topic: TopicId
    node: NodeId
    address: Address
    offsets: range


class DeliveriesDataSource(DataSource):
    """Data source of deliveries; it sends no request before a query runs."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format("skipring_deliveries")``."""
        return NAME

    def schema(self) -> str:
        """Return the columns of a read."""
        check_names(self.options, DELIVERY_OPTIONS)
        return spark_schema(DELIVERY)

    def reader(self, schema: StructType) -> TraceBatchReader:
        """Return the reader of a batch."""
        return TraceBatchReader(parse_options(self.options, is_stream=False))

    def streamReader(self, schema: StructType) -> TraceStreamReader:
        """Return the reader of a stream."""
        return TraceStreamReader(parse_options(self.options, is_stream=True))


def parse_options(options: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """Check the options of a read."""
    check_names(options, DELIVERY_OPTIONS)
    parsed = ReadOptions.parse(options, is_stream=is_stream)
    if not isinstance(parsed.starting, str):
        raise InputError(f'"startingOffsets" of {NAME} is "earliest" or "latest", nothing else')
    return parsed


# -- members -----------------------------------------------------------------------------------


class TraceMembers:
    """Members of topics that have disks; known members are asked again."""

    def __init__(self, client: RingClient) -> None:
        self._client = client
        self._known: dict[TopicId, dict[NodeId, Address]] = {}

    def holders(self, topic: TopicId) -> dict[str, MemberLog]:
        """Return the members that answer, by store; raise UnreachableError if none is known."""
        known = self._known.setdefault(topic, {})
        try:
            found = self._client.survey(topic, None)
        except UnreachableError:
            if not known:
                raise
            found = []  # the known members answer without a supervisor
        named = {holder.node for holder in found}
        for node in sorted(known.keys() - named):  # a supervisor names only some of many members
            holder = self._client.survey_of(topic, node, known[node])
            found += [holder] if holder is not None else []
        self._known[topic] = {holder.node: holder.address for holder in found}
        return {holder.survey.store: holder for holder in found if holder.survey.store}


# -- reads -------------------------------------------------------------------------------------


class TraceBatchReader(DataSourceReader):
    """Reader of all deliveries that exist now."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return parts of the members' stores."""
        with RingClient(self._options.access) as client:
            members = TraceMembers(client)
            return [
                partition
                for topic in self._options.topics
                for holder in members.holders(topic).values()
                for partition in _partitions(topic, holder, 0, holder.survey.durable_end)
            ] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in the process of a task."""
        return read_partition(self._options, partition)


class TraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader that follows the deliveries of topics; Spark stores the marks."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._client: RingClient | None = None
        self._members: TraceMembers | None = None
        self._initial: Json | None = None
        self._last: Marks | None = None  # end of a query with trigger availableNow

    def initialOffset(self) -> Json:
        """Return the start of a new query; Spark asks twice."""
        if self._initial is None:
            ends = self._ends()
            if self._options.starting == EARLIEST:
                ends = {topic: {} for topic in ends}
            self._initial = to_json(ends)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch."""
        limit = self._options.offsets_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Set the end of the query to the current ends."""
        self._last = self._ends()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Return the end of the next micro-batch, or its start if there is nothing new."""
        before = from_json(start)
        ends = self._ends() if self._last is None else self._last
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        after = advanced(before, ends, rows_max)
        return start if after == before else to_json(after)

    def reportLatestOffset(self) -> Json | None:
        """Return the current ends, for the metrics of a query."""
        return to_json(self._ends())

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Return the partitions of a micro-batch; deliveries of absent members are skipped."""
        before, after = from_json(start), from_json(end)
        found: list[InputPartition] = []
        for topic, marks in after.items():
            holders = self._found().holders(topic)
            for store, mark in marks.items():
                first = _start(before.get(topic, {}).get(store), mark)
                holder = holders.get(store)
                if holder is not None and holder.survey.epoch == mark.epoch:
                    found += _partitions(topic, holder, first, mark.offset)
                elif first < mark.offset:
                    _LOG.warning("the store %s of %r is gone; skipped", store, topic)
        return found or [InputPartition(None)]

    def commit(self, end: Json) -> None:
        """Do nothing: the reader keeps no state of committed batches."""

    def stop(self) -> None:
        """Close the connections at the end of the query."""
        if self._client is not None:
            self._client.close()
            self._client = self._members = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in the process of a task."""
        return read_partition(self._options, partition)

    def _found(self) -> TraceMembers:
        if self._members is None:
            self._client = RingClient(self._options.access)
            self._members = TraceMembers(self._client)
        return self._members

    def _ends(self) -> Marks:
        """Return the end of each store."""
        return {
            topic: {
                store: TracePosition(holder.survey.epoch, holder.survey.durable_end)
                for store, holder in self._found().holders(topic).items()
            }
            for topic in self._options.topics
        }


def read_partition(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the deliveries of a member at some offsets; skip a member that is gone."""
    freeze_gc()
    if not isinstance(partition, TracePartition):
        return
    topic, node, address = partition.topic, partition.node, partition.address
    with task_client(options.access) as client:
        try:
            for page in client.deliveries(topic, node, address, partition.offsets):
                if page.offsets:
                    yield to_arrow(topic, node, page)
        except (UnreachableError, MessageError) as error:
            _LOG.warning("%s; the rest is skipped", error)


def _partitions(topic: TopicId, holder: MemberLog, start: int, end: int) -> list[TracePartition]:
    return [
        TracePartition(topic, holder.node, holder.address, offsets)
        for (offsets,) in cut([range(start, end)], ROWS_PER_PARTITION)
    ]


def to_arrow(topic: TopicId, node: NodeId, page: DeliveryPage) -> pa.RecordBatch:
    """Return a page as an Arrow record batch; raise MessageError if it is malformed."""
    count = len(page.offsets)
    sizes = {len(page.times), len(page.hops), len(page.origins)}
    if sizes != {count} or len(page.ids) != count * ID_BYTES:
        raise MessageError(f"a page of deliveries from {node} has columns of different lengths")
    if any(place >= len(_ORIGINS) for place in page.origins):
        raise MessageError(f"a page of deliveries from {node} has an unknown origin")
    columns = [
        pa.repeat(pa.scalar(topic), count),
        pa.repeat(pa.scalar(node), count),
        pa.array(page.offsets, pa.int64()),
        binary_ids(page.ids, count),
        pa.array(page.times, DELIVERY.field("arrived").type),
        pa.array(list(page.hops), pa.int32()),
        pa.array([_ORIGINS[place] for place in page.origins]),
    ]
    return pa.record_batch(columns, schema=DELIVERY)


# -- marks -------------------------------------------------------------------------------------


def advanced(before: Marks, ends: Marks, rows_max: int | None) -> Marks:
    """Return the marks after a micro-batch of ``rows_max`` rows: the same share of each store.

    A store that does not answer keeps its mark.
    """
    ahead = {
        (topic, store): end.offset - _start(before.get(topic, {}).get(store), end)
        for topic, marks in ends.items()
        for store, end in marks.items()
    }
    after = {topic: dict(before.get(topic, {})) for topic in ends}
    for (topic, store), taken in shared_out(ahead, rows_max).items():
        end = ends[topic][store]
        if taken:
            offset = end.offset - ahead[topic, store] + taken
            after[topic][store] = TracePosition(end.epoch, offset)
    return {topic: _remembered(marks, ends[topic]) for topic, marks in after.items()}


def _start(before: TracePosition | None, end: TracePosition) -> int:
    """Return the first offset to read up to a mark; a store in another epoch starts at 0."""
    if before is None or before.epoch != end.epoch:
        return 0
    return min(before.offset, end.offset)


def _remembered(
    marks: Mapping[str, TracePosition], present: Mapping[str, TracePosition]
) -> dict[str, TracePosition]:
    """Return at most STORES_MAX marks; present stores take precedence."""
    kept = sorted(marks, key=lambda store: (store not in present, store))[:STORES_MAX]
    return {store: marks[store] for store in sorted(kept)}


def to_json(marks: Marks) -> Json:
    """Return marks in the form that Spark stores."""
    return {
        topic: {store: {"epoch": it.epoch, "offset": it.offset} for store, it in sorted(of.items())}
        for topic, of in sorted(marks.items())
    }


def from_json(kept: Json) -> Marks:
    """Return stored marks; raise InputError if they are malformed."""
    try:
        return convert(kept, dict[str, dict[str, TracePosition]])
    except ValidationError as error:
        raise InputError(f"the offsets of {NAME} cannot be read: {error}") from None
