"""Records: pages of stored publications, of which no invalid row is accepted (T10)."""

from __future__ import annotations

import pytest
from msgspec import Raw
from msgspec.msgpack import encode
from msgspec.structs import replace

from skipring.core.limits import PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX
from skipring.core.publications import Publication
from skipring.core.records import decode_page, encoded
from tests.support.backfill import rows_of

TOPIC = "news"
ROWS = tuple(
    Publication(publisher="p", seq=seq, payload=b"%d" % seq).with_id(TOPIC) for seq in range(3)
)
IDS = b"".join(row.id for row in ROWS)


def test_page_has_publications_ids_and_stored_bytes() -> None:
    page = decode_page(rows_of(ROWS), IDS)
    assert page is not None
    assert page.publications == tuple(replace(row, id=b"") for row in ROWS)
    assert page.ids == IDS
    assert page.encoded is not None
    assert page.encoded.sizes == [len(encoded(row)) for row in ROWS]
    assert bytes(page.encoded.data) == b"".join(map(encoded, ROWS))


@pytest.mark.parametrize(
    "row",
    [b"\xc0", encode(["p", -1, b"x", 0, None, {}]), encode("text"), encode([1, 2])],
    ids=["nil", "number below 0", "text", "wrong types"],
)
def test_unreadable_row_is_omitted_with_its_id(row: bytes) -> None:
    data = encode([Raw(encoded(ROWS[0])), Raw(row), Raw(encoded(ROWS[2]))])
    page = decode_page(data, IDS)
    assert page is not None
    assert [each.seq for each in page.publications] == [0, 2]
    assert page.ids == ROWS[0].id + ROWS[2].id


def test_row_beyond_the_largest_record_is_omitted() -> None:
    long = encode(["p", 1, bytes(RECORD_BYTES_MAX), 0, None, {}])
    page = decode_page(encode([Raw(encoded(ROWS[0])), Raw(long)]), IDS[:64])
    assert page is not None
    assert [each.seq for each in page.publications] == [0]


@pytest.mark.parametrize(
    ("data", "ids"),
    [
        (b"\xc1", b""),
        (rows_of(ROWS)[:-1], IDS),
        (rows_of(ROWS), IDS[:-32]),
        (rows_of([replace(ROWS[0], payload=None)]), IDS[:32]),
        (rows_of([replace(ROWS[0], publisher="not a name")]), IDS[:32]),
        (rows_of([replace(ROWS[0], payload=bytes(PAYLOAD_BYTES_MAX + 1))]), IDS[:32]),
    ],
    ids=["no MessagePack", "cut off", "fewer ids", "no payload", "wrong name", "long payload"],
)
def test_invalid_page_is_refused(data: bytes, ids: bytes) -> None:
    assert decode_page(data, ids) is None
