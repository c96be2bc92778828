"""Rosters of a supervisor on disk: kept over restarts; damage never prevents a start."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from skipring.core.state import SupervisorState
from skipring.errors import StorageError, StoreBusyError, StoreFullError
from skipring.storage import supervisor_store
from skipring.storage.supervisor_store import SupervisorStore, connect
from tests.storage.logs import flip

FILE = "supervisor.sqlite3"
THREE = SupervisorState(database=(("0", "a"), ("1", "b"), ("01", "c")), next=2, queue=("d",))
ODD = SupervisorState(database=(("0111", "a"), ("0111", None), ("", "a")), next=7)


def saved(directory: Path, **states: SupervisorState) -> Path:
    with SupervisorStore.open(directory) as store:
        for topic, state in states.items():
            store.save(topic, state)
    return directory


def loaded(directory: Path) -> dict[str, SupervisorState]:
    with SupervisorStore.open(directory) as store:
        return store.load()


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def execute(directory: Path, statement: str) -> None:
    with closing(sqlite3.connect(directory / FILE, isolation_level=None)) as db:
        db.execute(statement)


def damaged(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.damaged-*"))


def test_saved_state_is_loaded_however_corrupted(tmp_path: Path) -> None:
    saved(tmp_path, news=ODD, chat=THREE)
    assert loaded(tmp_path) == {"chat": THREE, "news": ODD}
    saved(tmp_path, news=THREE)
    assert loaded(tmp_path) == {"chat": THREE, "news": THREE}


def test_new_store_is_empty_and_forgotten_topics_are_removed(tmp_path: Path) -> None:
    assert loaded(tmp_path) == {}
    with SupervisorStore.open(tmp_path) as store:
        store.save("news", THREE)
        store.forget("news")
        store.forget("chat")
        assert store.load() == {}
    assert loaded(tmp_path) == {}


def test_unchanged_state_is_not_written_again(tmp_path: Path) -> None:
    with SupervisorStore.open(tmp_path) as store:
        store.save("news", THREE)
        before = files(tmp_path)
        store.save("news", THREE)
        assert files(tmp_path) == before
        store.save("news", ODD)
        assert files(tmp_path) != before


@pytest.mark.heavy
def test_damage_to_any_byte_loads_only_saved_states(tmp_path: Path) -> None:
    states = {f"topic{number}": THREE for number in range(40)}
    original = saved(tmp_path / "original", **states)
    size = (original / FILE).stat().st_size
    for place in range(0, size, size // 100):
        copy = tmp_path / "copy"
        shutil.copytree(original, copy)
        flip(copy / FILE, place, 0x41)
        found = loaded(copy)
        assert found.items() <= states.items()
        saved(copy, news=ODD)
        assert loaded(copy) == {**found, "news": ODD}
        shutil.rmtree(copy)


def test_foreign_file_is_quarantined(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("a letter to my aunt\n" * 1000)
    with SupervisorStore.open(tmp_path) as store:
        assert store.load() == {}
        assert "was damaged" in (store.damage or "")
    assert damaged(tmp_path) == [f"{FILE}.damaged-1"]


def test_only_the_newest_damaged_file_is_kept(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / FILE).write_text(f"letter {number}\n" * 1000)
        (tmp_path / f"{FILE}-wal").write_text("notes")
        assert loaded(tmp_path) == {}
        assert damaged(tmp_path) == [f"{FILE}.damaged-1"]
        assert (tmp_path / damaged(tmp_path)[0]).read_text().startswith(f"letter {number}")


def test_damaged_row_is_omitted_alone(tmp_path: Path) -> None:
    saved(tmp_path, news=THREE, chat=ODD)
    execute(tmp_path, "UPDATE rosters SET body = x'00' WHERE topic = 'news'")
    assert loaded(tmp_path) == {"chat": ODD}


@pytest.mark.parametrize("name", ["b b", "", "n" * 65, "\u00e9"])
def test_state_with_an_invalid_name_is_omitted_because_every_member_would_refuse_it(
    tmp_path: Path, name: str
) -> None:
    recorded = SupervisorState(database=(("0", "a"), ("1", name)))
    saved(tmp_path, news=THREE, chat=recorded, jobs=SupervisorState(queue=(name,)))
    with SupervisorStore.open(tmp_path) as store:
        assert store.load() == {"news": THREE}
        assert "was damaged" in (store.damage or "")


def test_state_of_an_invalid_topic_is_omitted(tmp_path: Path) -> None:
    saved(tmp_path, **{"news": THREE, "t" * 500: THREE})
    assert loaded(tmp_path) == {"news": THREE}


def test_damage_at_run_time_loses_nothing(tmp_path: Path) -> None:
    with SupervisorStore.open(tmp_path) as store:
        store.save("news", THREE)
        execute(tmp_path, "DROP TABLE rosters")
        store.save("chat", ODD)
    assert loaded(tmp_path) == {"chat": ODD, "news": THREE}
    assert damaged(tmp_path) == [f"{FILE}.damaged-1"]


def test_full_disk_is_reported_and_the_save_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []

    def connected(path: Path) -> sqlite3.Connection:
        opened.append(connect(path))
        return opened[-1]

    monkeypatch.setattr(supervisor_store, "connect", connected)
    large = SupervisorState(database=tuple(("0", f"node{n}") for n in range(5000)))
    with SupervisorStore.open(tmp_path) as store:
        store.save("news", THREE)
        opened[-1].execute("PRAGMA max_page_count=3")
        with pytest.raises(StoreFullError):
            store.save("news", large)
        assert store.load() == {"news": THREE}
        opened[-1].execute("PRAGMA max_page_count=1000000")
        store.save("news", large)
    assert loaded(tmp_path) == {"news": large}


def test_directory_in_use_and_a_file_in_its_place_are_refused(tmp_path: Path) -> None:
    with SupervisorStore.open(tmp_path), pytest.raises(StoreBusyError):
        SupervisorStore.open(tmp_path)
    assert loaded(tmp_path) == {}
    with pytest.raises(StorageError):
        SupervisorStore.open(tmp_path / FILE)
