"""Segments: scans behind damaged bytes, footers, and the cache of open files."""

from __future__ import annotations

import os
from errno import EIO
from pathlib import Path

import pytest

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.storage.segments import segment as segment_module
from skipring.storage.segments.format import (
    START_OF_CHAIN,
    Entry,
    SegmentHeader,
    encode_entry,
    encode_header,
    next_chain,
)
from skipring.storage.segments.segment import (
    EntryIndex,
    FileCache,
    LoadedSegment,
    LogSegment,
    load_header,
    load_segment,
    segment_name,
)
from tests.storage.segments.logs import NEWS, batch, flip

HEADER = SegmentHeader(NEWS, 0, START_OF_CHAIN)


def entries_of(*batches: RecordBatch) -> list[Entry]:
    found: list[Entry] = []
    offset, chain = 0, START_OF_CHAIN
    for each in batches:
        chain = next_chain(chain, each.id)
        found.append(Entry(offset, chain, each))
        offset += each.count
    return found


def encoded(entry: Entry) -> bytes:
    return encode_entry(entry) + entry.batch.body


def segment_file(path: Path, *entries: Entry, header: SegmentHeader = HEADER) -> list[int]:
    """Write a segment; return the position of each entry and of the end."""
    data = encode_header(header)
    positions = [len(data)]
    for entry in entries:
        data += encoded(entry)
        positions.append(len(data))
    path.write_bytes(data)
    return positions


def seal(path: Path) -> LogSegment:
    """Append the footer to a segment file."""
    loaded = load(path)
    files = FileCache(os.O_RDONLY)
    footer = loaded.segment.footer(files, EntryIndex.after(loaded.segment.index))
    files.close()
    with path.open("ab") as file:
        file.write(footer)
    loaded.segment.seal(len(footer))
    return loaded.segment


def load(path: Path) -> LoadedSegment:
    loaded = load_segment(path, NEWS, 0)
    assert loaded is not None
    return loaded


def offsets(loaded: LoadedSegment) -> list[int]:
    return list(loaded.segment.index.offsets)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / segment_name(0)


ENTRIES = entries_of(*[batch(2 * number) for number in range(5)])


def test_footer_has_the_index_of_a_scan(path: Path) -> None:
    segment_file(path, *ENTRIES)
    scanned = load(path)
    assert offsets(scanned) == [0, 2, 4, 6, 8]
    assert scanned.losses == []
    sealed = seal(path)
    loaded = load(path)
    index, other = loaded.segment.index, scanned.segment.index
    assert loaded.segment.is_sealed
    for name in ("positions", "offsets", "end", "chain", "newest", "size"):
        assert getattr(index, name) == getattr(other, name)
    assert (index.end, index.chain) == (10, ENTRIES[-1].chain)
    assert index.newest == {("node0", 0): 7, ("node1", 0): 5, ("node2", 0): 9}
    files = FileCache(os.O_RDONLY)
    ids = [entry.batch.id for entry in ENTRIES]
    assert list(sealed.ids(files)) == list(scanned.segment.ids(files)) == ids
    files.close()


def test_unordered_and_impossible_numbers_are_not_the_newest(path: Path) -> None:
    rows = [BatchRecord(b"x")]
    sink = RecordBatch.of(rows, publisher="a", first=9, topic=NEWS, unordered=True)
    large = RecordBatch.of(rows, publisher="a", first=1 << 62, topic=NEWS)
    segment_file(path, *entries_of(sink, large))
    assert load(path).segment.index.newest == {}


def test_ids_are_read_from_the_entries_if_the_footer_is_damaged_later(path: Path) -> None:
    segment_file(path, *ENTRIES)
    segment = seal(path)
    flip(path, path.stat().st_size - 30)
    files = FileCache(os.O_RDONLY)
    assert list(segment.ids(files)) == [entry.batch.id for entry in ENTRIES]
    files.close()


def test_header_is_read_from_the_footer_if_it_is_damaged(path: Path) -> None:
    segment_file(path, *ENTRIES)
    seal(path)
    flip(path, 10)
    assert load_header(path) == HEADER
    loaded = load(path)
    assert loaded.has_header
    assert loaded.segment.is_sealed


def test_damaged_header_alone_loses_no_entry(path: Path) -> None:
    segment_file(path, *ENTRIES)
    flip(path, 10)
    assert load_header(path) is None
    loaded = load(path)
    assert not loaded.has_header
    assert offsets(loaded) == [0, 2, 4, 6, 8]
    assert all(loss.start == loss.end for loss in loaded.losses)


@pytest.mark.parametrize("header", [SegmentHeader("other", 0, b""), SegmentHeader(NEWS, 2, b"")])
def test_segment_of_another_topic_or_offset_is_refused(path: Path, header: SegmentHeader) -> None:
    segment_file(path, *ENTRIES, header=header)
    assert load_segment(path, NEWS, 0) is None


def test_footer_of_changed_length_is_not_used(path: Path) -> None:
    positions = segment_file(path, *ENTRIES)
    seal(path)
    data = path.read_bytes()
    path.write_bytes(data[: positions[1]] + data[positions[2] :])
    loaded = load(path)
    assert not loaded.segment.is_sealed
    assert offsets(loaded) == [0, 4, 6, 8]
    assert [(loss.start, loss.end, loss.size) for loss in loaded.losses] == [(2, 4, 0)]


def test_inserted_bytes_lose_no_entry(path: Path) -> None:
    positions = segment_file(path, *ENTRIES)
    data = path.read_bytes()
    path.write_bytes(data[: positions[2]] + b"garbage" + data[positions[2] :])
    loaded = load(path)
    assert offsets(loaded) == [0, 2, 4, 6, 8]
    assert loaded.losses == [(4, 4, positions[2], 7)]


@pytest.mark.parametrize("place", [0, 5, 9, 20, 40, 90, -1])
def test_scan_finds_the_entries_behind_a_damaged_one(path: Path, place: int) -> None:
    positions = segment_file(path, *ENTRIES)
    damaged = positions[1] + place if place >= 0 else positions[2] - 1
    flip(path, damaged)
    loaded = load(path)
    assert offsets(loaded) == [0, 4, 6, 8]
    assert loaded.losses == [(2, 4, positions[1], positions[2] - positions[1])]


def test_scan_over_several_chunks_finds_everything(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = entries_of(*[batch(2 * number, size=50) for number in range(60)])
    positions = segment_file(path, *entries)
    monkeypatch.setattr(segment_module, "CHUNK_BYTES", 1024)
    for damaged in range(0, 59, 7):
        flip(path, positions[damaged] + 5)
        flip(path, positions[damaged] + 60)
    loaded = load(path)
    expected = [e.offset for n, e in enumerate(entries) if n >= 59 or n % 7]
    assert offsets(loaded) == expected
    files = FileCache(os.O_RDONLY)
    assert list(loaded.segment.ids(files)) == [batch(each, size=50).id for each in expected]
    files.close()


def test_marker_at_the_border_of_a_chunk_is_found(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_module, "CHUNK_BYTES", 512)
    first, second = entries_of(batch(0), batch(2))
    for gap in range(480, 540):
        data = encode_header(HEADER) + encoded(first) + bytes(gap) + encoded(second)
        path.write_bytes(data)
        assert offsets(load(path)) == [0, 2]


def test_entry_in_a_payload_is_not_an_entry_of_the_log(path: Path) -> None:
    def outer(inner: Entry) -> list[Entry]:
        row = BatchRecord(b"before" + encoded(inner) + b"after")
        return entries_of(RecordBatch.of([row], publisher="a", first=0, topic=NEWS), batch(1))

    genuine = Entry(0, bytes(16), batch(50))
    forged = Entry(0, bytes(16), RecordBatch("b", 0, 1, b"body", id=b"i" * 32))
    far = Entry(1 << 60, bytes(16), batch(50))
    for inner in (genuine, forged, far):
        entries = outer(inner)
        positions = segment_file(path, *entries)
        flip(path, positions[1] - 1)  # the size of the outer entry leads to the next one
        assert offsets(load(path)) == [1]
    for inner in (forged, far):
        positions = segment_file(path, *outer(inner))
        flip(path, positions[0])  # the outer entry is not recognised
        assert offsets(load(path)) == [1]


def test_repeated_entries_are_ignored(path: Path) -> None:
    data = encode_header(HEADER) + b"".join(encoded(ENTRIES[n]) for n in (0, 1, 0, 1, 2))
    path.write_bytes(data)
    assert offsets(load(path)) == [0, 2, 4]


def test_unreadable_block_of_the_disk_loses_only_its_entries(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = segment_file(path, *ENTRIES)
    block = 16
    bad = (positions[1] + 30) // block * block
    pread = os.pread

    def failing(file: int, size: int, position: int) -> bytes:
        if position <= bad < position + size and size != segment_module.HEADER_BYTES_MAX:
            raise OSError(EIO, "disk error")
        return pread(file, size, position)

    monkeypatch.setattr(segment_module, "_BLOCK_BYTES", block)
    monkeypatch.setattr(os, "pread", failing)
    assert offsets(load(path)) == [0, 4, 6, 8]


def test_other_errors_of_the_disk_are_raised(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment_file(path, *ENTRIES)

    def failing(file: int, size: int, position: int) -> bytes:
        raise PermissionError

    monkeypatch.setattr(os, "pread", failing)
    with pytest.raises(PermissionError):
        load(path)


def test_cut_removes_entries_that_end_after_an_offset(path: Path) -> None:
    positions = segment_file(path, *ENTRIES)
    for boundary in range(11):
        index = load(path).segment.index
        file = os.open(path, os.O_RDONLY)
        index.cut(boundary, file)
        os.close(file)
        kept = boundary // 2
        assert list(index.offsets) == [0, 2, 4, 6, 8][:kept]
        assert index.size == positions[kept]
        assert index.end == 2 * kept
        if kept:
            assert index.chain == ENTRIES[kept - 1].chain


def test_file_cache_keeps_few_files_open(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(5)]
    for path in paths:
        path.write_bytes(path.name.encode())
    files = FileCache(os.O_RDONLY, files_max=2)
    for path in [*paths, *paths]:
        assert os.pread(files.get(path), 10, 0) == path.name.encode()
        assert len(open_files() & set(paths)) <= 2
    files.drop(paths[-1])
    files.drop(paths[-1])
    files.close()
    assert not open_files() & set(paths)


def open_files() -> set[Path]:
    links = list(Path("/proc/self/fd").iterdir())
    return {link.readlink() for link in links if os.path.lexists(link)}


def test_lost_file_reads_as_empty_and_cannot_be_written(tmp_path: Path) -> None:
    readers, writers = FileCache(os.O_RDONLY), FileCache(os.O_RDWR)
    assert os.pread(readers.get(tmp_path / "lost"), 10, 0) == b""
    with pytest.raises(FileNotFoundError):
        writers.get(tmp_path / "lost")
    readers.close()
