"""Schemas, and the conversion of log pages to Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate, chain, groupby
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from skipring.core.batches import RECORDS_MAX, BatchRecord, RecordBatch, batch_part
from skipring.core.log_messages import LogPage
from skipring.core.peers import TopicId
from skipring.core.publications import ID_BYTES
from skipring.errors import MessageError
from skipring.spark.offsets import Entry

# Kafka's columns first, as Spark users know them. The partition is the number of the prefix in a
# batch, and 0 in a stream. The offset is that of the member that was read.
PUBLICATION: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("publisher", pa.string()),
        ("sequence", pa.int64()),
        ("id", pa.binary()),
    ]
)
HEADERS: Final = pa.field("headers", pa.map_(pa.string(), pa.binary()))
PUBLICATION_WITH_HEADERS: Final = PUBLICATION.append(HEADERS)

# Arrival of a publication at a node, as the node recorded it.
DELIVERY: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("node", pa.string()),
        ("offset", pa.int64()),
        ("id", pa.binary()),
        ("arrived", pa.timestamp("us", tz="UTC")),
        ("hops", pa.int32()),
        ("origin", pa.string()),
    ]
)

_NAMES: Final = {
    pa.binary(): "binary",
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.timestamp("us", tz="UTC"): "timestamp",
    HEADERS.type: "map<string,binary>",
}

_INDICES: Final = [index.to_bytes(2, "big") for index in range(RECORDS_MAX)]  # in record ids


def publication_schema(*, with_headers: bool) -> pa.Schema:
    """Return the columns of a read."""
    return PUBLICATION_WITH_HEADERS if with_headers else PUBLICATION


def spark_schema(schema: pa.Schema) -> str:
    """Return the columns in Spark's notation."""
    return ", ".join(f"`{field.name}` {_NAMES[field.type]}" for field in schema)


class RecordRun(NamedTuple):
    """Consecutive records of one batch, with the offset and the index of the first."""

    batch: RecordBatch
    offset: int
    first: int
    records: tuple[BatchRecord, ...]

    def part(self, start: int, stop: int) -> RecordRun:
        """Return the records between two places in this run."""
        offset, first = self.offset + start, self.first + start
        return RecordRun(self.batch, offset, first, self.records[start:stop])

    def packed_ids(self) -> bytes:
        """Return the ids of the records, one after the other."""
        part, count = batch_part(self.batch.id), len(self.records)
        if count == 1:  # the usual case without bulk publishers
            return part + _INDICES[self.first]
        return part.join([b"", *_INDICES[self.first : self.first + count]])

    def ids(self) -> list[bytes]:
        """Return the ids of the records."""
        return [self.batch.record_id(self.first + place) for place in range(len(self.records))]

    def where(self, chosen: Sequence[bool]) -> Iterator[RecordRun]:
        """Yield the chosen records as runs."""
        place = 0
        for is_chosen, group in groupby(chosen):
            start, place = place, place + len(list(group))
            if is_chosen:
                yield self if place - start == len(self.records) else self.part(start, place)


class ArrowRows:
    """Records of a read, one row each, from batches that match their ids (T10)."""

    __slots__ = ("_runs", "topic")

    def __init__(self, topic: TopicId, runs: Sequence[RecordRun]) -> None:
        self.topic = topic
        self._runs = runs

    def __len__(self) -> int:
        return sum([len(run.records) for run in self._runs])

    @classmethod
    def of(cls, topic: TopicId, page: LogPage, wanted: range | None = None) -> ArrowRows:
        """Return the rows of a page, or those at the wanted offsets; omit corrupt batches.

        The first and the last batch of a page may have records at other offsets.
        """
        runs = []
        for offset, batch in zip(page.offsets, page.batches, strict=True):
            records = _verified(topic, batch)
            if not records:
                continue
            run = RecordRun(batch, offset, 0, records)
            if wanted is not None and (
                offset < wanted.start or offset + len(records) > wanted.stop
            ):
                run = run.part(max(wanted.start - offset, 0), max(wanted.stop - offset, 0))
            if run.records:
                runs.append(run)
        return cls(topic, runs)

    @property
    def batch_ids(self) -> list[bytes]:
        """Return the ids of the batches."""
        return [run.batch.id for run in self._runs]

    @property
    def ids(self) -> list[bytes]:
        """Return the ids of the records."""
        return [key for run in self._runs for key in run.ids()]

    def without_batches(self, ids: set[bytes]) -> ArrowRows:
        """Return the rows without these batches, and each of the others once."""
        runs = {run.batch.id: run for run in self._runs if run.batch.id not in ids}
        return ArrowRows(self.topic, list(runs.values()))

    def without(self, ids: frozenset[bytes]) -> ArrowRows:
        """Return the rows without these records."""
        if not ids:
            return self
        return self._where(lambda run: [key not in ids for key in run.ids()])

    def only(self, ids: frozenset[bytes]) -> ArrowRows:
        """Return the rows of these records."""
        return self._where(lambda run: [key in ids for key in run.ids()])

    def since(self, time: int) -> ArrowRows:
        """Return the rows published at or after a time."""
        if not time:
            return self
        return self._where(lambda run: [each.time >= time for each in run.records])

    def _where(self, choice: Callable[[RecordRun], Sequence[bool]]) -> ArrowRows:
        runs = [part for run in self._runs for part in run.where(choice(run))]
        return ArrowRows(self.topic, runs)

    def to_arrow(self, partition: int, *, with_headers: bool) -> pa.RecordBatch:
        """Return the rows as an Arrow record batch."""
        runs, count = self._runs, len(self)
        records = list(chain.from_iterable([run.records for run in runs]))
        ends = list(accumulate([len(run.records) for run in runs]))
        schema = publication_schema(with_headers=with_headers)
        columns = {
            "key": [each.key for each in records],
            "value": [each.payload for each in records],
            "topic": pa.repeat(pa.scalar(self.topic), count),
            "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
            "offset": _rising([run.offset for run in runs], ends),
            # A time of 0 means unknown.
            "timestamp": [each.time or None for each in records],
            "publisher": _repeated([run.batch.publisher for run in runs], pa.string(), ends),
            "sequence": _rising([run.batch.first + run.first for run in runs], ends),
            "id": binary_ids(b"".join([run.packed_ids() for run in runs]), count),
        }
        if with_headers:
            columns["headers"] = [
                [(name, text.encode()) for name, text in each.headers.items()] for each in records
            ]
        arrays = [_array(columns[field.name], field.type) for field in schema]
        return pa.record_batch(arrays, schema=schema)


def _verified(topic: TopicId, batch: RecordBatch) -> tuple[BatchRecord, ...]:
    """Return the records of a batch; none if it does not match its id or cannot be decoded."""
    if not batch.is_genuine(topic):
        return ()
    try:
        return batch.records()
    except ValueError:
        return ()


def binary_ids(packed: bytes, count: int) -> pa.Array:
    """Return ids that follow one another as a column."""
    ids = pa.Array.from_buffers(pa.binary(ID_BYTES), count, [None, pa.py_buffer(packed)])
    return ids.cast(pa.binary())


def _repeated(values: Sequence[object], kind: pa.DataType, ends: Sequence[int]) -> pa.Array:
    """Return a column that has each value up to its end."""
    column = pa.array(values, kind)
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), column))


def _rising(firsts: Sequence[int], ends: Sequence[int]) -> pa.Array:
    """Return a column that counts from each first number, up to its end."""
    if not ends:
        return pa.array([], pa.int64())
    count = ends[-1]
    begins = [first - place for first, place in zip(firsts, [0, *ends[:-1]], strict=True)]
    return pc.add(_repeated(begins, pa.int64(), ends), _counting(count.bit_length())[:count])


@cache
def _counting(bits: int) -> pa.Array:
    """Return the numbers of this many bits; the size of a frame limits the rows of a page."""
    return pa.array(range(1 << bits), pa.int64())


def _array(values: pa.Array | Sequence[object], kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def entries(topic: TopicId, page: LogPage, wanted: range) -> list[Entry]:
    """Return offset and id of each record of a page without contents, at the wanted offsets."""
    if not all(batch.is_genuine(topic) for batch in page.batches):
        raise MessageError(f"a page of {topic!r} has a batch without an id")
    return [
        (offset, key)
        for first, batch in zip(page.offsets, page.batches, strict=True)
        for offset, key in enumerate(batch.record_ids(), first)
        if offset in wanted
    ]
