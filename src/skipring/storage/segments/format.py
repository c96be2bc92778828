"""Format of a segment file: a header, entries, and a footer once the segment is sealed.

An entry is a batch with its offset in the log. It begins with a marker, so a scan finds the entries
behind damaged bytes. Header, entries and footer have a CRC-32, which every read verifies.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct as Layout
from typing import Final, NamedTuple
from zlib import crc32

from msgspec import DecodeError, Struct, msgpack

from skipring.core.batches import RECORDS_MAX, RecordBatch
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import ID_BYTES

MARKER: Final = b"\xf5SRB"
DIGEST_BYTES: Final = 16
START_OF_CHAIN: Final = bytes(DIGEST_BYTES)
ENTRY_BYTES_MAX: Final = 1 << 20  # Limit: above RECORD_BYTES_MAX and the fields of an entry.
TRAILER_BYTES: Final = 16
HEADER_BYTES_MAX: Final = 4096  # Limit: a topic has at most 1,020 bytes.

_MAGIC: Final = b"skiplog1"  # the last byte is the version
_END_MAGIC: Final = b"skipend1"
_PREFIX: Final = Layout("<4sII")  # marker, size of the rest, CRC-32 of the rest
_FIXED: Final = Layout(f"<QHH{ID_BYTES}s{DIGEST_BYTES}s")  # offset, count, head size, id, digest
_BLOCK: Final = Layout("<II")  # size and CRC-32 of a header
_TRAILER: Final = Layout("<II8s")  # size and CRC-32 of the footer before it, _END_MAGIC
_PLACE: Final = Layout("<4sIIQH")  # of an entry: _PREFIX, offset, count
ID_AT: Final = _PREFIX.size + 12  # position of the id in an entry
_ENCODER: Final = msgpack.Encoder()
_CHAIN: Final = blake2b(digest_size=DIGEST_BYTES, person=b"skipring chain")


class SegmentHeader(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Identity of a segment."""

    topic: TopicId
    start: int  # offset of the first record
    chain: bytes  # running digest before the first entry


class _Head(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """Fields of a batch besides its body, id and count."""

    publisher: NodeId
    first: int
    unordered: bool


class SegmentFooter(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Index of a sealed segment."""

    header: SegmentHeader
    at: int  # position of the footer; it differs if bytes were inserted or removed
    ids: bytes
    positions: bytes  # of the entries in the file, 4 bytes each
    offsets: bytes  # of their first records, relative to the start, 4 bytes each
    end: int  # offset after the last record
    chain: bytes  # running digest after the last entry
    newest: list[tuple[NodeId, int, int]]  # publisher, incarnation, newest number


class Entry(NamedTuple):
    """Batch with its place in a log and the running digest after it."""

    offset: int
    chain: bytes
    batch: RecordBatch

    @property
    def end(self) -> int:
        """Return the offset after the last record."""
        return self.offset + self.batch.count


class EntryPlace(NamedTuple):
    """Size and offsets of an entry; its checksum is not verified."""

    size: int
    offset: int
    end: int  # offset after the last record


_HEADERS: Final = msgpack.Decoder(SegmentHeader)
_FOOTERS: Final = msgpack.Decoder(SegmentFooter)
_HEADS: Final = msgpack.Decoder(_Head)


def next_chain(chain: bytes, batch_id: bytes) -> bytes:
    """Return the running digest after one more batch."""
    state = _CHAIN.copy()
    state.update(chain + batch_id)
    return state.digest()


def encode_header(header: SegmentHeader) -> bytes:
    """Return the bytes at the start of a segment file."""
    data = _ENCODER.encode(header)
    return _MAGIC + _BLOCK.pack(len(data), crc32(data)) + data


def decode_header(data: bytes) -> tuple[SegmentHeader, int] | None:
    """Return the header at the start of a segment file and its size; None if it is damaged."""
    begin = len(_MAGIC) + _BLOCK.size
    if len(data) < begin or not data.startswith(_MAGIC):
        return None
    size, checksum = _BLOCK.unpack_from(data, len(_MAGIC))
    block = data[begin : begin + size]
    if len(block) != size or crc32(block) != checksum:
        return None
    try:
        return _HEADERS.decode(block), begin + size
    except DecodeError:
        return None


def encode_entry(entry: Entry) -> bytes:
    """Return the bytes of an entry before the body of the batch."""
    batch = entry.batch
    head = _ENCODER.encode(_Head(batch.publisher, batch.first, batch.unordered))
    fixed = _FIXED.pack(entry.offset, batch.count, len(head), batch.id, entry.chain) + head
    size = len(fixed) + len(batch.body)
    return _PREFIX.pack(MARKER, size, crc32(batch.body, crc32(fixed))) + fixed


def decode_entry(data: bytes | memoryview, at: int = 0) -> Entry | None:
    """Return the entry at a position; None if there is no intact entry."""
    place = decode_place(data, at)
    if place is None:
        return None
    fixed_at, end = at + _PREFIX.size, at + place.size
    if end > len(data) or crc32(data[fixed_at:end]) != _PREFIX.unpack_from(data, at)[2]:
        return None
    offset, count, head_size, key, chain = _FIXED.unpack_from(data, fixed_at)
    body_at = fixed_at + _FIXED.size + head_size
    try:
        head = _HEADS.decode(data[fixed_at + _FIXED.size : body_at])
    except DecodeError:
        return None
    body = bytes(data[body_at:end])
    batch = RecordBatch(head.publisher, head.first, count, body, head.unordered, key)
    return Entry(offset, chain, batch)


def decode_place(data: bytes | memoryview, at: int) -> EntryPlace | None:
    """Return size and offsets of the entry at a position; None if no entry begins there."""
    if at + _PREFIX.size + _FIXED.size > len(data):
        return None
    marker, size, _, offset, count = _PLACE.unpack_from(data, at)
    is_entry = marker == MARKER and _FIXED.size <= size <= ENTRY_BYTES_MAX
    if not is_entry or not 0 < count <= RECORDS_MAX:
        return None
    return EntryPlace(_PREFIX.size + size, offset, offset + count)


def entry_bytes(data: bytes | memoryview, at: int) -> int:
    """Return the size of the intact entry at a position."""
    size: int = _PREFIX.unpack_from(data, at)[1]
    return _PREFIX.size + size


def encode_footer(footer: SegmentFooter) -> bytes:
    """Return the bytes at the end of a sealed segment file."""
    data = _ENCODER.encode(footer)
    return data + _TRAILER.pack(len(data), crc32(data), _END_MAGIC)


def footer_bytes(trailer: bytes) -> int:
    """Return the size of a footer with its trailer, from the end of a file; 0 if there is none."""
    if len(trailer) != TRAILER_BYTES or not trailer.endswith(_END_MAGIC):
        return 0
    size: int = _TRAILER.unpack(trailer)[0]
    return size + TRAILER_BYTES


def decode_footer(data: bytes, at: int) -> SegmentFooter | None:
    """Return the footer in the last bytes of a file, which begin at ``at``; None if damaged."""
    size = footer_bytes(data[-TRAILER_BYTES:])
    block = memoryview(data)[:-TRAILER_BYTES]
    if not size or size != len(data):
        return None
    if crc32(block) != _TRAILER.unpack_from(data, len(block))[1]:
        return None
    try:
        footer = _FOOTERS.decode(block)
    except DecodeError:
        return None
    return footer if footer.at == at else None
