"""Pages of a log as rows: only records of batches that match their ids, at wanted offsets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skipring.core.batches import BatchRecord, RecordBatch, matching
from skipring.core.limits import NUMBER_MAX
from skipring.core.log_messages import LogPage, RecordFilter
from skipring.errors import MessageError
from skipring.spark.arrow import (
    HEADERS,
    PUBLICATION,
    ArrowRows,
    RowForm,
    RowPlace,
    entries,
    publication_schema,
)
from tests.spark.rings import TOPIC, made, publications_of

WITH_HEADERS = RowForm(schema=publication_schema("map"))
FIRST = 40  # offset of the first record
COUNT = 303
MADE = made(COUNT)
PLAIN = RecordBatch.of(
    [BatchRecord(b"plain"), BatchRecord(b"", key=b"", headers={"a": "b"})],
    publisher="other",
    first=(1 << 63) - 2,
    topic=TOPIC,
)
BATCHES = [*MADE, PLAIN]
PUBLICATIONS = publications_of(BATCHES)
END = FIRST + len(PUBLICATIONS)
SPOILT = 3  # the batch that a test changes; it has 20 records


def page(batches: Iterable[RecordBatch]) -> LogPage:
    batches = tuple(batches)
    offsets = [FIRST]
    for batch in batches:
        offsets.append(offsets[-1] + batch.count)
    return LogPage(request=1, next=None, offsets=tuple(offsets[:-1]), batches=batches)


def listing(batches: Iterable[RecordBatch]) -> LogPage:
    return page(replace(batch, body=b"") for batch in batches)


def rows_of(rows: ArrowRows) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rows.to_arrow(WITH_HEADERS, RowPlace(partition=5)).to_pylist()
    assert len(found) == len(rows)
    return found


# -- rows --------------------------------------------------------------------------------------


def test_each_record_is_a_row_with_all_its_fields() -> None:
    rows = rows_of(ArrowRows.of(TOPIC, page(BATCHES), WITH_HEADERS))
    for offset, (row, publication) in enumerate(zip(rows, PUBLICATIONS, strict=True), FIRST):
        time = row.pop("timestamp")
        assert row == {
            "key": publication.key,
            "value": publication.payload,
            "topic": TOPIC,
            "partition": 5,
            "offset": offset,
            "publisher": publication.publisher,
            "sequence": publication.seq,
            "id": publication.id,
            "headers": [(name, text.encode()) for name, text in publication.headers.items()],
        }
        if publication.time:
            assert time.timestamp() == pytest.approx(publication.time / 1e6)
        else:
            assert time is None


@given(st.integers(FIRST - 3, END + 3), st.integers(FIRST - 3, END + 3))
def test_only_records_at_wanted_offsets_are_rows(start: int, stop: int) -> None:
    rows = ArrowRows.of(TOPIC, page(BATCHES), wanted=range(start, stop))
    found = rows.to_arrow()
    wanted = range(max(start, FIRST), max(min(stop, END), start, FIRST))
    chosen = [PUBLICATIONS[offset - FIRST] for offset in wanted]
    assert found["offset"].to_pylist() == list(wanted)
    assert found["id"].to_pylist() == [each.id for each in chosen] == rows.ids
    assert found["sequence"].to_pylist() == [each.seq for each in chosen]
    assert found["value"].to_pylist() == [each.payload for each in chosen]
    listed = entries(TOPIC, listing(BATCHES), range(start, stop))
    assert listed == list(zip(wanted, rows.ids, strict=True))


# -- batches that are corrupt ------------------------------------------------------------------


def body_of(*records: object) -> bytes:
    return msgspec.msgpack.encode(records)


@pytest.mark.parametrize(
    "wrong",
    [
        {"publisher": "other"},
        {"first": 99_999},
        {"count": 19},
        {"body": MADE[SPOILT].body.replace(b"00000", b"00001")},
        {"body": b""},
        {"unordered": True},
        {"id": bytes(32)},
        {"id": b""},
    ],
    ids=str,
)
def test_batch_that_does_not_match_its_id_is_omitted(wrong: dict[str, Any]) -> None:
    intact = [batch for batch in BATCHES if batch is not BATCHES[SPOILT]]
    spoilt = replace(BATCHES[SPOILT], **wrong)
    given = [*BATCHES[:SPOILT], spoilt, *BATCHES[SPOILT + 1 :]]
    rows = ArrowRows.of(TOPIC, page(given), WITH_HEADERS)
    assert rows.batch_ids == [batch.id for batch in intact]
    assert rows.ids == [publication.id for publication in publications_of(intact)]
    assert len(rows_of(rows)) == len(rows.ids)


@pytest.mark.parametrize(
    "body",
    [
        b"\xc1",
        body_of([b"one"]),
        body_of([b"one"], [b"two"], [b"three"]),
        body_of([b"one"], ["text"]),
    ],
)
def test_batch_whose_body_cannot_be_decoded_is_omitted(body: bytes) -> None:
    unreadable = RecordBatch("maker", 0, 2, body).with_id(TOPIC)
    assert unreadable.is_genuine(TOPIC)
    assert ArrowRows.of(TOPIC, page([unreadable, PLAIN])).batch_ids == [PLAIN.id]


def test_batch_of_another_topic_is_omitted() -> None:
    assert len(ArrowRows.of("another", page(BATCHES))) == 0


def test_listed_batch_without_an_id_is_refused() -> None:
    nameless = replace(MADE[0], id=b"")
    with pytest.raises(MessageError, match="a batch without an id"):
        entries(TOPIC, listing([nameless]), range(100))


# -- chosen rows -------------------------------------------------------------------------------


def test_rows_without_batches_have_the_other_batches_once() -> None:
    seen = {MADE[0].id, MADE[3].id}
    rows = ArrowRows.of(TOPIC, page([*MADE, MADE[1]])).without_batches(seen)
    assert rows.batch_ids == [batch.id for batch in MADE if batch.id not in seen]


@given(st.sets(st.integers(0, COUNT - 1)))
def test_rows_are_excluded_and_selected_by_the_ids_of_records(places: set[int]) -> None:
    rows = ArrowRows.of(TOPIC, page(MADE))
    ids = frozenset(PUBLICATIONS[place].id for place in places)
    others = [place for place in range(COUNT) if place not in places]
    for chosen, expected in ((rows.only(ids), sorted(places)), (rows.without(ids), others)):
        found = chosen.to_arrow()
        assert chosen.ids == found["id"].to_pylist() == [PUBLICATIONS[i].id for i in expected]
        assert found["offset"].to_pylist() == [FIRST + place for place in expected]
        assert found["sequence"].to_pylist() == expected


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (RecordFilter(times=(PUBLICATIONS[50].time, NUMBER_MAX)), range(50, COUNT)),
        (RecordFilter(sequence=(7, 9)), range(7, 10)),
        (RecordFilter(keys=(b"k3", b"none"), sequence=(0, 20)), [3, 13]),
        (RecordFilter(publishers=("other",)), [COUNT, COUNT + 1]),
        (RecordFilter(keys=(b"",)), [COUNT + 1]),
        (RecordFilter(publishers=("absent",)), []),
    ],
)
def test_rows_pass_a_filter_on_columns_that_are_not_read(
    where: RecordFilter, expected: Iterable[int]
) -> None:
    rows = ArrowRows.of(TOPIC, page(BATCHES))
    form = RowForm(schema=pa.schema([PUBLICATION.field("id")]), where=where)
    assert form.columns > {"id"}
    found = rows.to_arrow(form)
    assert found.to_pydict() == {"id": [PUBLICATIONS[place].id for place in expected]}


def test_rows_without_payloads_have_the_other_fields() -> None:
    bare = [matching(batch, None, payloads=False) for batch in BATCHES]
    names = ("id", "timestamp", "key", "headers")
    form = RowForm(schema=pa.schema([WITH_HEADERS.schema.field(name) for name in names]))
    assert form.has_contents
    assert not form.has_payloads
    rows = ArrowRows.of(TOPIC, page(batch for batch in bare if batch is not None), form)
    expected = ArrowRows.of(TOPIC, page(BATCHES), WITH_HEADERS)
    assert rows.to_arrow(form) == expected.to_arrow(form)


def test_rows_of_a_listing_have_the_columns_of_their_batches() -> None:
    form = RowForm(schema=pa.schema([PUBLICATION.field(n) for n in ("id", "sequence", "offset")]))
    assert not form.has_contents
    rows = ArrowRows.of(TOPIC, listing(BATCHES), form)
    assert rows.to_arrow(form) == ArrowRows.of(TOPIC, page(BATCHES)).to_arrow(form)


def test_headers_are_lists_of_structures_or_maps() -> None:
    form = RowForm(schema=pa.schema([HEADERS]))
    rows = ArrowRows.of(TOPIC, page([PLAIN]), form)
    found = rows.to_arrow(form)["headers"].to_pylist()
    assert found == [[], [{"key": "a", "value": b"b"}]]


def test_pages_are_joined_into_portions() -> None:
    pages = [ArrowRows.of(TOPIC, page([batch])) for batch in MADE]
    (joined,) = ArrowRows.joined(pages)
    assert joined.ids == [key for rows in pages for key in rows.ids]
    assert list(ArrowRows.joined([])) == []
