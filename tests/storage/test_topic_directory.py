"""Directory of a topic: names, the record of the topic, absent offsets and the quarantine."""

from __future__ import annotations

import os
from errno import EIO
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipring.storage import topic_directory
from skipring.storage.topic_directory import (
    QUARANTINE,
    RECORD_FILE,
    TopicDirectory,
    TopicRecord,
    covers,
    directory_name,
    merged,
    replace_by_directory,
)
from tests.storage.logs import flip

TOPIC = "news"
RECORD = TopicRecord(TOPIC, "store", 5, [(3, 4)])


@pytest.fixture
def directory(tmp_path: Path) -> TopicDirectory:
    made = TopicDirectory(tmp_path / directory_name(TOPIC))
    made.write_record(RECORD)
    return made


@given(st.text(max_size=255), st.text(max_size=255))
def test_directory_name_is_safe_and_unique(topic: str, other: str) -> None:
    name = directory_name(topic)
    assert len(name.encode()) <= 100
    assert Path(name).name == name
    assert name not in ("", ".", "..")
    assert not name.startswith(".")
    assert (name == directory_name(other)) == (topic == other)


@pytest.mark.parametrize(
    "topic", ["a/../../b", "..", "", "A", "\ud800", "\0", "x" * 255, "é" * 255]
)
def test_directory_of_a_strange_topic_can_be_created(topic: str, tmp_path: Path) -> None:
    (tmp_path / directory_name(topic)).mkdir()
    assert [path.parent for path in tmp_path.iterdir()] == [tmp_path]


def test_topics_that_differ_in_case_have_different_directories() -> None:
    assert directory_name("News").lower() != directory_name("news").lower()


def test_record_is_read_again(directory: TopicDirectory) -> None:
    assert directory.read_record() == RECORD
    changed = TopicRecord(TOPIC, "store", 6)
    directory.write_record(changed)
    assert directory.read_record() == changed


def test_damaged_record_is_refused_at_every_byte(directory: TopicDirectory) -> None:
    path = directory.path / RECORD_FILE
    data = path.read_bytes()
    for place in range(len(data)):
        flip(path, place)
        assert directory.read_record() is None
        path.write_bytes(data[:place])
        assert directory.read_record() is None
        path.write_bytes(data)
    assert directory.read_record() == RECORD


def test_unreadable_record_is_refused(
    directory: TopicDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*args: object) -> bytes:
        raise OSError(EIO, "disk error")

    monkeypatch.setattr(Path, "read_bytes", unreadable)
    assert directory.read_record() is None


def test_record_of_another_topic_is_refused(directory: TopicDirectory, tmp_path: Path) -> None:
    other = TopicDirectory(tmp_path / directory_name("other"))
    other.write_record(RECORD)
    assert other.read_record() is None


def test_record_file_may_be_a_directory(tmp_path: Path) -> None:
    made = TopicDirectory(tmp_path / directory_name(TOPIC))
    (made.path / RECORD_FILE).mkdir(parents=True)
    assert made.read_record() is None
    assert made.files()[1] == [made.path / RECORD_FILE]


def test_files_are_segments_or_foreign(directory: TopicDirectory) -> None:
    path = directory.path
    for name in (f"{7:020}.log", f"{3:020}.log", "7.log", "notes", f"{RECORD_FILE}.new"):
        (path / name).touch()
    (path / f"{5:020}.log").mkdir()
    (path / f"{6:020}.log").symlink_to(path / "notes")
    (path / QUARANTINE).mkdir()
    found, foreign = directory.files()
    assert list(found) == [3, 7]
    names = {f"{5:020}.log", f"{6:020}.log", "7.log", "notes"}
    assert {each.name for each in foreign} == names


def test_missing_directory_has_no_files(tmp_path: Path) -> None:
    missing = TopicDirectory(tmp_path / "missing")
    assert missing.files() == ({}, [])
    assert missing.read_record() is None


def test_quarantine_keeps_the_newest_files_within_its_limit(
    directory: TopicDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_directory, "QUARANTINE_BYTES_MAX", 25)
    for number in range(5):
        directory.quarantine_bytes(f"{number}", bytes(10))
        for path in (directory.path / QUARANTINE).iterdir():
            os.utime(path, ns=(int(path.name[0]), int(path.name[0])))
    foreign = directory.path / "foreign"
    foreign.write_bytes(bytes(100))
    directory.quarantine_file(foreign)
    names = [path.name.split(".")[0] for path in (directory.path / QUARANTINE).iterdir()]
    assert names == ["foreign"]


def test_quarantined_files_have_different_names(directory: TopicDirectory) -> None:
    for _ in range(3):
        directory.quarantine_bytes("é/\n" * 80, b"x")
    assert len(list((directory.path / QUARANTINE).iterdir())) == 3
    assert {p.stat().st_mode & 0o777 for p in (directory.path / QUARANTINE).iterdir()} == {0o600}


def test_file_in_place_of_a_directory_is_renamed(directory: TopicDirectory) -> None:
    (directory.path / QUARANTINE).write_bytes(b"file")
    directory.quarantine_bytes("x", b"x")
    assert (directory.path / QUARANTINE).is_dir()
    renamed = [path for path in directory.path.glob(f"{QUARANTINE}.*") if path.is_file()]
    assert [path.read_bytes() for path in renamed] == [b"file"]


def test_directory_is_created_once(tmp_path: Path) -> None:
    replace_by_directory(tmp_path / "made")
    (tmp_path / "made" / "file").touch()
    replace_by_directory(tmp_path / "made")
    assert (tmp_path / "made" / "file").exists()


def test_failed_sync_of_a_new_directory_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    synced: list[bool] = []

    def failing(file: int) -> None:
        synced.append(made.is_dir())
        if len(synced) == 1:
            raise OSError(EIO, "disk error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="disk error"):
        replace_by_directory(made)
    replace_by_directory(made)
    assert synced == [True, True]


RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)))


@given(RANGES)
def test_ranges_are_merged_to_a_set_of_offsets(ranges: list[tuple[int, int]]) -> None:
    found = merged(ranges)
    expected = {offset for start, stop in ranges for offset in range(start, stop)}
    assert [offset for start, stop in found for offset in range(start, stop)] == sorted(expected)
    assert all(one[1] < other[0] for one, other in pairwise(found))
    for start in range(0, 35, 5):
        for end in range(start + 1, 35, 3):
            assert covers(found, start, end) == (set(range(start, end)) <= expected)
