"""Segments: the stored format, which must stay readable, and the effect of damage."""

import pytest

from skipring.core.publications import Publication, encoded
from skipring.storage.segment import PACK_BYTES, Head, Segment, SegmentBuilder
from tests.storage.stored import NEWS, publication

# Written by version 1, from publications 5 and 6 of ``golden``.
VERSION_1 = bytes.fromhex(
    "535250310900000094a46e6577730305026f4b79830ac8af8f5e40303ec03ee3526cccbdabc4e046e4cdc4b7"
    "871f2585329de368f44c2d95706f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f"
    "6f0000000013000000130000000a00000096a3616e6e07c402686909c4016b81a161a16296a3626f6200c000"
    "c080535250310900000094a46e6577730305026f4b79830ac8af8f6283d85b949887a33c7f300f6dbfbf3b2e"
    "847efa38952abd1a4cba37eb53e2cc"
)


def golden() -> SegmentBuilder:
    return draft(
        Publication(publisher="ann", seq=7, payload=b"hi", time=9, key=b"k", headers={"a": "b"}),
        Publication(publisher="bob", seq=0, payload=None, id=b"o" * 32),
        start=5,
    )


def draft(*rows: Publication, start: int = 0) -> SegmentBuilder:
    made = SegmentBuilder(NEWS, start)
    for row in rows:
        made.append(row.with_id(NEWS).id, encoded(row))
    return made


def parsed(body: bytes) -> Segment:
    pack = Segment.parse(body)
    assert pack is not None
    return pack


def test_segment_of_version_1_is_read() -> None:
    assert golden().packed(epoch=3) == VERSION_1
    pack = parsed(VERSION_1)
    assert pack.head == Head(NEWS, 3, 5, 2)
    assert [pack.publication(offset) for offset in (5, 6)] == [
        golden().publication(offset) for offset in (5, 6)
    ]
    assert list(pack.entries()) == list(golden().entries())
    assert list(pack.numbers()) == list(golden().numbers()) == [("ann", 7), ("bob", 0)]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_damage_to_any_byte_serves_nothing_wrong(count: int) -> None:
    rows = [publication(seq) for seq in range(count)]
    body = draft(*rows).packed(0)
    for place in range(len(body)):
        pack = parsed(body[:place] + bytes([body[place] ^ 0x10]) + body[place + 1 :])
        assert not pack.is_whole
        left = [pack.publication(offset) for offset in range(count)]
        assert sum(row is None for row in left) <= 1
        assert all(row in (None, rows[offset]) for offset, row in enumerate(left))
        assert [offset for _, offset in pack.entries()] == [
            offset for offset, row in enumerate(left) if row is not None
        ]


def test_truncated_segment_serves_nothing_wrong() -> None:
    rows = [publication(seq) for seq in range(3)]
    body = draft(*rows).packed(0)
    for end in range(len(body)):
        pack = Segment.parse(body[:end])
        if pack is not None:
            left = [pack.publication(offset) for offset in range(3)]
            assert all(row in (None, rows[offset]) for offset, row in enumerate(left))


def test_opaque_publication_is_served_only_from_an_intact_segment() -> None:
    opaque = Publication(publisher="a", seq=0, payload=None, id=b"o" * 32)
    body = draft(opaque, publication(1)).packed(0)
    assert parsed(body).publication(0) == opaque
    damaged = parsed(body[:-1] + bytes([body[-1] ^ 1]))
    assert [damaged.publication(offset) for offset in (0, 1)] == [None, publication(1)]


@pytest.mark.parametrize("body", [b"", b"SRP1", b"SRP1\xff\xff\xff\xff", b"nonsense" * 100])
def test_invalid_segment_is_read_as_none(body: bytes) -> None:
    assert Segment.parse(body) is None


def test_builder_accepts_at_least_one_row_and_stops_when_full() -> None:
    size = PACK_BYTES // 4
    rows = [bytes([place]) * size for place in range(6)]
    ids = [bytes([place]) * 32 for place in range(6)]
    made = SegmentBuilder(NEWS, 0)
    assert made.fill(b"".join(ids[:3]), b"".join(rows[:3]), [size] * 3) == 3
    assert not made.is_full
    assert made.fill(b"".join(ids[3:]), b"".join(rows[3:]), [size] * 3) == 1
    assert made.is_full
    assert [key for key, _ in made.entries()] == ids[:4]
    assert [made.data(offset) for offset in range(4)] == rows[:4]
    large = 2 * PACK_BYTES
    assert SegmentBuilder(NEWS, 0).fill(b"".join(ids), bytes(6 * large), [large] * 6) == 1


def test_row_that_fills_a_segment_is_its_last() -> None:
    sizes = [1000 + 37 * place for place in range(200)]
    rows = [bytes([place]) * size for place, size in enumerate(sizes)]
    ids = [place.to_bytes(32, "big") for place in range(200)]
    made = SegmentBuilder(NEWS, 0)
    count = made.fill(b"".join(ids), b"".join(rows), sizes)
    assert 1 < count < len(rows)
    assert made.is_full
    assert made.size_bytes - sizes[count - 1] < PACK_BYTES
    single = SegmentBuilder(NEWS, 0)
    while not single.is_full:  # as many as if they had been added singly
        single.append(ids[single.end], rows[single.end])
    assert single.end == made.end == count
    assert single.packed(0) == made.packed(0)


def test_invalid_id_is_refused() -> None:
    with pytest.raises(AssertionError, match="an invalid id"):
        SegmentBuilder(NEWS, 0).append(b"short", b"row")
    with pytest.raises(AssertionError, match="an invalid id"):
        SegmentBuilder(NEWS, 0).fill(b"i" * 32, b"tworows", [3, 4])


def test_segment_returns_rows_by_offsets_and_first_id_bytes() -> None:
    rows = [publication(seq) for seq in range(200)]
    made = draft(*rows, start=100)
    pack = parsed(made.packed(0))
    for start, end, firsts in ((0, 999, range(256)), (103, 231, range(128)), (140, 99, range(256))):
        wanted = [
            (100 + place, row.id, encoded(row))
            for place, row in enumerate(rows)
            if start <= 100 + place < end and row.id[0] in firsts
        ]
        for is_checked in (True, False):
            for segment in (made, pack):
                found = segment.stored(start, end, firsts, is_checked=is_checked)
                assert list(zip(*found, strict=True)) == wanted
                for count in (0, 1, 50, 500):
                    first = segment.stored(
                        start, end, firsts, count_max=count, is_checked=is_checked
                    )
                    assert list(zip(*first, strict=True)) == wanted[:count]


@pytest.mark.parametrize("bytes_max", [1, 400, 401, 10**6])
def test_contiguous_range_of_a_segment_equals_its_rows(bytes_max: int) -> None:
    rows = [publication(seq, size=seq) for seq in range(20)]
    pack = parsed(bytes(draft(*rows, start=100).packed(0)))
    for start, end in ((100, 120), (100, 101), (107, 119), (119, 120)):
        found = pack.stretch(start, end, bytes_max)
        assert found is not None
        wanted = pack.stored(start, end, range(256), count_max=found.length)
        assert (found.ids, found.data) == (b"".join(wanted.ids), b"".join(wanted.data))
        assert len(found.data) - len(wanted.data[-1]) < bytes_max
        assert len(found.data) >= bytes_max or found.length == end - start


def test_damaged_segment_has_no_contiguous_range() -> None:
    body = bytearray(draft(*(publication(seq) for seq in range(20))).packed(0))
    body[len(body) // 2] ^= 1
    assert parsed(bytes(body)).stretch(0, 20, 10**6) is None


def test_limited_read_of_a_damaged_segment_returns_intact_rows() -> None:
    rows = [publication(seq) for seq in range(20)]
    body = draft(*rows).packed(0)
    damaged = parsed(body.replace(rows[1].payload or b"", b"?" * len(rows[1].payload or b"")))
    found = damaged.stored(0, 20, range(256), count_max=3)
    assert found.offsets == [0, 2, 3]
    assert found.data == [encoded(rows[offset]) for offset in (0, 2, 3)]
