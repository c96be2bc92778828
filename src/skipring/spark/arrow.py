"""Schemas, and the conversion of log pages to Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from itertools import accumulate, chain, groupby
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, msgpack
from msgspec.structs import replace

from skipring.core.batches import BATCH_PART, RESERVED, BatchRecord, RecordBatch, batch_part
from skipring.core.limits import NUMBER_MAX
from skipring.core.log_messages import LogPage, RecordFilter
from skipring.core.peers import TopicId
from skipring.core.publications import ID_BYTES
from skipring.errors import MessageError
from skipring.rpc.log_reader import EVERY_RECORD
from skipring.spark.offsets import Entry, LogPlace, place_text

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
HEADERS: Final = pa.field(
    "headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
)
HEADER_MAP: Final = pa.field("headers", pa.map_(pa.string(), pa.binary()))
_HEADERS: Final = {"array": HEADERS, "map": HEADER_MAP}
# Only in a schema of the user: the log of the offset, and the position at the end of the read.
METADATA: Final = pa.schema(
    [("store", pa.string()), ("epoch", pa.int64()), ("position", pa.string())]
)

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
    HEADERS.type: "array<struct<key:string,value:binary>>",
    HEADER_MAP.type: "map<string,binary>",
}

_TIMESTAMP: Final = PUBLICATION.field("timestamp").type
ROWS_AT_ONCE: Final = 10_000  # Measured: batches of 2,000 rows take Spark a tenth more time.
_RECORD_ID: Final = np.dtype([("part", f"V{BATCH_PART}"), ("index", ">u2")])


def publication_schema(headers: str | None = None) -> pa.Schema:
    """Return the columns of a read without a schema; headers are an "array", a "map" or absent."""
    return PUBLICATION if headers is None else PUBLICATION.append(_HEADERS[headers])


def column_types() -> dict[str, tuple[str, ...]]:
    """Return the columns that a schema may have, with their types in Spark's notation."""
    known: dict[str, tuple[str, ...]] = {}
    for each in (*PUBLICATION, HEADERS, HEADER_MAP, *METADATA):
        known[each.name] = (*known.get(each.name, ()), _NAMES[each.type])
    return known


def spark_schema(schema: pa.Schema) -> str:
    """Return the columns in Spark's notation."""
    return ", ".join(f"`{field.name}` {_NAMES[field.type]}" for field in schema)


class _Record(Struct, array_like=True, gc=False):
    """Record of a batch without headers, which take as long to decode as the rest."""

    payload: bytes
    time: int = 0
    key: bytes | None = None


_RECORDS: Final = msgpack.Decoder(list[_Record])

Records = Sequence[_Record] | Sequence[BatchRecord] | range  # a range: only their number


class RowForm(Struct, frozen=True, kw_only=True):
    """Columns of a read, and the filter that its rows pass."""

    schema: pa.Schema = PUBLICATION
    where: RecordFilter = EVERY_RECORD

    def within(self, times: tuple[int, int] | None) -> RowForm:
        """Return the form with a further range of times."""
        if times is None:
            return self
        first, last = self.where.times or (0, NUMBER_MAX)
        both = max(first, times[0]), min(last, times[1])
        return replace(self, where=replace(self.where, times=both))

    @property
    def columns(self) -> frozenset[str]:
        """Return the names of the columns that are read, also for the filter only."""
        filtered = [
            name for name, given in zip(_FILTERED, _conditions(self.where), strict=True) if given
        ]
        return frozenset([*self.schema.names, *filtered])

    @property
    def has_payloads(self) -> bool:
        """Return True if a row contains the payload."""
        return "value" in self.columns

    @property
    def has_contents(self) -> bool:
        """Return True if a row contains a field of the record, not only of its batch."""
        return not self.columns.isdisjoint(("value", "key", "timestamp", "headers"))


_FILTERED: Final = ("publisher", "key", "timestamp", "sequence")


def _conditions(where: RecordFilter) -> tuple[object, ...]:
    return tuple(
        each is not None for each in (where.publishers, where.keys, where.times, where.sequence)
    )


class RowPlace(Struct, frozen=True, kw_only=True):
    """Values that all rows of a partition have."""

    partition: int = 0
    store: str = ""
    epoch: int = 0
    position: str = ""

    @classmethod
    def of(cls, end: LogPlace) -> Self:
        """Return the values of rows before a place in a log."""
        return cls(store=end.store, epoch=end.epoch, position=place_text(end))


ALL_ROWS: Final = RowForm()
NO_PLACE: Final = RowPlace()


class RecordRun(NamedTuple):
    """Consecutive records of one batch, with the offset and the index of the first."""

    batch: RecordBatch
    offset: int
    first: int
    records: Records

    def part(self, start: int, stop: int) -> RecordRun:
        """Return the records between two places in this run."""
        offset, first = self.offset + start, self.first + start
        return RecordRun(self.batch, offset, first, self.records[start:stop])

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
    """Records of a read, one row each, from batches that match their ids (T10).

    A batch that was requested without payloads cannot be verified: then the digest of the read
    proves the ids, and the other fields are the statement of the member.
    """

    __slots__ = ("runs", "topic")

    def __init__(self, topic: TopicId, runs: Sequence[RecordRun]) -> None:
        self.topic = topic
        self.runs = runs

    def __len__(self) -> int:
        return sum([len(run.records) for run in self.runs])

    @classmethod
    def of(
        cls, topic: TopicId, page: LogPage, form: RowForm = ALL_ROWS, wanted: range | None = None
    ) -> ArrowRows:
        """Return the rows of a page, or those at the wanted offsets; omit corrupt batches.

        The first and the last batch of a page may have records at other offsets.
        """
        runs = []
        decoded = _decoder(form)
        for offset, batch in zip(page.offsets, page.batches, strict=True):
            records = decoded(topic, batch)
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

    @classmethod
    def joined(cls, pages: Iterable[ArrowRows]) -> Iterator[ArrowRows]:
        """Yield the rows of pages of one topic in portions of at least ROWS_AT_ONCE."""
        runs: list[RecordRun] = []
        count = 0
        for rows in pages:
            runs += rows.runs
            count += len(rows)
            if count >= ROWS_AT_ONCE:
                yield cls(rows.topic, runs)
                runs, count = [], 0
        if runs:
            yield cls(rows.topic, runs)

    @property
    def batch_ids(self) -> list[bytes]:
        """Return the ids of the batches."""
        return [run.batch.id for run in self.runs]

    @property
    def ids(self) -> list[bytes]:
        """Return the ids of the records."""
        return [key for run in self.runs for key in run.ids()]

    def without_batches(self, ids: set[bytes]) -> ArrowRows:
        """Return the rows without these batches, and each of the others once."""
        runs = {run.batch.id: run for run in self.runs if run.batch.id not in ids}
        return ArrowRows(self.topic, list(runs.values()))

    def without(self, ids: frozenset[bytes]) -> ArrowRows:
        """Return the rows without these records."""
        if not ids:
            return self
        return self._where(lambda run: [key not in ids for key in run.ids()])

    def only(self, ids: frozenset[bytes]) -> ArrowRows:
        """Return the rows of these records."""
        return self._where(lambda run: [key in ids for key in run.ids()])

    def _where(self, choice: Callable[[RecordRun], Sequence[bool]]) -> ArrowRows:
        runs = [part for run in self.runs for part in run.where(choice(run))]
        return ArrowRows(self.topic, runs)

    def to_arrow(self, form: RowForm = ALL_ROWS, place: RowPlace = NO_PLACE) -> pa.RecordBatch:
        """Return the rows that pass the filter as an Arrow record batch; omit charters."""
        runs = [run for run in self.runs if not _is_reserved(run.records)]
        count = sum([len(run.records) for run in runs])
        records: list[Any] = list(chain.from_iterable([run.records for run in runs]))
        ends = list(accumulate([len(run.records) for run in runs]))
        made: dict[str, Callable[[], pa.Array]] = {
            "key": lambda: _keys([each.key for each in records]),
            "value": lambda: pa.array([each.payload for each in records], pa.binary()),
            "topic": lambda: pa.repeat(pa.scalar(self.topic), count),
            "partition": lambda: pa.repeat(pa.scalar(place.partition, pa.int32()), count),
            "offset": lambda: _rising([run.offset for run in runs], ends),
            "timestamp": lambda: _timestamps([each.time for each in records]),
            "publisher": lambda: _repeated(
                [run.batch.publisher for run in runs], pa.string(), ends
            ),
            "sequence": lambda: _rising([run.batch.first + run.first for run in runs], ends),
            "id": lambda: binary_ids(_packed_ids(runs, ends), count),
            "headers": lambda: _headers(
                [each.headers for each in records], form.schema.field("headers").type
            ),
            "store": lambda: pa.repeat(pa.scalar(place.store), count),
            "epoch": lambda: pa.repeat(pa.scalar(place.epoch, pa.int64()), count),
            "position": lambda: pa.repeat(pa.scalar(place.position), count),
        }
        columns = {name: made[name]() for name in sorted(form.columns)}
        rows = pa.record_batch([columns[name] for name in form.schema.names], schema=form.schema)
        mask = _mask(form.where, columns)
        return rows if mask is None else rows.filter(mask)


def _is_reserved(records: Records) -> bool:
    """Return True for a charter; a read of ids alone does not know it."""
    if len(records) != 1 or isinstance(records, range):
        return False
    return (records[0].key or b"").startswith(RESERVED)


def _decoder(form: RowForm) -> Callable[[TopicId, RecordBatch], Records]:
    """Return the function that decodes a batch, as far as the columns need it."""
    if not form.has_contents:
        return lambda _, batch: range(batch.count if len(batch.id) == ID_BYTES else 0)
    has_headers = "headers" in form.columns
    if not form.has_payloads:
        return lambda _, batch: _decoded(batch, has_headers=has_headers)
    return lambda topic, batch: (
        _decoded(batch, has_headers=has_headers) if batch.is_genuine(topic) else ()
    )


def _decoded(batch: RecordBatch, *, has_headers: bool) -> Sequence[_Record] | Sequence[BatchRecord]:
    """Return the records of a batch; none if it cannot be decoded."""
    try:
        if has_headers:
            return batch.records()
        records = _RECORDS.decode(batch.body)
    except ValueError:  # msgspec's DecodeError is one
        return ()
    return records if len(records) == batch.count else ()


# -- columns -----------------------------------------------------------------------------------


def _keys(keys: list[bytes | None]) -> pa.Array:
    return (
        pa.array(keys, pa.binary())
        if any(keys) or b"" in keys
        else pa.nulls(len(keys), pa.binary())
    )


def _timestamps(times: list[int]) -> pa.Array:
    """Return times as a column; a time of 0 means unknown."""
    known = np.array(times, np.int64)
    return pa.array(known, _TIMESTAMP, mask=known == 0)


def _headers(headers: Sequence[Mapping[str, str]], kind: pa.DataType) -> pa.Array:
    """Return headers as a column of maps, or of lists of structures."""
    items = [[(name, text.encode()) for name, text in each.items()] for each in headers]
    if pa.types.is_map(kind):
        return pa.array(items, kind)
    names = [each.name for each in kind.value_type]
    return pa.array(
        [[dict(zip(names, item, strict=True)) for item in each] for each in items], kind
    )


def _mask(where: RecordFilter, columns: Mapping[str, pa.Array]) -> pa.Array | None:
    """Return which rows pass a filter; None if all do. The member has filtered whole batches."""
    chosen = []
    for name, values in (("publisher", where.publishers), ("key", where.keys)):
        if values is not None:
            column = columns[name]
            chosen.append(pc.is_in(column, pa.array(values, column.type)))
    for name, bounds in (("timestamp", where.times), ("sequence", where.sequence)):
        if bounds is not None:
            column = columns[name].cast(pa.int64())
            chosen.append(
                pc.and_(pc.greater_equal(column, bounds[0]), pc.less_equal(column, bounds[1]))
            )
    return reduce(pc.and_, chosen) if chosen else None


def _packed_ids(runs: Sequence[RecordRun], ends: Sequence[int]) -> bytes:
    """Return the ids of the records of runs, one after the other."""
    parts = b"".join([batch_part(run.batch.id) for run in runs])
    packed = np.empty(ends[-1] if ends else 0, _RECORD_ID)
    counts = [len(run.records) for run in runs]
    packed["part"] = np.repeat(np.frombuffer(parts, _RECORD_ID["part"]), counts)
    packed["index"] = _rising([run.first for run in runs], ends)
    return packed.tobytes()


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
