"""Format of stored files: blocks with a checksum, and the entries of a segment.

A segment file is a header, then entries, then a footer once the segment is full. An entry begins
with a marker, so a scan finds the entries behind damaged bytes. Every read verifies a CRC-32. A
*gap* is an entry without a batch, in place of consecutive entries that were dropped. It has the
sessions in which they were stored, so a position among them can be verified (decision 0043).
"""

from __future__ import annotations

import sys
from struct import Struct as Layout
from typing import Final, Generic, TypeVar
from zlib import crc32

from msgspec import DecodeError, Struct, msgpack

from skipring.core.batches import RECORDS_MAX, RecordBatch
from skipring.core.limits import CHAIN_BYTES, SESSION_BYTES, TRIMMED_CHAIN, UNKNOWN_DIGEST
from skipring.core.log import LogEntry
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import ID_BYTES
from skipring.core.summaries import DIGEST_BYTES
from skipring.storage.statistics import SegmentStatistics

MARKER: Final = b"\xf5SRB"
START_OF_CHAIN: Final = bytes(DIGEST_BYTES)
ENTRY_BYTES_MAX: Final = 1 << 20  # Limit: above BODY_BYTES_MAX and the fields of an entry.
HEADER_BYTES_MAX: Final = 4096  # Limit: a topic has at most 1,020 bytes.

_BLOCK: Final = Layout("<8sII")  # kind, size and CRC-32 of the content
_TRAILER: Final = Layout("<I8s")  # size of the footer before it, its kind
TRAILER_BYTES: Final = _TRAILER.size
_PREFIX: Final = Layout("<4sII")  # marker, size and CRC-32 of the rest
_FIXED: Final = Layout(f"<QHH{ID_BYTES}s{DIGEST_BYTES}s")  # offset, count, head size, id, digest
ID_AT: Final = _PREFIX.size + 12  # position of the id in an entry
SESSION_AT: Final = ID_AT + ID_BYTES  # the first bytes of the digest
GAP_ID: Final = bytes(ID_BYTES)  # of a gap, whose body is the number of its records, then marks
_GAP_COUNT_BYTES: Final = 8
_SESSION_MARK: Final = Layout(f"<I{SESSION_BYTES}s")  # first offset from the gap's start, session

Content = TypeVar("Content", bound=Struct)


class BlockFormat(Generic[Content]):
    """Form of one structure in a file: kind, size, checksum and content."""

    def __init__(self, kind: bytes, content: type[Content]) -> None:
        self.kind: Final = kind  # 8 bytes, the last is the version
        self._decoder = msgpack.Decoder(content)

    def encode(self, content: Content) -> bytes:
        """Return the bytes of a block."""
        data = _ENCODER.encode(content)
        return _BLOCK.pack(self.kind, len(data), crc32(data)) + data

    def decode(self, data: bytes) -> tuple[Content, int] | None:
        """Return the content and size of the block at the start of data; None if damaged."""
        if len(data) < _BLOCK.size:
            return None
        kind, size, checksum = _BLOCK.unpack_from(data)
        block = data[_BLOCK.size : _BLOCK.size + size]
        if kind != self.kind or len(block) != size or crc32(block) != checksum:
            return None
        try:
            return self._decoder.decode(block), _BLOCK.size + size
        except DecodeError:
            return None


class SegmentHeader(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Identity of a segment."""

    topic: TopicId
    start: int  # offset of the first record
    chain: bytes  # running digest before the first entry


class SegmentFooter(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Index of a sealed segment."""

    header: SegmentHeader
    at: int  # position of the footer; it differs if bytes were inserted or removed
    ids: bytes
    positions: bytes  # of the entries in the file, 4 bytes each
    offsets: bytes  # of their first records, relative to the start, 4 bytes each
    end: int  # offset after the last record
    chain: bytes  # running digest after the last entry
    owner: NodeId  # the node of the store
    newest: list[int]  # the newest number of each incarnation of the owner
    statistics: SegmentStatistics


_ENCODER: Final = msgpack.Encoder()
HEADERS: Final = BlockFormat(b"skiplog1", SegmentHeader)
# A footer in the other byte order is not used, like a damaged one.
FOOTERS: Final = BlockFormat(b"skipen2" + sys.byteorder[:1].encode(), SegmentFooter)
_HEADS: Final = msgpack.Decoder(tuple[NodeId, int, bool])  # publisher, first number, unordered


def encode_entry(entry: LogEntry) -> bytes:
    """Return the bytes of an entry before the body of the batch."""
    batch = entry.batch
    head = _ENCODER.encode((batch.publisher, batch.first, batch.unordered))
    fixed = _FIXED.pack(entry.offset, batch.count, len(head), batch.id, entry.chain) + head
    size = len(fixed) + len(batch.body)
    return _PREFIX.pack(MARKER, size, crc32(batch.body, crc32(fixed))) + fixed


def encode_gap(start: int, end: int, chain: bytes, sessions: dict[int, bytes]) -> bytes:
    """Return the bytes of a gap between two offsets; the digest is that after the gap.

    ``sessions`` has the session of the dropped batches from each of some offsets on.
    """
    marks = [_SESSION_MARK.pack(at - start, each) for at, each in sessions.items()]
    body = (end - start).to_bytes(_GAP_COUNT_BYTES, "little") + b"".join(marks)
    return encode_entry(LogEntry(start, chain, RecordBatch("", 0, 0, body, True, GAP_ID))) + body


def gap_sessions(gap: LogEntry) -> dict[int, bytes]:
    """Return the session of the dropped batches of a gap from each of some offsets on."""
    marks = _SESSION_MARK.iter_unpack(gap.batch.body[_GAP_COUNT_BYTES:])
    return {gap.offset + at: session for at, session in marks}


def chain_value(entry: LogEntry, offset: int) -> bytes:
    """Return the chain value at an offset that is inside or directly behind an entry."""
    if entry.batch.id != GAP_ID or offset >= entry.end:
        return entry.chain[:CHAIN_BYTES]
    known = [session for at, session in gap_sessions(entry).items() if at < offset]
    return known[-1] + UNKNOWN_DIGEST if known else TRIMMED_CHAIN


def entry_bytes(data: bytes | memoryview, at: int = 0) -> int:
    """Return the stated size of the entry at a position, unverified; 0 if no entry begins there."""
    if at + _PREFIX.size + _FIXED.size > len(data):
        return 0
    marker, size, _ = _PREFIX.unpack_from(data, at)
    is_entry = marker == MARKER and _FIXED.size <= size <= ENTRY_BYTES_MAX
    return _PREFIX.size + size if is_entry else 0


def decode_entry(data: bytes | memoryview, at: int = 0) -> LogEntry | None:
    """Return the entry at a position; None if there is no intact entry."""
    size = entry_bytes(data, at)
    fixed_at, end = at + _PREFIX.size, at + size
    if not size or end > len(data):
        return None
    if crc32(data[fixed_at:end]) != _PREFIX.unpack_from(data, at)[2]:
        return None
    offset, count, head_size, key, chain = _FIXED.unpack_from(data, fixed_at)
    head_at = fixed_at + _FIXED.size
    body_at = head_at + head_size
    try:
        publisher, first, unordered = _HEADS.decode(data[head_at:body_at])
    except DecodeError:
        return None
    body = bytes(data[body_at:end])
    is_gap = key == GAP_ID and not count and len(body) >= _GAP_COUNT_BYTES
    if is_gap:
        if len(body) % _SESSION_MARK.size:
            return None
        count = int.from_bytes(body[:_GAP_COUNT_BYTES], "little")
    batch = RecordBatch(publisher, first, count, body, unordered, key)
    return LogEntry(offset, chain, batch) if 0 < count <= RECORDS_MAX or is_gap else None


def encode_footer(footer: SegmentFooter) -> bytes:
    """Return the bytes at the end of a sealed segment file."""
    data = FOOTERS.encode(footer)
    return data + _TRAILER.pack(len(data), FOOTERS.kind)


def footer_bytes(trailer: bytes) -> int:
    """Return the size of the footer with these last bytes of a file; 0 if there is none."""
    if len(trailer) != TRAILER_BYTES or not trailer.endswith(FOOTERS.kind):
        return 0
    size: int = _TRAILER.unpack(trailer)[0]
    return size + TRAILER_BYTES
