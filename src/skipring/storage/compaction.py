"""Compaction of a segment: a new file without the dropped entries replaces the old one.

The new file is complete and synced before it gets the name of the old one, so a crash leaves one of
them. Consecutive dropped entries become a gap, which keeps their offsets, their sessions and the
running digest after them. Stored bytes are copied as they are, damaged ones too: a read finds them
as before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from skipring.core.limits import SESSION_BYTES
from skipring.core.summaries import DIGEST_BYTES
from skipring.storage.segment import CHUNK_BYTES, EntryIndex, FileCache, LogSegment, write_pieces
from skipring.storage.segment_format import (
    GAP_ID,
    HEADERS,
    ID_AT,
    SESSION_AT,
    decode_entry,
    encode_gap,
    gap_sessions,
)
from skipring.storage.topic_directory import FRESH

# Limit: sessions of one gap. Entries from before sessions were stored have a random one each.
SESSIONS_MAX: Final = 1 << 13


class _Piece(NamedTuple):
    """Bytes of a live entry, or of a gap in place of consecutive entries."""

    number: int  # of the first entry in the old file
    data: bytes
    is_gap: bool


def is_wasteful(index: EntryIndex) -> bool:
    """Return True if less than half of the bytes of a segment are live."""
    return 2 * index.dropped_bytes > index.size


def is_spent(index: EntryIndex) -> bool:
    """Return True if all entries were dropped, and the file still has some of them."""
    return index.dropped_bytes > 0 and index.next_live(0) == len(index.positions)


def fresh_path(path: Path) -> Path:
    """Return the path of the new file until it replaces the old one."""
    return path.with_name(path.name + FRESH)


def write_compacted(segment: LogSegment, live: bytes, files: FileCache) -> LogSegment:
    """Write the new file of a segment, sealed and synced; return the segment it will be.

    ``live`` has the mark of each entry.
    """
    old, path = segment.index, fresh_path(segment.path)
    files.drop(path)
    path.unlink(missing_ok=True)
    file = files.get(path, os.O_CREAT | os.O_EXCL)
    waiting, at, gaps = [HEADERS.encode(segment.header)], 0, list[int]()
    index = EntryIndex(
        old.start, old.end, old.chain, len(waiting[0]), old.owner, newest=dict(old.newest)
    )
    for number, data, is_gap in _pieces(segment, live, files):
        if index.size - at >= CHUNK_BYTES:
            write_pieces(file, waiting, at)
            waiting, at = [], index.size
        if is_gap:
            gaps.append(len(index.positions))
        index.copy(old, number, len(data), is_gap=is_gap)
        waiting.append(data)
    write_pieces(file, waiting, at)
    for number in gaps:  # it ends where the next entry begins
        index.drop(number, is_gap=True)
    fresh = LogSegment(path, segment.header, index)
    fresh.write_footer(files)
    os.fsync(file)
    files.drop(path)
    return LogSegment(segment.path, segment.header, index, fresh.footer_bytes)


def _pieces(segment: LogSegment, live: bytes, files: FileCache) -> Iterator[_Piece]:
    """Yield the live entries of a segment and the gaps between them, in order."""
    index, data, base = segment.index, b"", 0
    begin = -1  # number of the first of consecutive dropped entries
    sessions: dict[int, bytes] = {}
    for number, position in enumerate(index.positions):
        size = min(index.bytes_between(number, number + 1), CHUNK_BYTES)  # damage may follow
        if position + size > base + len(data):
            data, base = files.read_chunk(segment.path, position, index.size), position
        piece = data[position - base : position - base + size]
        if live[number]:
            yield _Piece(number, piece, False)
            continue
        begin = number if begin < 0 else begin
        start, end = index.span(number)
        _add_sessions(sessions, start, piece)
        is_full = len(sessions) >= SESSIONS_MAX
        if is_full or number + 1 == len(live) or live[number + 1]:
            entry = decode_entry(piece)
            chain = entry.chain if entry is not None and entry.end == end else bytes(DIGEST_BYTES)
            if number + 1 == len(live):
                chain = index.chain
            yield _Piece(begin, encode_gap(index.span(begin)[0], end, chain, sessions), True)
            begin, sessions = -1, {}


def _add_sessions(sessions: dict[int, bytes], start: int, piece: bytes) -> None:
    """Add the sessions of a dropped entry or of a gap, where they change.

    Damage adds a wrong session at worst: a position there is refused.
    """
    if piece[ID_AT:SESSION_AT] != GAP_ID:
        found = {start: piece[SESSION_AT : SESSION_AT + SESSION_BYTES]}
    else:
        gap = decode_entry(piece)
        found = gap_sessions(gap) if gap is not None else {}
    last = next(reversed(sessions.values()), b"")
    for at, session in found.items():
        if session != last and len(session) == SESSION_BYTES:
            sessions[at] = last = session
