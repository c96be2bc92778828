"""Record batches: their encoding, their ids and the division of records."""

from __future__ import annotations

from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import DecodeError, ValidationError, msgpack
from msgspec.structs import replace

from skipring.core.batches import (
    BATCH_BYTES_MAX,
    RECORDS_MAX,
    BatchRecord,
    RecordBatch,
)
from skipring.core.limits import PAYLOAD_BYTES_MAX
from skipring.core.publications import ID_BYTES, RECORD_BYTES_MAX

TOPIC = "news"
RECORDS = st.lists(
    st.builds(
        BatchRecord,
        payload=st.binary(max_size=40),
        time=st.integers(0, 2**62),
        key=st.none() | st.binary(max_size=5),
        headers=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    ),
    min_size=1,
    max_size=5,
)


def batch_of(*records: BatchRecord, first: int = 7) -> RecordBatch:
    return RecordBatch.of(records, publisher="a", first=first, topic=TOPIC)


def with_body(body: object, count: int = 1) -> RecordBatch:
    return RecordBatch("a", 0, count, msgpack.encode(body))


@given(RECORDS)
def test_decoded_records_are_those_of_the_batch(records: list[BatchRecord]) -> None:
    batch = RecordBatch.of(records, publisher="a", first=3, topic=TOPIC)
    again = msgpack.decode(msgpack.encode(batch), type=RecordBatch)
    assert again == batch
    assert again.records() == tuple(records)
    assert (again.end, again.count) == (3 + len(records), len(records))
    assert again.is_genuine(TOPIC)
    assert not again.is_genuine("other")


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValueError, match="body of a batch"):
        with_body([[b"payload", 1, None, {}, "surplus"]]).records()
    fields = [*msgpack.decode(msgpack.encode(batch_of(BatchRecord(b"x")))), "surplus"]
    with pytest.raises(ValidationError):
        msgpack.decode(msgpack.encode(fields), type=RecordBatch)


@pytest.mark.parametrize("surplus", [b"\0", b"\xc0", b"junk"])
def test_surplus_bytes_are_refused(surplus: bytes) -> None:
    batch = batch_of(BatchRecord(b"x"))
    with pytest.raises(ValueError, match="body of a batch"):
        replace(batch, body=batch.body + surplus).records()
    with pytest.raises(DecodeError):
        msgpack.decode(msgpack.encode(batch) + surplus, type=RecordBatch)


@pytest.mark.parametrize(
    "body",
    [
        [],
        [[]],
        [["text"]],
        [[b"x", -1]],
        [[b"x", 1 << 63]],
        [[b"x", 0, "key"]],
        [[b"x", 0, b"k" * 2000]],
        [[b"x", 0, None, {"h": 1}]],
        [[b"x", 0, None, {str(n): "" for n in range(65)}]],
        [[b"x"]] * (RECORDS_MAX + 1),
        "text",
    ],
)
def test_other_forms_are_refused(body: object) -> None:
    with pytest.raises(ValueError, match="body of a batch"):
        with_body(body).records()


def test_truncated_body_is_refused() -> None:
    batch = batch_of(BatchRecord(b"payload"))
    for size in range(len(batch.body)):
        with pytest.raises(ValueError, match="body of a batch"):
            replace(batch, body=batch.body[:size]).records()


def test_another_number_of_records_is_refused() -> None:
    with pytest.raises(ValueError, match="1 records in a batch of 2"):
        with_body([[b"x"]], count=2).records()


@pytest.mark.parametrize(
    "change",
    [
        {"publisher": "b"},
        {"first": 8},
        {"count": 2},
        {"body": b"\x91\x91\xc4\x01y"},
        {"unordered": True},
    ],
)
def test_id_covers_every_field(change: dict[str, object]) -> None:
    batch = batch_of(BatchRecord(b"x"))
    assert len(batch.id) == ID_BYTES
    changed = replace(batch, **change)
    assert changed.id_in(TOPIC) != batch.id
    assert not changed.is_genuine(TOPIC)


def test_topic_and_publisher_are_separate_in_the_id() -> None:
    one = RecordBatch("bc", 0, 1, b"")
    other = RecordBatch("c", 0, 1, b"")
    assert one.id_in("a") != other.id_in("ab")


def test_record_id_is_the_batch_id_and_the_index() -> None:
    batch = batch_of(*[BatchRecord(b"x")] * RECORDS_MAX)
    ids = [batch.record_id(index) for index in range(batch.count)]
    assert {len(each) for each in ids} == {ID_BYTES}
    assert {each[:30] for each in ids} == {batch.id[:30]}
    assert [int.from_bytes(each[30:], "big") for each in ids] == list(range(RECORDS_MAX))


def split(records: list[BatchRecord], first: int = 5) -> list[RecordBatch]:
    return list(RecordBatch.split(records, publisher="a", first=first, topic=TOPIC))


@given(st.lists(st.integers(0, 200_000), max_size=30), st.integers(0, 600))
def test_division_keeps_all_records_in_order_within_the_limits(
    sizes: list[int], small: int
) -> None:
    records = [BatchRecord(bytes(size), time=n) for n, size in enumerate([*sizes, *[9] * small])]
    batches = split(records)
    assert list(chain.from_iterable(batch.records() for batch in batches)) == records
    assert [batch.first for batch in batches[:1]] == [5] * bool(records)
    assert all(one.end == other.first for one, other in pairwise(batches))
    for batch in batches:
        assert len(batch.body) <= BATCH_BYTES_MAX
        rows = batch.records()
        assert batch == RecordBatch.of(rows, publisher="a", first=batch.first, topic=TOPIC)
    assert split(records) == batches


@given(st.lists(st.integers(0, 300_000), max_size=12), st.integers(0, 12))
def test_division_continues_where_a_batch_ended(sizes: list[int], cut: int) -> None:
    records = [BatchRecord(bytes(size)) for size in sizes]
    batches = split(records)
    done = sum(batch.count for batch in batches[:cut])
    assert split(records[done:], 5 + done) == batches[cut:]


@pytest.mark.parametrize("count", [1, 15, 16, 255, 256])
def test_division_fills_batches(count: int) -> None:
    assert [batch.count for batch in split([BatchRecord(b"x")] * count)] == [count]


def test_full_batch_begins_the_next_one() -> None:
    assert [b.count for b in split([BatchRecord(b"x")] * 600)] == [256, 256, 88]


def test_largest_record_is_a_batch_of_its_own() -> None:
    small = BatchRecord(b"x")
    large = BatchRecord(
        bytes(PAYLOAD_BYTES_MAX), time=2**62, key=bytes(1024), headers={"h": "v" * 8000}
    )
    batches = split([small, large, small])
    assert [batch.count for batch in batches] == [1, 1, 1]
    assert BATCH_BYTES_MAX < len(batches[1].body) <= RECORD_BYTES_MAX
    assert batches[1].records() == (large,)
