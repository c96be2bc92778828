"""Recovery of a topic's log from any state of its files.

Intact entries keep their offsets. Unusable files and bytes are quarantined. Lost offsets before the
end of the log are recorded as absent, and the log gets a new epoch. Damage inside a sealed segment
is not searched for: a read finds it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from skipring.core.peers import TopicId
from skipring.storage.data_dir import sync_directory
from skipring.storage.segments.segment import (
    EntryIndex,
    FileCache,
    LoadedSegment,
    LogSegment,
    LostRange,
    load_header,
    load_segment,
    open_file,
    read_at,
)
from skipring.storage.segments.topic_directory import (
    OffsetRanges,
    TopicDirectory,
    TopicRecord,
    directory_name,
    new_epoch,
)

QUARANTINED_BYTES_MAX: Final = 4 << 20  # Guess: enough of one damaged range for an analysis.


class RecoveredLog(NamedTuple):
    """Content of a topic's directory."""

    record: TopicRecord
    segments: list[LogSegment]  # each has an entry
    is_recorded: bool  # False if the record is in memory only


def stored_topic(directory: TopicDirectory) -> TopicId | None:
    """Return the topic that a file of the directory names; None if no intact file does."""
    record = directory.read_record()
    if record is not None:
        return record.topic
    headers = (load_header(path) for path in directory.files().segments.values())
    topics = (header.topic for header in headers if header is not None)
    return next((each for each in topics if directory_name(each) == directory.path.name), None)


def recover(directory: TopicDirectory, topic: TopicId, store: str) -> RecoveredLog:
    """Recover the log in the directory of a topic; ``store`` is the id if no record has one."""
    record = directory.read_record()
    files = directory.files()
    for path in files.foreign:
        directory.quarantine_file(path)
    loaded = _load(directory, topic, files.segments)
    _cut_overlaps(loaded)
    losses = _losses(loaded)
    old = record or TopicRecord(topic, store, new_epoch())
    absent = OffsetRanges(old.absent)
    fresh = [loss for _, loss in losses if not absent.covers(loss.start, loss.end)]
    for loss in fresh:
        absent.add(loss.start, loss.end)
    for path, loss in losses:
        if loss in fresh and loss.size:
            _quarantine(directory, path, loss.position, loss.size)
    end = max((segment.index.end for segment, *_ in loaded if segment.index.positions), default=0)
    epoch = new_epoch() if fresh else old.epoch
    renewed = TopicRecord(old.topic, old.store, epoch, absent.below(end))
    if renewed != record and (end or record is not None):
        directory.write_record(renewed)  # before the repair, after which a loss is not found again
        record = renewed
    segments = _repaired(directory, loaded)
    return RecoveredLog(renewed, segments, is_recorded=record is not None)


def _load(directory: TopicDirectory, topic: TopicId, paths: dict[int, Path]) -> list[LoadedSegment]:
    """Return the segments in order; quarantine files of other topics or offsets."""
    found: list[LoadedSegment] = []
    for start, path in paths.items():
        loaded = load_segment(path, topic, start)
        if loaded is None:
            directory.quarantine_file(path)
            continue
        if not loaded.has_header and found and found[-1].segment.index.end == start:
            loaded.segment.follow(found[-1].segment.index.chain)
        found.append(loaded)
    return found


def _cut_overlaps(loaded: list[LoadedSegment]) -> None:
    """Remove entries at or beyond the start of the next segment.

    A failed commit leaves such entries, and the next commit writes them to a new segment. They are
    removed even if the new segment has no intact entry yet: after a failed sync they may exist in
    the page cache only. An empty segment that is followed by entries is ignored.
    """
    boundary: int | None = None
    is_last = True
    for segment, *_ in reversed(loaded):
        index = segment.index
        if boundary is not None and index.end > boundary:
            with open_file(segment.path) as file:
                index.cut(boundary, file)
            segment.seal(0)
        if index.positions or is_last:
            boundary = index.start
        is_last = is_last and not index.positions


def _losses(loaded: list[LoadedSegment]) -> list[tuple[Path, LostRange]]:
    """Return the losses before the end of the log: in segments, and between them."""
    losses: list[tuple[Path, LostRange]] = []
    end = 0
    for segment, _, _, found in loaded:
        index = segment.index
        if not index.positions:
            continue
        if index.start > end:
            losses.append((segment.path, LostRange(end, index.start, 0, 0)))
        losses += [(segment.path, loss) for loss in found if loss.start < loss.end <= index.end]
        end = index.end
    return losses


def _repaired(directory: TopicDirectory, loaded: list[LoadedSegment]) -> list[LogSegment]:
    """Return the segments with entries; cut and seal their files, remove the others."""
    segments = [segment for segment, *_ in loaded if segment.index.positions]
    for segment, _, file_bytes, _ in loaded:
        index = segment.index
        if not index.positions:
            if file_bytes > index.size:
                directory.quarantine_file(segment.path)
            else:
                segment.path.unlink()
            continue
        unused = file_bytes - index.size - segment.footer_bytes
        if unused:
            _quarantine(directory, segment.path, index.size, unused)
        with open_file(segment.path, os.O_RDWR) as file:
            if unused:
                os.ftruncate(file, index.size)
            if segment is segments[-1]:
                os.fsync(file)  # a process that was killed may leave entries in the page cache
            elif not segment.is_sealed:
                _seal(file, segment)
    if loaded:
        # A killed process may have created the last segment without this sync. An empty segment
        # that reappears would cut the entries behind its start.
        sync_directory(directory.path)
    return segments


def _seal(file: int, segment: LogSegment) -> None:
    """Write the footer of a segment; without it the next start scans the segment again."""
    index = segment.index
    files = FileCache(os.O_RDONLY)
    footer = segment.footer(files, EntryIndex.after(index))
    files.close()
    with suppress(OSError):  # a full disk
        if os.pwrite(file, footer, index.size) == len(footer):
            os.fsync(file)
            segment.seal(len(footer))


def _quarantine(directory: TopicDirectory, path: Path, position: int, size: int) -> None:
    """Copy bytes of a segment to the quarantine."""
    with open_file(path) as file:
        data = read_at(file, min(size, QUARANTINED_BYTES_MAX), position)
    if data.strip(b"\0"):
        directory.quarantine_bytes(f"{path.stem}-{position}", data)
