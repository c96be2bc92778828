"""Writes of a commit to a segment: partial writes, many entries, new files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from skipring.storage.segments.format import START_OF_CHAIN, Entry, encode_entry, next_chain
from skipring.storage.segments.segment import FileCache, load_segment, segment_name
from skipring.storage.segments.tail import SegmentTail, cut_unconfirmed
from tests.storage.segments.logs import NEWS, batch


def entries(count: int) -> list[Entry]:
    found: list[Entry] = []
    chain = START_OF_CHAIN
    for number in range(count):
        made = batch(2 * number)
        chain = next_chain(chain, made.id)
        found.append(Entry(2 * number, chain, made))
    return found


def new_tail(directory: Path, files: FileCache, *some: Entry) -> SegmentTail:
    tail = SegmentTail.new(directory, NEWS, some[0], START_OF_CHAIN, files)
    for entry in some:
        tail.add(entry, encode_entry(entry))
    return tail


def loaded_offsets(path: Path) -> list[int]:
    loaded = load_segment(path, NEWS, 0)
    assert loaded is not None
    return list(loaded.segment.index.offsets)


@pytest.fixture
def files() -> FileCache:
    return FileCache(os.O_RDWR)


def test_tails_of_several_commits_are_one_segment(tmp_path: Path, files: FileCache) -> None:
    some = entries(6)
    tail = new_tail(tmp_path, files, *some[:2])
    assert tail.is_new
    tail.write()
    tail.sync()
    tail.confirm()
    segment = tail.segment
    assert segment.index.end == 4
    more = SegmentTail(segment, files)
    assert not more.is_new
    for entry in some[2:]:
        more.add(entry, encode_entry(entry))
    assert segment.index.end == 4
    more.write(is_sealed=True)
    more.sync()
    more.confirm()
    assert segment.is_sealed
    assert list(segment.ids(files)) == [entry.batch.id for entry in some]
    loaded = load_segment(segment.path, NEWS, 0)
    assert loaded is not None
    assert loaded.segment.is_sealed
    assert loaded.segment.index.positions == segment.index.positions
    files.close()


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_partial_writes_are_continued(
    tmp_path: Path, files: FileCache, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    pwritev, pwrite = os.pwritev, os.pwrite

    def some_of(file: int, pieces: Sequence[bytes], position: int) -> int:
        return pwritev(file, [b"".join(pieces)[:step]], position)

    monkeypatch.setattr(os, "pwritev", some_of)
    monkeypatch.setattr(os, "pwrite", lambda f, data, at: pwrite(f, data[:step], at))
    tail = new_tail(tmp_path, files, *entries(4))
    tail.write()
    assert loaded_offsets(tail.segment.path) == [0, 2, 4, 6]
    files.close()


def test_more_entries_than_the_system_writes_at_once(tmp_path: Path, files: FileCache) -> None:
    tail = new_tail(tmp_path, files, *entries(1500))
    tail.write()
    assert loaded_offsets(tail.segment.path) == list(range(0, 3000, 2))
    files.close()


def test_new_segment_replaces_the_file_of_a_failed_commit(tmp_path: Path, files: FileCache) -> None:
    path = tmp_path / segment_name(0)
    path.write_bytes(bytes(5000))
    old = files.get(path)
    tail = new_tail(tmp_path, files, *entries(2))
    tail.write()
    assert loaded_offsets(path) == [0, 2]
    assert os.fstat(files.get(path)).st_ino == path.stat().st_ino
    assert old is not None
    files.close()


def test_unconfirmed_bytes_are_cut(tmp_path: Path, files: FileCache) -> None:
    some = entries(4)
    tail = new_tail(tmp_path, files, *some[:2])
    tail.write()
    tail.confirm()
    more = SegmentTail(tail.segment, files)
    for entry in some[2:]:
        more.add(entry, encode_entry(entry))
    more.write()
    cut_unconfirmed(tail.segment, files)
    assert loaded_offsets(tail.segment.path) == [0, 2]
    tail.segment.path.unlink()
    cut_unconfirmed(tail.segment, files)  # best effort
    files.close()


def test_segment_is_full_only_with_an_entry(tmp_path: Path, files: FileCache) -> None:
    first = entries(1)[0]
    tail = SegmentTail.new(tmp_path, NEWS, first, START_OF_CHAIN, files)
    assert not tail.is_full(1000, 10)
    tail.add(first, encode_entry(first))
    assert tail.is_full(1000, 10)
    assert not tail.is_full(10, 1000)
