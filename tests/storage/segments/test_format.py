"""Format of segment files: headers, entries, footers and the running digest."""

from __future__ import annotations

from itertools import accumulate

import pytest
from msgspec import msgpack

from skipring.core.publications import RECORD_BYTES_MAX
from skipring.storage.segments.format import (
    ENTRY_BYTES_MAX,
    HEADER_BYTES_MAX,
    START_OF_CHAIN,
    TRAILER_BYTES,
    Entry,
    SegmentFooter,
    SegmentHeader,
    decode_entry,
    decode_footer,
    decode_header,
    decode_place,
    encode_entry,
    encode_footer,
    encode_header,
    entry_bytes,
    footer_bytes,
    next_chain,
)
from tests.storage.segments.logs import batch

HEADER = SegmentHeader("news", 7, b"c" * 16)
ENTRY = Entry(7, b"d" * 16, batch(40))
DATA = encode_entry(ENTRY) + ENTRY.batch.body


def footer(at: int = 100) -> SegmentFooter:
    return SegmentFooter(
        header=HEADER,
        at=at,
        ids=b"i" * 32,
        positions=b"p" * 4,
        offsets=b"o" * 4,
        end=9,
        chain=b"e" * 16,
        newest=[("a", 0, 8)],
    )


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_entry_is_decoded_at_its_position() -> None:
    assert decode_entry(b"xyz" + DATA + b"rest", 3) == ENTRY
    assert entry_bytes(b"xyz" + DATA, 3) == len(DATA)
    place = decode_place(DATA, 0)
    assert place == (len(DATA), 7, 9)


def test_damaged_entry_is_refused_at_every_byte() -> None:
    for place in range(len(DATA)):
        assert decode_entry(flipped(DATA, place)) is None
    for size in range(len(DATA)):
        assert decode_entry(DATA[:size]) is None


def test_largest_batch_fits_into_an_entry() -> None:
    assert RECORD_BYTES_MAX + 1024 < ENTRY_BYTES_MAX


@pytest.mark.parametrize("topic", ["n", "\U0001f600" * 255])
def test_header_is_decoded(topic: str) -> None:
    header = SegmentHeader(topic, 1 << 60, bytes(16))
    data = encode_header(header)
    assert len(data) <= HEADER_BYTES_MAX
    assert decode_header(data + b"rest") == (header, len(data))


def test_damaged_header_is_refused_at_every_byte() -> None:
    data = encode_header(HEADER)
    for place in range(len(data)):
        assert decode_header(flipped(data, place)) is None
        assert decode_header(data[:place]) is None


def test_footer_is_decoded_only_at_its_position() -> None:
    data = encode_footer(footer())
    assert footer_bytes(data[-TRAILER_BYTES:]) == len(data)
    assert decode_footer(data, 100) == footer()
    assert decode_footer(data, 101) is None


def test_damaged_footer_is_refused_at_every_byte() -> None:
    data = encode_footer(footer())
    for place in range(len(data)):
        assert decode_footer(flipped(data, place), 100) is None
        assert decode_footer(data[place + 1 :], 100) is None


def test_footer_with_unknown_fields_is_refused() -> None:
    fields = msgpack.decode(msgpack.encode(footer()))
    assert decode_footer(encode_footer(fields), 100) == footer()
    assert decode_footer(encode_footer([*fields, "surplus"]), 100) is None


def test_chain_depends_on_the_order_of_batches() -> None:
    a, b, c, d, e = (batch(first).id for first in range(0, 10, 2))

    def chains(*ids: bytes) -> list[bytes]:
        return list(accumulate(ids, next_chain, initial=START_OF_CHAIN))

    one, other = chains(a, b, c, d, e), chains(a, d, c, b, e)
    assert one[:2] == other[:2]
    assert all(x != y for x, y in zip(one[2:], other[2:], strict=True))
