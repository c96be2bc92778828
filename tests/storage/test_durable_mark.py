"""What was promised is remembered in two files, written in turn."""

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


def test_without_a_promise_there_is_none(promises: DurableMarkFile) -> None:
    assert promises.read() is None


def test_the_last_promise_counts(promises: DurableMarkFile, tmp_path: Path) -> None:
    for topics in (
        {"a": DurableMark(0, 1)},
        {"a" * 5000: DurableMark(1, 2), "b": DurableMark()},
        {},
    ):
        promises.write("store", topics)
        assert read(tmp_path) == topics


def test_a_file_that_was_opened_again_goes_on_counting(tmp_path: Path) -> None:
    for end in range(5):
        file = DurableMarkFile(tmp_path)
        file.read()
        file.write("store", {"a": DurableMark(0, end)})
        file.close()
        assert read(tmp_path) == {"a": DurableMark(0, end)}


def test_whichever_byte_is_damaged_one_of_the_last_two_promises_is_left(
    promises: DurableMarkFile, tmp_path: Path
) -> None:
    for end in (1, 2):
        promises.write("store", {"a": DurableMark(0, end)})
    for name in PROMISES:
        for place in range((tmp_path / name).stat().st_size):
            flip(tmp_path / name, place)
            assert read(tmp_path) in ({"a": DurableMark(0, 1)}, {"a": DurableMark(0, 2)})
            flip(tmp_path / name, place)


def test_if_both_are_damaged_nothing_is_known(promises: DurableMarkFile, tmp_path: Path) -> None:
    promises.write("store", {})
    promises.write("store", {})
    for name in PROMISES:
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
    assert read(tmp_path) is None
