"""Recovery of a topic's log from any state of its files.

Intact entries keep their offsets. Unusable files and bytes after the last entry are quarantined.
Lost offsets before the end of the log are recorded as absent, and the log gets a new epoch. Damaged
bytes between entries remain in their file. Damage inside a sealed segment is not searched for: a
read finds it.

Segments below ``low`` are deleted, also if a backup has restored them. If the record is lost, the
first segment determines ``low``. If the files end below ``low``, the log continues there.
"""

from __future__ import annotations

import os
import secrets
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from skipring.core.log import LogEntry
from skipring.core.peers import NodeId, TopicId
from skipring.storage.data_dir import sync_directory
from skipring.storage.segment import CHUNK_BYTES, EntryIndex, FileCache, LogSegment, read_footer
from skipring.storage.segment_format import (
    HEADER_BYTES_MAX,
    HEADERS,
    MARKER,
    START_OF_CHAIN,
    SegmentHeader,
    decode_entry,
    entry_bytes,
)
from skipring.storage.topic_directory import TopicDirectory, TopicRecord, covers, merged

QUARANTINED_BYTES_MAX: Final = 4 << 20  # Guess: enough of one damaged range for an analysis.
_OFFSETS_MAX: Final = 1 << 26  # of a segment; a record has more than one byte
_OFFSET_MAX: Final = 1 << 63
_POSITION_MAX: Final = (1 << 32) - 1
_EPOCH_BITS: Final = 62  # Limit: the integers of Spark; random, so all epochs differ.


class RecoveredLog(NamedTuple):
    """Content of a topic's directory."""

    record: TopicRecord
    segments: list[LogSegment]  # each has an entry
    is_recorded: bool  # False if the record is in memory only
    lost: int  # number of records that this recovery found lost
    owner: NodeId  # the node of the store


class LoadedSegment(NamedTuple):
    """Segment as it was found on the disk."""

    segment: LogSegment
    file_bytes: int
    lost: list[tuple[int, int]]  # ranges of offsets without an intact entry, found by a scan


def recover(
    directory: TopicDirectory, topic: TopicId, store: str, owner: NodeId = ""
) -> RecoveredLog:
    """Recover the log in the directory of a topic; ``store`` is the id if no record has one."""
    record = directory.read_record()
    paths, foreign = directory.files()
    for path in foreign:
        directory.quarantine_file(path)
    with closing(FileCache(os.O_RDWR)) as files:
        loaded = _load(files, directory, topic, owner, paths)
        starts = [each.index.start for each, *_ in loaded if each.index.positions]
        fresh = TopicRecord(topic, store, secrets.randbits(_EPOCH_BITS), low=min(starts, default=0))
        old = record or fresh
        end = max([each.index.end for each, *_ in loaded if each.index.positions], default=0)
        low, is_cut = max(old.low, 0), end < old.low
        lost = [each for each in _lost(loaded, low) if not covers(old.absent, *each)]
        absent = [(max(a, low), min(b, end)) for a, b in merged([*old.absent, *lost])]
        absent = [(start, stop) for start, stop in absent if start < stop]
        epoch = secrets.randbits(_EPOCH_BITS) if lost or is_cut else old.epoch
        renewed = replace(old, epoch=epoch, absent=absent, low=low)
        if renewed != record and (end or record is not None):
            directory.write_record(renewed)  # before the repair, which hides losses
            record = renewed
        segments = _repaired(files, directory, _trimmed(files, loaded, low, end))
        for segment in segments:
            segment.index.drop_offsets(renewed.dropped.get(segment.header.start, b""))
    count = sum([stop - start for start, stop in lost])
    return RecoveredLog(renewed, segments, record is not None, count, owner)


def _load(
    files: FileCache,
    directory: TopicDirectory,
    topic: TopicId,
    owner: NodeId,
    paths: dict[int, Path],
) -> list[LoadedSegment]:
    """Return the segments in order; quarantine files of other topics or offsets.

    Entries at or beyond the start of the next segment are ignored: a failed commit leaves such
    entries, and the next commit writes them to a new segment. They are ignored even if the new
    segment has no intact entry yet: after a failed sync they may exist in the page cache only. An
    empty segment that is followed by entries does not matter.
    """
    found: list[LoadedSegment] = []
    limit = _OFFSET_MAX
    is_last = True
    for start, path in reversed(paths.items()):
        expected = SegmentHeader(topic, start, START_OF_CHAIN)
        loaded = load_segment(files, path, expected, limit, owner)
        if loaded is None:
            directory.quarantine_file(path)
            continue
        found.insert(0, loaded)
        if loaded.segment.index.positions or is_last:
            limit = start
        is_last = is_last and not loaded.segment.index.positions
    return found


def _trimmed(
    files: FileCache, loaded: list[LoadedSegment], low: int, end: int
) -> list[LoadedSegment]:
    """Delete the segments below an offset, except the last one if the log ends there."""
    kept: list[LoadedSegment] = []
    for each in loaded:
        index = each.segment.index
        is_trimmed = index.positions and index.end <= low
        if is_trimmed and not index.end == low == end:
            files.drop(each.segment.path)
            each.segment.path.unlink()
        else:
            kept.append(each)
    return kept


def _lost(loaded: list[LoadedSegment], low: int) -> list[tuple[int, int]]:
    """Return the lost ranges of offsets from an offset to the end of the log."""
    lost: list[tuple[int, int]] = []
    end = low
    for segment, _, found in loaded:
        if segment.index.positions:
            lost += [(end, segment.index.start), *found]
            end = max(end, segment.index.end)
    lost = [(max(start, low), stop) for start, stop in lost]
    return [(start, stop) for start, stop in lost if start < stop]


def _repaired(
    files: FileCache, directory: TopicDirectory, loaded: list[LoadedSegment]
) -> list[LogSegment]:
    """Return the segments with entries; cut and seal their files, remove the others."""
    segments = [segment for segment, *_ in loaded if segment.index.positions]
    for segment, file_bytes, _ in loaded:
        used = segment.index.size + segment.footer_bytes
        if segment.index.positions:
            unused = min(file_bytes - used, QUARANTINED_BYTES_MAX)
            data = files.read(segment.path, unused, used)
            if data.strip(b"\0"):
                directory.quarantine_bytes(f"{segment.path.stem}-{used}", data)
            if segment is segments[-1]:
                os.ftruncate(files.get(segment.path), used)
                os.fsync(files.get(segment.path))  # a killed process may not have synced it
            else:
                segment.seal(files)
        elif file_bytes > used:
            directory.quarantine_file(segment.path)
        else:
            segment.path.unlink()
    if loaded:
        # A killed process may have created the last segment without this sync. An empty segment
        # that reappears would cut the entries behind its start.
        sync_directory(directory.path)
    return segments


def load_segment(
    files: FileCache,
    path: Path,
    expected: SegmentHeader,
    limit: int = _OFFSET_MAX,
    owner: NodeId = "",
) -> LoadedSegment | None:
    """Read the index of a segment file, up to an offset.

    Return None if the file belongs to another topic or offset. The expected header is used if that
    of the file is damaged; then the digest before the first entry is unknown.
    """
    file_bytes = os.fstat(files.get(path)).st_size
    footer = read_footer(files, path, file_bytes)
    found = HEADERS.decode(files.read(path, HEADER_BYTES_MAX, 0))
    header, entries_at = found or (footer.header if footer is not None else expected, 0)
    if (header.topic, header.start) != (expected.topic, expected.start):
        return None
    if footer is not None and footer.header == header and footer.end <= limit:
        segment = LogSegment(path, header, EntryIndex.of(footer, owner), file_bytes - footer.at)
        return LoadedSegment(segment, file_bytes, [])
    index = EntryIndex(header.start, header.start, header.chain, entries_at, owner)
    segment = LogSegment(path, header, index)
    return LoadedSegment(segment, file_bytes, _scan(files, file_bytes, segment, limit))


def _scan(
    files: FileCache, file_bytes: int, segment: LogSegment, limit: int
) -> list[tuple[int, int]]:
    """Fill the index of a segment with its intact entries; return the offsets between them."""
    lost: list[tuple[int, int]] = []
    index = segment.index
    file_bytes = min(file_bytes, _POSITION_MAX)
    at = base = index.size
    data = b""
    while at < file_bytes:
        seen = base + len(data)
        if seen < file_bytes and at + CHUNK_BYTES // 2 > seen:
            data, base = files.read_chunk(segment.path, at, file_bytes), at
        entry = decode_entry(data, at - base)
        if entry is None or entry.end > limit or not _is_next(entry, at, segment):
            at = base + _next_candidate(data, at - base)
            continue
        if entry.offset > index.end:
            lost.append((index.end, entry.offset))
        index.add(entry, at, entry_bytes(data, at - base))
        at = index.size
    return lost


def _is_next(entry: LogEntry, at: int, segment: LogSegment) -> bool:
    """Return True if an intact entry belongs after the last one.

    Behind damaged bytes, a part of a payload may look like an entry. An entry there needs a genuine
    id and an offset that is possible in this segment.
    """
    index = segment.index
    if at == index.size and entry.offset == index.end:
        return True
    is_possible = index.end <= entry.offset < index.start + _OFFSETS_MAX
    return is_possible and entry.batch.is_genuine(segment.header.topic)


def _next_candidate(data: bytes, at: int) -> int:
    """Return the next position where an entry may begin.

    If the size of the damaged entry leads to another entry, its payload is not searched.
    """
    size = entry_bytes(data, at)
    if size and decode_entry(data, at + size) is not None:
        return at + size
    found = data.find(MARKER, at + 1)
    # The start of a marker at the end of the chunk is read again with the next chunk.
    return found if found >= 0 else max(at + 1, len(data) - len(MARKER) + 1)
