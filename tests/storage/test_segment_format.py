"""Format of segment files: headers, entries, footers and the running digest."""

from __future__ import annotations

from functools import partial
from itertools import accumulate

import pytest
from msgspec import msgpack

from skipring.core.batches import BODY_BYTES_MAX
from skipring.core.log import LogEntry
from skipring.storage.segment_format import (
    ENTRY_BYTES_MAX,
    FOOTERS,
    HEADER_BYTES_MAX,
    HEADERS,
    ID_AT,
    START_OF_CHAIN,
    TRAILER_BYTES,
    SegmentFooter,
    SegmentHeader,
    decode_entry,
    encode_entry,
    encode_footer,
    entry_bytes,
    footer_bytes,
)
from skipring.storage.statistics import SegmentStatistics
from skipring.storage.topic_log import next_chain
from tests.storage.logs import SESSION, batch

HEADER = SegmentHeader("news", 7, b"c" * 16)
ENTRY = LogEntry(7, b"d" * 16, batch(40))
DATA = encode_entry(ENTRY) + ENTRY.batch.body


def footer() -> SegmentFooter:
    return SegmentFooter(
        header=HEADER,
        at=100,
        ids=b"i" * 32,
        positions=b"p" * 4,
        offsets=b"o" * 4,
        end=9,
        chain=b"e" * 16,
        owner="a",
        newest=[8],
        statistics=SegmentStatistics(b"t", 5, 6),
    )


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_entry_is_decoded_at_its_position() -> None:
    assert decode_entry(b"xyz" + DATA + b"rest", 3) == ENTRY
    assert entry_bytes(b"xyz" + DATA, 3) == len(DATA)
    assert DATA[ID_AT : ID_AT + 32] == ENTRY.batch.id
    assert entry_bytes(b"xyz" + DATA, 2) == entry_bytes(DATA[:50]) == 0


def test_damaged_entry_is_refused_at_every_byte() -> None:
    for place in range(len(DATA)):
        assert decode_entry(flipped(DATA, place)) is None
    for size in range(len(DATA)):
        assert decode_entry(DATA[:size]) is None


def test_largest_batch_fits_into_an_entry() -> None:
    assert BODY_BYTES_MAX + 1024 < ENTRY_BYTES_MAX


@pytest.mark.parametrize("topic", ["n", "\U0001f600" * 255])
def test_header_is_decoded(topic: str) -> None:
    header = SegmentHeader(topic, 1 << 60, bytes(16))
    data = HEADERS.encode(header)
    assert len(data) <= HEADER_BYTES_MAX
    assert HEADERS.decode(data + b"rest") == (header, len(data))


def test_damaged_header_is_refused_at_every_byte() -> None:
    data = HEADERS.encode(HEADER)
    for place in range(len(data)):
        assert HEADERS.decode(flipped(data, place)) is None
        assert HEADERS.decode(data[:place]) is None


def test_size_of_a_footer_is_in_its_last_bytes() -> None:
    data = encode_footer(footer())
    assert footer_bytes(data[-TRAILER_BYTES:]) == len(data)
    assert FOOTERS.decode(data) == (footer(), len(data) - TRAILER_BYTES)
    assert footer_bytes(data[-TRAILER_BYTES:-1]) == footer_bytes(bytes(TRAILER_BYTES)) == 0


def test_damaged_block_is_refused_at_every_byte() -> None:
    data = FOOTERS.encode(footer())
    for place in range(len(data)):
        assert FOOTERS.decode(flipped(data, place)) is None
        assert FOOTERS.decode(data[:place]) is None
        assert FOOTERS.decode(data[place + 1 :]) is None


def test_block_of_another_kind_or_with_unknown_fields_is_refused() -> None:
    assert HEADERS.decode(FOOTERS.encode(footer())) is None
    fields = msgpack.decode(msgpack.encode(footer()))
    assert FOOTERS.decode(FOOTERS.encode(fields)) is not None
    assert FOOTERS.decode(FOOTERS.encode([*fields, "surplus"])) is None


def test_chain_depends_on_the_order_of_batches() -> None:
    a, b, c, d, e = (batch(first).id for first in range(0, 10, 2))

    def chains(*ids: bytes) -> list[bytes]:
        return list(accumulate(ids, partial(next_chain, session=SESSION), initial=START_OF_CHAIN))

    one, other = chains(a, b, c, d, e), chains(a, d, c, b, e)
    assert one[:2] == other[:2]
    assert all(x != y for x, y in zip(one[2:], other[2:], strict=True))
