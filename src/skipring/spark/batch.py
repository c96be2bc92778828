"""Batch reads: topics at one moment, proven by digests; as publications or as a table of keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from time import monotonic, sleep, time_ns
from typing import Final, NamedTuple

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from skipring.api.key_value_table import has_value
from skipring.core.batches import BatchRecord
from skipring.core.limits import SURVEY_BITS_MAX
from skipring.core.peers import NodeId, TopicId
from skipring.core.summaries import digest_of
from skipring.errors import DataLossError, UnreachableError
from skipring.rpc.log_reader import EVERY_RECORD, LogRange
from skipring.spark.arrow import (
    ALL_ROWS,
    HEADER_MAP,
    PUBLICATION,
    ArrowRows,
    RecordRun,
    RowForm,
    RowPlace,
)
from skipring.spark.filters import Pushed, push, with_id_range
from skipring.spark.offsets import place_text
from skipring.spark.options import EARLIEST, LATEST, ReadOptions
from skipring.spark.partitions import PlacedRows, RangePartition, range_partitions, read_range
from skipring.spark.ring_client import RingClient, freeze_gc, task_client
from skipring.spark.snapshot import (
    Part,
    SnapshotSource,
    agreed_parts,
    end_of,
    is_shared,
    reference_of,
)

# Measured: a task costs about 20 ms of processor time, as much as 15,000 rows.
PARTITIONS_DEFAULT: Final = 2
ROWS_PER_PARTITION: Final = 250_000  # Guess: half a second of work.
SMALL_SHARE: Final = 4  # Guess: rows without payloads, or with a filter, are less work by this.
# Guess: publications in flight reach most members within this time; then the read starts anyway.
AGREEMENT_S: Final = 1.0
AGAIN_S: Final = 0.05

# Columns that decide which write of a key is the newest, and whether it is a deletion.
DECIDING: Final = ("key", "timestamp", "publisher", "sequence")


@dataclass(frozen=True)
class PrefixPartition(InputPartition):
    """Part of a topic's snapshot, read by one task."""

    topic: TopicId
    bits: int
    part: Part
    position: str  # of the snapshot in the log of the reference, in JSON


class BatchReader(DataSourceReader):
    """Reader of whole topics, or of a range between two positions."""

    def __init__(self, options: ReadOptions, form: RowForm = ALL_ROWS) -> None:
        self._options = options
        self._topics = None if options.pattern is not None else options.topics
        self._form = form

    def partitions(self) -> Sequence[InputPartition]:
        """Agree with the members on a snapshot; Spark calls this whenever it plans."""
        freeze_gc()
        if Pushed(self._form.where, self._topics).is_empty:
            return [InputPartition(None)]
        options = self._options
        with RingClient(options.access, options.assigned) as client:
            topics = self._topics
            if topics is None:
                topics = tuple(filter(options.is_chosen, client.topics()))
            return [
                partition for topic in topics for partition in self._partitions_of(topic, client)
            ] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in the process of a task."""
        freeze_gc()
        if not isinstance(partition, PrefixPartition | RangePartition):
            return  # the topic is empty
        form = self._form.within(self._options.times(partition.topic))
        with task_client(self._options.access) as client:
            match partition:
                case PrefixPartition():
                    found = read_part(client, partition, form)
                case RangePartition():
                    found = read_range(client, partition, form)
            with closing(found):  # before the client
                for place, rows in found:
                    batch = rows.to_arrow(form, place)
                    if batch.num_rows:
                        yield batch

    def _partitions_of(self, topic: TopicId, client: RingClient) -> Sequence[InputPartition]:
        options = self._options
        if options.starting == EARLIEST and options.ending == LATEST:
            return self._prefix_partitions(topic, client)
        return range_partitions(topic, client, options)

    def _prefix_partitions(self, topic: TopicId, client: RingClient) -> list[PrefixPartition]:
        where = self._form.within(self._options.times(topic)).where
        count = max(holder.survey.end for holder in client.survey(topic, None))
        if where != EVERY_RECORD or not self._form.has_payloads:
            count //= SMALL_SHARE
        usual = max(PARTITIONS_DEFAULT, count // ROWS_PER_PARTITION)
        wanted = self._options.size_of_partitions.partitions(count, usual)
        bits = min((wanted - 1).bit_length(), SURVEY_BITS_MAX)
        parts, position = snapshot(topic, client, bits)
        if where.id_start:
            number = where.id_start[0] >> (SURVEY_BITS_MAX - bits)
            parts = [part for part in parts if part.prefix == number]
        return [PrefixPartition(topic, bits, part, position) for part in parts]


class FilteredBatchReader(BatchReader):
    """Reader that lets members evaluate filters; Spark accepts it only while this is enabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use the filters that members evaluate; return those that Spark must evaluate."""
        before = Pushed(self._form.where, self._topics)
        pushed, rest = push(filters, before)
        pushed = with_id_range(filters, pushed)
        self._topics = pushed.topics
        self._form = replace(self._form, where=pushed.where)
        return rest


def snapshot(topic: TopicId, client: RingClient, bits: int) -> tuple[list[Part], str]:
    """Survey until at least two members agree on every part, for at most AGREEMENT_S.

    Return the parts, and the position of the snapshot in the log of the reference.
    """
    deadline = monotonic() + AGREEMENT_S
    while True:
        holders = client.survey(topic, bits)
        parts = agreed_parts(holders)
        if is_shared(parts) or len(holders) == 1 or monotonic() > deadline:
            return parts, place_text(end_of(reference_of(holders)))
        sleep(AGAIN_S)


def read_part(client: RingClient, partition: PrefixPartition, form: RowForm) -> PlacedRows:
    """Read the batches of a prefix, from one member after the other until complete.

    The digest proves all batches; with a filter, a member's complete answer is enough. Raise
    UnreachableError, which fails the read, if no member still has the agreed batches.
    """
    part = partition.part
    seen: set[bytes] = set()  # ids of batches: the digest is over these
    troubles = []
    for source in part.sources:
        place = RowPlace(
            partition=part.prefix,
            store=source.store,
            epoch=source.epoch,
            position=partition.position,
        )
        try:
            for rows in ArrowRows.joined(_read_from(client, partition, source, form)):
                new = rows.without_batches(seen)
                seen.update(new.batch_ids)
                yield place, new
            if form.where != EVERY_RECORD:
                return
        except (UnreachableError, DataLossError) as error:
            troubles.append(str(error))
        if form.where == EVERY_RECORD and digest_of(sorted(seen)) == part.digest:
            return
        troubles.append(f"from {source.node} on it is not")
    raise UnreachableError(
        f"prefix {part.prefix} of {partition.topic!r} is not what {len(part.sources)} members "
        f"agreed on ({'; '.join(troubles)}); run the query again, it makes a new snapshot"
    )


def _read_from(
    client: RingClient, partition: PrefixPartition, source: SnapshotSource, form: RowForm
) -> Iterator[ArrowRows]:
    wanted = LogRange(
        store=source.store,
        epoch=source.epoch,
        start=0,
        end=source.mark,
        bits=partition.bits,
        prefix=partition.part.prefix,
        has_contents=form.has_contents,
        has_payloads=form.has_payloads,
        where=form.where,
        indexed=True,
    )
    topic, member = partition.topic, (source.node, source.address)
    for page in client.pages(topic, *member, wanted):
        yield ArrowRows.of(topic, page, form)
    if source.departed is not None:  # the snapshot has what the topic has dropped since
        for page in client.pages(topic, *member, replace(wanted, departed=source.departed)):
            yield ArrowRows.of(topic, page, form)


class _Newest(NamedTuple):
    """Newest write of a key that has been read."""

    time: int
    publisher: NodeId
    sequence: int
    has_value: bool
    place: RowPlace
    run: RecordRun  # of one record


class TableReader(BatchReader):
    """Reader of whole topics that returns one row for each key that has a value.

    One task reads a topic: only it knows all writes of a key. Its memory grows with the keys.
    """

    def _partitions_of(self, topic: TopicId, client: RingClient) -> Sequence[InputPartition]:
        parts, position = snapshot(topic, client, 0)
        return [PrefixPartition(topic, 0, part, position) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one topic, in the process of a task."""
        freeze_gc()
        if not isinstance(partition, PrefixPartition):
            return  # there is no topic
        with task_client(self._options.access) as client:
            with closing(read_part(client, partition, _deciding(self._form))) as found:
                newest = newest_of_each_key(found, time_ns() // 1000)
            for place, group in groupby(newest, key=lambda each: each.place):
                rows = ArrowRows(partition.topic, [each.run for each in group])
                yield rows.to_arrow(self._form, place)


def _deciding(form: RowForm) -> RowForm:
    """Return a form that also has the columns that the choice needs."""
    names = form.schema.names
    further = [PUBLICATION.field(name) for name in DECIDING if name not in names]
    headers = [] if "headers" in names else [HEADER_MAP]
    return replace(form, schema=pa.schema([*form.schema, *further, *headers]))


def newest_of_each_key(rows: PlacedRows, now: int) -> list[_Newest]:
    """Return the newest write of each key, without deleted keys."""
    newest: dict[bytes, _Newest] = {}
    for place, found in rows:
        for run in found.runs:
            for index, record in enumerate(run.records):
                assert isinstance(record, BatchRecord), "the form has headers"
                if not record.key or record.key[0] == 0:
                    continue
                publisher, sequence = run.batch.publisher, run.batch.first + run.first + index
                known = newest.get(record.key)
                if known is None or (record.time, publisher, sequence) > known[:3]:
                    is_set, one = has_value(record.headers, now), run.part(index, index + 1)
                    made = _Newest(record.time, publisher, sequence, is_set, place, one)
                    newest[record.key] = made
    return [each for each in newest.values() if each.has_value]
