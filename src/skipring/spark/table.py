"""Batch read of a topic as a table: the newest value of each key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby
from time import time_ns
from typing import NamedTuple

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.datasource import InputPartition

from skipring.api.key_value_table import has_value
from skipring.core.batches import BatchRecord
from skipring.core.peers import NodeId, TopicId
from skipring.spark.arrow import HEADER_MAP, PUBLICATION, ArrowRows, RecordRun, RowForm, RowPlace
from skipring.spark.batch import BatchReader, PrefixPartition, read_part, snapshot
from skipring.spark.partitions import PlacedRows
from skipring.spark.ring_client import RingClient, freeze_gc, task_client

# Columns that decide which write of a key is the newest, and whether it is a deletion.
DECIDING = ("key", "timestamp", "publisher", "sequence")


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
