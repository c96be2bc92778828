"""Record batches: their encoding, their ids and the division of records (decision 53)."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain, pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import DecodeError, ValidationError, msgpack
from msgspec.structs import replace

from skipring.core.batches import (
    BATCH_BYTES_MAX,
    BODY_BYTES_MAX,
    OVERHEAD_BYTES,
    RECORDS_MAX,
    BatchRecord,
    RecordBatch,
    batch_part,
    check_record,
    in_chunks,
    is_reserved,
)
from skipring.core.limits import (
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    NUMBER_MAX,
    PAYLOAD_BYTES_MAX,
)
from skipring.core.publications import ID_BITS, ID_BYTES, Publication
from skipring.errors import MessageError
from tests.support.batches import batch, batch_of, opaque_batch, with_rows

TOPIC = "t"
WRONG_ID = b"x" * ID_BYTES
PINNED = "47d8208c2c80eacd7bc4cf845ab45f85a0eece313edb80e89e647f6e77338a6d"
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


@given(RECORDS, st.booleans())
def test_decoded_records_are_those_of_the_batch(
    records: list[BatchRecord], unordered: bool
) -> None:
    made = RecordBatch.of(records, publisher="a", first=3, topic=TOPIC, unordered=unordered)
    again = msgpack.decode(msgpack.encode(made), type=RecordBatch)
    assert again == made
    assert again.records() == tuple(records)
    assert (again.end, again.count) == (3 + len(records), len(records))
    assert again.is_genuine(TOPIC)
    assert not again.is_genuine("other")


# -- refused encodings -------------------------------------------------------------------------


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValueError, match="body of a batch"):
        with_rows([[b"payload", 1, None, {}, "surplus"]]).records()
    fields = [*msgpack.decode(msgpack.encode(batch())), "surplus"]
    with pytest.raises(ValidationError):
        msgpack.decode(msgpack.encode(fields), type=RecordBatch)


@pytest.mark.parametrize("surplus", [b"\0", b"\xc0", b"junk"])
def test_surplus_bytes_are_refused(surplus: bytes) -> None:
    made = batch()
    with pytest.raises(ValueError, match="body of a batch"):
        replace(made, body=made.body + surplus).records()
    with pytest.raises(DecodeError):
        msgpack.decode(msgpack.encode(made) + surplus, type=RecordBatch)


@pytest.mark.parametrize(
    "rows",
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
        [[bytes(PAYLOAD_BYTES_MAX + 1)]],
        [{"payload": b"x"}],
        "text",
        None,
    ],
    ids=lambda rows: repr(rows)[:30],
)
def test_other_forms_of_records_are_refused(rows: object) -> None:
    with pytest.raises(ValueError, match="body of a batch"):
        with_rows(rows).records()


def test_truncated_body_is_refused() -> None:
    made = batch(b"payload")
    for size in range(1, len(made.body)):
        with pytest.raises(ValueError, match="body of a batch"):
            replace(made, body=made.body[:size]).records()


@pytest.mark.parametrize(("rows", "count"), [([[b"x"]], 2), ([[b"x"], [b"y"]], 1)])
def test_another_number_of_records_is_refused(rows: object, count: int) -> None:
    with pytest.raises(ValueError, match=f"records in a batch of {count}"):
        with_rows(rows, count=count).records()


@pytest.mark.parametrize(
    "change",
    [
        {"first": -1},
        {"first": NUMBER_MAX + 1},
        {"count": 0},
        {"count": RECORDS_MAX + 1},
        {"body": bytes(BODY_BYTES_MAX + 1)},
        {"id": b"x" * 31},
        {"id": b"x" * 33},
        {"unordered": 1},
        {"publisher": b"a"},
    ],
    ids=lambda change: repr(change)[:30],
)
def test_batch_with_a_field_out_of_range_is_refused_by_the_decoder(
    change: dict[str, object],
) -> None:
    wire = msgpack.encode(replace(batch(), **change))
    with pytest.raises(ValidationError):
        msgpack.decode(wire, type=RecordBatch)


# -- ids of batches ----------------------------------------------------------------------------


def test_id_has_256_bits() -> None:
    assert len(batch().id) == ID_BYTES == 32
    assert ID_BITS == 256


def test_id_of_a_batch_is_stable() -> None:
    record = BatchRecord(
        b"hello", time=1_700_000_000_000_000, key=b"k", headers={"lang": "en", "kind": "greeting"}
    )
    made = RecordBatch.of([record], publisher="ann", first=7, topic="news")
    assert made.id.hex() == PINNED


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
    made = batch(b"x", first=7)
    changed = replace(made, **change)
    assert changed.id_in(TOPIC) != made.id
    assert not changed.is_genuine(TOPIC)


@pytest.mark.parametrize(
    "change",
    [
        {"payload": b"hello!"},
        {"payload": b""},
        {"time": 8},
        {"key": b"l"},
        {"key": b""},
        {"key": None},
        {"headers": {}},
        {"headers": {"lang": "de"}},
        {"headers": {"kind": "en"}},
    ],
    ids=str,
)
def test_id_covers_every_field_of_a_record(change: dict[str, object]) -> None:
    record = BatchRecord(b"hello", time=7, key=b"k", headers={"lang": "en"})
    one, other = (
        RecordBatch.of([each], publisher="a", first=0, topic=TOPIC)
        for each in (record, replace(record, **change))
    )
    assert one.id != other.id


def test_carried_id_does_not_change_the_id() -> None:
    made = batch()
    assert replace(made, id=WRONG_ID).id_in(TOPIC) == made.id


@given(st.text("ab", max_size=6), st.integers(0, 6), st.integers(0, 6))
def test_border_between_topic_and_publisher_changes_the_id(text: str, one: int, other: int) -> None:
    assume(text[:one] != text[:other])
    ids = {RecordBatch(text[place:], 0, 1, b"x").id_in(text[:place]) for place in (one, other)}
    assert len(ids) == 2


short_texts = st.text("ab\0\1", max_size=3)
any_fields = st.tuples(
    short_texts,
    short_texts,
    st.integers(0, 300) | st.integers(0, NUMBER_MAX),
    st.integers(1, RECORDS_MAX),
    st.binary(max_size=3) | st.text("\0\1\2ab", max_size=3).map(str.encode),
    st.booleans(),
)


@given(any_fields, any_fields)
def test_different_batches_have_different_ids(
    one: tuple[str, str, int, int, bytes, bool], other: tuple[str, str, int, int, bytes, bool]
) -> None:
    assume(one != other)
    ids = {RecordBatch(*fields).id_in(topic) for topic, *fields in (one, other)}
    assert len(ids) == 2


def test_T10_batch_is_genuine_only_under_the_id_of_its_fields() -> None:
    made = batch()
    assert made.is_genuine(TOPIC)
    assert not made.is_genuine("other")
    assert not replace(made, id=b"").is_genuine(TOPIC)
    assert not replace(made, id=WRONG_ID).is_genuine(TOPIC)
    assert not replace(made, body=batch(b"bye").body).is_genuine(TOPIC)


@pytest.mark.parametrize("carried", [b"", b"short", WRONG_ID])
def test_T10_batch_with_id_is_genuine_whatever_id_it_carried(carried: bytes) -> None:
    made = batch()
    assert replace(made, id=carried).with_id(TOPIC) == made


OUT_OF_RANGE = [
    {"first": -1},
    {"first": NUMBER_MAX + 1},
    {"first": 1 << 64},
    {"count": 0},
    {"count": -1},
    {"count": RECORDS_MAX + 1},
    {"count": 1 << 16},
]


@pytest.mark.parametrize("change", OUT_OF_RANGE, ids=str)
@pytest.mark.parametrize("made", [batch(), opaque_batch(WRONG_ID)], ids=["complete", "opaque"])
def test_batch_with_numbers_out_of_range_is_neither_genuine_nor_acceptable(
    made: RecordBatch, change: dict[str, int]
) -> None:
    assert made.is_genuine(TOPIC)
    assert made.is_acceptable
    changed = replace(made, **change)
    assert not changed.is_genuine(TOPIC)
    assert not changed.is_acceptable


@pytest.mark.parametrize(
    "change", [{"publisher": "no name"}, {"publisher": ""}, {"body": bytes(BODY_BYTES_MAX + 1)}]
)
def test_genuine_batch_that_no_decoder_accepts_is_not_acceptable(
    change: dict[str, object],
) -> None:
    changed = replace(batch(), **change).with_id(TOPIC)
    assert changed.is_genuine(TOPIC)
    assert not changed.is_acceptable


def test_batch_whose_last_number_is_out_of_range_is_not_genuine() -> None:
    made = batch_of(b"", b"", first=NUMBER_MAX)
    assert made.id == made.id_in(TOPIC)
    assert not made.is_genuine(TOPIC)
    assert not made.is_acceptable


def test_largest_numbers_are_genuine() -> None:
    made = batch_of(*[b""] * RECORDS_MAX, first=NUMBER_MAX + 1 - RECORDS_MAX)
    assert made.is_genuine(TOPIC)
    assert made.is_acceptable


# -- opaque batches ----------------------------------------------------------------------------


def test_opaque_batch_keeps_its_id_and_has_no_records() -> None:
    made = opaque_batch(WRONG_ID)
    assert made.with_id(TOPIC) is made
    assert made.is_genuine(TOPIC)
    assert (made.records(), made.publications()) == ((), [])


@pytest.mark.parametrize("size", [0, 1, 31, 33])
def test_opaque_batch_with_an_invalid_id_is_not_genuine_until_it_gets_one(size: int) -> None:
    made = opaque_batch(b"x" * size)
    assert not made.is_genuine(TOPIC)
    assert made.with_id(TOPIC).is_genuine(TOPIC)


@pytest.mark.parametrize(
    "each",
    [
        batch(),
        batch(b"", first=7),
        opaque_batch(WRONG_ID),
        opaque_batch(b"short"),
        replace(batch(), id=WRONG_ID),
        replace(batch(), count=2),
        replace(batch(), count=0),
        replace(batch(), first=-1),
        replace(batch(), first=1 << 63),
        *(replace(batch(), body=body).with_id(TOPIC) for body in (b"\xc1", b"\x91\x91\xc0")),
        replace(batch(), count=2).with_id(TOPIC),
    ],
)
def test_verified_records_are_those_of_a_genuine_readable_batch(each: RecordBatch) -> None:
    records: tuple[BatchRecord, ...] | None = None
    if each.is_genuine(TOPIC):
        with suppress(ValueError):
            records = each.records()
    assert each.verified_records(TOPIC) == records
    assert each.verified_records("other") == (records if not each.body else None)


# -- records as a reader sees them -------------------------------------------------------------


def test_record_id_is_the_batch_id_and_the_index() -> None:
    made = batch_of(*[b"x"] * RECORDS_MAX)
    ids = [made.record_id(index) for index in range(made.count)]
    assert ids == made.record_ids()
    assert {len(each) for each in ids} == {ID_BYTES}
    assert {batch_part(each) for each in ids} == {made.id[:30]} == {batch_part(made.id)}
    assert [int.from_bytes(each[30:], "big") for each in ids] == list(range(RECORDS_MAX))


def test_publications_of_a_batch_have_consecutive_numbers_and_their_ids() -> None:
    records = [
        BatchRecord(b"one", time=5, key=b"k", headers={"a": "b"}),
        BatchRecord(b"two"),
        BatchRecord(b""),
    ]
    made = RecordBatch.of(records, publisher="ann", first=7, topic=TOPIC)
    assert made.publications() == [
        Publication(
            publisher="ann",
            seq=7,
            payload=b"one",
            time=5,
            key=b"k",
            headers={"a": "b"},
            id=made.record_id(0),
        ),
        Publication(publisher="ann", seq=8, payload=b"two", id=made.record_id(1)),
        Publication(publisher="ann", seq=9, payload=b"", id=made.record_id(2)),
    ]


def test_publications_of_an_invalid_batch_are_an_error() -> None:
    with pytest.raises(ValueError, match="1 records in a batch of 2"):
        with_rows([[b"x"]], count=2).publications()


def test_size_counts_the_body() -> None:
    made = batch(b"hello")
    assert made.size_bytes == OVERHEAD_BYTES + len(made.body)
    assert opaque_batch(WRONG_ID).size_bytes == OVERHEAD_BYTES


# -- limits of a record ------------------------------------------------------------------------

RECORD = BatchRecord(b"x")
LARGEST = BatchRecord(
    bytes(PAYLOAD_BYTES_MAX),
    time=NUMBER_MAX,
    key=bytes(KEY_BYTES_MAX),
    headers={"h": "x" * (HEADERS_BYTES_MAX - 1)},
)
REFUSED = {
    "long payload": {"payload": bytes(PAYLOAD_BYTES_MAX + 1)},
    "long key": {"key": bytes(KEY_BYTES_MAX + 1)},
    "long headers": {"headers": {"h": "x" * HEADERS_BYTES_MAX}},
    "many headers": {"headers": {str(n): "" for n in range(HEADERS_MAX + 1)}},
    "lone surrogate": {"headers": {"h": "\ud800"}},
    "large time": {"time": NUMBER_MAX + 1},
    "negative time": {"time": -1},
}


def test_largest_record_is_accepted_and_readable() -> None:
    check_record(LARGEST)
    assert RecordBatch.of([LARGEST], publisher="a", first=0, topic=TOPIC).records() == (LARGEST,)


@pytest.mark.parametrize("fields", REFUSED.values(), ids=REFUSED)
def test_record_beyond_a_limit_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(MessageError):
        check_record(replace(RECORD, **fields))


# -- division of records and of batches --------------------------------------------------------


def split(records: list[BatchRecord], first: int = 5) -> list[RecordBatch]:
    return list(RecordBatch.split(records, publisher="a", first=first, topic=TOPIC))


@given(st.lists(st.integers(0, 200_000), max_size=30), st.integers(0, 600))
def test_division_keeps_all_records_in_order_within_the_limits(
    sizes: list[int], small: int
) -> None:
    records = [BatchRecord(bytes(size), time=n) for n, size in enumerate([*sizes, *[9] * small])]
    batches = split(records)
    assert list(chain.from_iterable(each.records() for each in batches)) == records
    assert [each.first for each in batches[:1]] == [5] * bool(records)
    assert all(one.end == other.first for one, other in pairwise(batches))
    for each in batches:
        assert len(each.body) <= BATCH_BYTES_MAX
        assert each.count <= RECORDS_MAX
        rows = each.records()
        assert each == RecordBatch.of(rows, publisher="a", first=each.first, topic=TOPIC)
    assert split(records) == batches


@given(st.lists(st.integers(0, 300_000), max_size=12), st.integers(0, 12))
def test_division_continues_where_a_batch_ended(sizes: list[int], cut: int) -> None:
    records = [BatchRecord(bytes(size)) for size in sizes]
    batches = split(records)
    done = sum(each.count for each in batches[:cut])
    assert split(records[done:], 5 + done) == batches[cut:]


@pytest.mark.parametrize("count", [1, 15, 16, 255, 256])
def test_division_fills_batches_up_to_256_records(count: int) -> None:
    assert [each.count for each in split([RECORD] * count)] == [count]


def test_full_batch_begins_the_next_one() -> None:
    assert [each.count for each in split([RECORD] * 600)] == [256, 256, 88]


def test_division_fills_batches_up_to_512_kibibytes() -> None:
    record = BatchRecord(bytes(8192))
    fitting = (BATCH_BYTES_MAX - 3) // len(msgpack.encode(record))  # 3: header of the array
    batches = split([record] * (2 * fitting + 1))
    assert [each.count for each in batches] == [fitting, fitting, 1]
    assert all(len(each.body) <= BATCH_BYTES_MAX for each in batches)


def test_largest_record_is_a_batch_of_its_own() -> None:
    batches = split([RECORD, LARGEST, RECORD])
    assert [each.count for each in batches] == [1, 1, 1]
    assert BATCH_BYTES_MAX < len(batches[1].body) <= BODY_BYTES_MAX
    assert batches[1].records() == (LARGEST,)


def test_no_records_make_no_batch() -> None:
    assert split([]) == []


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 300))
def test_chunks_hold_all_batches_in_order_within_the_size(sizes: list[int], size: int) -> None:
    batches = [batch(bytes(each), first=n) for n, each in enumerate(sizes)]
    chunks = list(in_chunks(batches, size))
    assert list(chain.from_iterable(chunks)) == batches
    assert all(len(c) == 1 or sum(each.size_bytes for each in c) <= size for c in chunks)
    for one, other in pairwise(chunks):
        assert sum(each.size_bytes for each in (*one, other[0])) > size


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([b"\0charter"], True),
        ([b"\0"], True),
        *(([], False), ([b"\0charter"] * 2, False)),
        *(([b"key"], False), ([b""], False), ([None], False)),
    ],
)
def test_only_a_single_record_with_a_reserved_key_is_reserved(
    keys: list[bytes | None], *, expected: bool
) -> None:
    assert is_reserved([BatchRecord(b"", 5, key) for key in keys]) is expected
