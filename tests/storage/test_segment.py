"""Segments: the index and its footer, the ids of entries, writes, and the cache of open files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.storage.segment import (
    EntryIndex,
    FileCache,
    LogSegment,
    merge_newest,
    raise_newest,
    read_footer,
    segment_name,
    write_pieces,
)
from tests.storage.logs import NEWS, batch, entries_of, flip, loaded, segment_file

ENTRIES = entries_of(*[batch(2 * number) for number in range(5)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / segment_name(0)


@pytest.fixture
def files() -> Iterator[FileCache]:
    cache = FileCache(os.O_RDWR)
    yield cache
    cache.close()


def scanned(path: Path) -> LogSegment:
    found = loaded(path)
    assert found is not None
    return found.segment


def test_footer_has_the_index_of_a_scan(path: Path, files: FileCache) -> None:
    segment_file(path, *ENTRIES)
    segment, other = scanned(path), scanned(path)
    assert list(other.index.offsets) == [0, 2, 4, 6, 8]
    assert other.index.newest == {("node0", 0): 7, ("node1", 0): 5, ("node2", 0): 9}
    segment.seal(files)
    sealed = scanned(path)
    assert sealed.footer_bytes == segment.footer_bytes > 0
    for name in ("positions", "offsets", "end", "chain", "newest", "size", "start"):
        assert getattr(sealed.index, name) == getattr(other.index, name)
    assert (sealed.index.end, sealed.index.chain) == (10, ENTRIES[-1].chain)
    ids = [entry.batch.id for entry in ENTRIES]
    assert list(sealed.ids(files)) == list(other.ids(files)) == ids


def test_index_takes_at_most_16_bytes_for_a_batch() -> None:
    index = EntryIndex(0, 0, bytes(16), 0)
    for entry in ENTRIES:
        index.add(entry, index.size, 100)
    arrays = (index.positions, index.offsets)
    assert sum(len(each) * each.itemsize for each in arrays) <= 16 * len(ENTRIES)


def test_second_seal_changes_nothing(path: Path, files: FileCache) -> None:
    segment_file(path, *ENTRIES)
    segment = scanned(path)
    segment.seal(files)
    data = path.read_bytes()
    segment.seal(files)
    assert path.read_bytes() == data


def test_seal_replaces_the_bytes_after_the_entries(path: Path, files: FileCache) -> None:
    segment_file(path, *ENTRIES)
    segment = scanned(path)
    with path.open("ab") as file:
        file.write(bytes(5000))
    segment.seal(files)
    assert path.stat().st_size == segment.index.size + segment.footer_bytes
    assert scanned(path).footer_bytes > 0


def test_footer_is_read_only_at_its_position(path: Path, files: FileCache) -> None:
    segment_file(path, *ENTRIES)
    scanned(path).seal(files)
    data = path.read_bytes()
    assert read_footer(files, path, len(data)) is not None
    assert read_footer(files, path, len(data) - 1) is None
    path.write_bytes(b"x" + data)
    assert read_footer(files, path, len(data) + 1) is None
    assert read_footer(files, path.with_name("lost"), 500) is None


def test_footer_damaged_at_any_byte_is_not_used(path: Path, files: FileCache) -> None:
    segment_file(path, *ENTRIES)
    segment = scanned(path)
    segment.seal(files)
    size = path.stat().st_size
    for place in range(segment.index.size, size):
        flip(path, place)
        assert read_footer(files, path, size) is None
        flip(path, place)
    assert read_footer(files, path, size) is not None


def test_ids_are_read_from_the_entries_if_the_footer_is_damaged_later(
    path: Path, files: FileCache
) -> None:
    segment_file(path, *ENTRIES)
    segment = scanned(path)
    segment.seal(files)
    flip(path, path.stat().st_size - 30)
    assert list(segment.ids(files)) == [entry.batch.id for entry in ENTRIES]


def test_newest_numbers_are_the_largest_of_ordered_batches() -> None:
    rows = [BatchRecord(b"x")] * 3

    def made(first: int, *, unordered: bool = False) -> RecordBatch:
        return RecordBatch.of(rows, publisher="a", first=first, topic=NEWS, unordered=unordered)

    newest = {("b", 0): 4}
    for each in (made(7), made(5), made(90, unordered=True), made(1 << 62)):
        raise_newest(newest, each)
    assert newest == {("a", 0): 9, ("b", 0): 4}
    merge_newest(newest, {("a", 0): 3, ("b", 0): 5, ("c", 1): 6})
    assert newest == {("a", 0): 9, ("b", 0): 5, ("c", 1): 6}


def test_index_is_extended_by_the_entries_after_it(path: Path) -> None:
    places = segment_file(path, *ENTRIES)
    whole = scanned(path).index
    first = EntryIndex(0, 0, bytes(16), places[0])
    for number in range(2):
        first.add(ENTRIES[number], places[number], places[number + 1] - places[number])
    second = EntryIndex(0, first.end, first.chain, first.size)
    for number in range(2, 5):
        second.add(ENTRIES[number], places[number], places[number + 1] - places[number])
    first.extend(second)
    for name in ("positions", "offsets", "end", "chain", "newest", "size"):
        assert getattr(first, name) == getattr(whole, name)


@pytest.mark.parametrize(("step", "scale"), [(1, 1), (7, 1), (1000, 1), (10_000, 100)])
def test_partial_writes_are_continued(
    path: Path, files: FileCache, monkeypatch: pytest.MonkeyPatch, step: int, scale: int
) -> None:
    def write_some(file: int, parts: list[bytes], at: int) -> int:
        return os.pwrite(file, b"".join(parts)[:step], at)

    monkeypatch.setattr(os, "pwritev", write_some)
    pieces = [bytes([number]) * number * scale for number in range(60)]
    write_pieces(files.get(path, os.O_CREAT), pieces, 5)
    assert path.read_bytes() == bytes(5) + b"".join(pieces)


def test_many_pieces_are_written_in_order(path: Path, files: FileCache) -> None:
    pieces = [number.to_bytes(4, "big") for number in range(5000)]
    write_pieces(files.get(path, os.O_CREAT), pieces, 0)
    assert path.read_bytes() == b"".join(pieces)


def test_file_cache_keeps_few_files_open(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(5)]
    for path in paths:
        path.write_bytes(path.name.encode())
    files = FileCache(os.O_RDONLY, files_max=2)
    for path in [*paths, *paths]:
        assert files.read(path, 10, 0) == path.name.encode()
        assert len(open_files() & set(paths)) <= 2
    files.drop(paths[-1])
    files.drop(paths[-1])
    files.close()
    assert not open_files() & set(paths)


def open_files() -> set[Path]:
    links = list(Path("/proc/self/fd").iterdir())
    return {link.readlink() for link in links if os.path.lexists(link)}


def test_lost_file_reads_as_empty_and_cannot_be_written(tmp_path: Path, files: FileCache) -> None:
    assert files.read(tmp_path / "lost", 10, 0) == b""
    assert files.read_chunk(tmp_path / "lost", 0, 10) == bytes(10)
    with pytest.raises(FileNotFoundError):
        files.get(tmp_path / "lost")
