"""Durable marks: stored in two files that are written in turn."""

from pathlib import Path

import pytest

from skipring.storage.durable_mark import DurableMark, DurableMarkFile
from tests.storage.stored import PROMISES, flip


@pytest.fixture
def promises(tmp_path: Path) -> DurableMarkFile:
    return DurableMarkFile(tmp_path)


def read(directory: Path) -> dict[str, DurableMark] | None:
    file = DurableMarkFile(directory)
    found = file.read()
    file.close()
    return found.topics if found is not None else None


def test_missing_durable_mark_is_read_as_none(promises: DurableMarkFile) -> None:
    assert promises.read() is None


def test_last_durable_mark_counts(promises: DurableMarkFile, tmp_path: Path) -> None:
    for topics in (
        {"a": DurableMark(0, 1)},
        {"a" * 5000: DurableMark(1, 2), "b": DurableMark()},
        {},
    ):
        promises.write("store", topics)
        assert read(tmp_path) == topics


def test_reopened_file_continues_its_count(tmp_path: Path) -> None:
    for end in range(5):
        file = DurableMarkFile(tmp_path)
        file.read()
        file.write("store", {"a": DurableMark(0, end)})
        file.close()
        assert read(tmp_path) == {"a": DurableMark(0, end)}


def test_damage_to_any_byte_leaves_one_of_the_last_two_durable_marks(
    promises: DurableMarkFile, tmp_path: Path
) -> None:
    for end in (1, 2):
        promises.write("store", {"a": DurableMark(0, end)})
    for name in PROMISES:
        for place in range((tmp_path / name).stat().st_size):
            flip(tmp_path / name, place)
            assert read(tmp_path) in ({"a": DurableMark(0, 1)}, {"a": DurableMark(0, 2)})
            flip(tmp_path / name, place)


def test_damage_to_both_files_leaves_no_durable_mark(
    promises: DurableMarkFile, tmp_path: Path
) -> None:
    promises.write("store", {})
    promises.write("store", {})
    for name in PROMISES:
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
    assert read(tmp_path) is None
