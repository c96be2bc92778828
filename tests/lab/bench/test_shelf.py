"""Newcomers of peers that keep what they get; no server takes part."""

import asyncio
import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from skipring.lab.bench.peers import jetstream, redis_streams
from skipring.lab.bench.peers.catalogue import JETSTREAM_STORED, REDIS_STREAMS_STORED
from skipring.lab.bench.peers.run import BenchRun, Newcomer
from skipring.lab.bench.peers.shelf import FILE, GROUP, ROWS_AT_ONCE, Keeper, Shelf
from skipring.lab.bench.tally import payload_at

Rows = list[tuple[int, bytes]]


def _on_disk(directory: Path) -> Rows:
    """What would be found if the process were killed now."""
    copy = directory / "copy"
    copy.mkdir()
    for file in directory.glob(f"{FILE}*"):
        shutil.copy(file, copy)
    db = sqlite3.connect(copy / FILE)
    try:
        return db.execute("SELECT id, payload FROM shelf ORDER BY id").fetchall()
    finally:
        db.close()
        shutil.rmtree(copy)


def _expected(count: int) -> Rows:
    return [(number, payload_at(number, 16)) for number in range(1, count + 1)]


@pytest.mark.parametrize("count", [1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 3])
def test_what_was_put_on_a_shelf_is_on_the_disk(count: int, tmp_path: Path) -> None:
    shelf, rows = Shelf(tmp_path), _expected(count)
    shelf.put([number for number, _ in rows], [payload for _, payload in rows])
    assert _on_disk(tmp_path) == rows
    assert shelf.count == count
    shelf.close()


def test_a_shelf_syncs_every_transaction(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    asked = ("journal_mode", "synchronous")
    found = [shelf._db.execute(f"PRAGMA {name}").fetchone()[0] for name in asked]
    assert found == ["wal", 2]  # 2 is FULL
    shelf.close()


def test_nothing_is_kept_twice(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.put([1], [b"a"])
    with pytest.raises(sqlite3.IntegrityError):
        shelf.put([1], [b"b"])
    shelf.close()
    assert _on_disk(tmp_path) == [(1, b"a")]


def _keeper(newcomer: Newcomer, directory: Path) -> Keeper:
    assert isinstance(newcomer, Keeper)
    newcomer.shelf = Shelf(directory)
    return newcomer


def test_a_keeper_of_jetstream_keeps_groups_and_is_done_when_the_last_one_is_kept(
    tmp_path: Path,
) -> None:
    count = GROUP + 3
    run = BenchRun(system=JETSTREAM_STORED, n=1, count=count, directory=tmp_path)
    keeper = _keeper(jetstream.newcomer(run), tmp_path)
    assert isinstance(keeper, jetstream.JetStreamKeeper)
    kept: dict[int, int] = {}

    async def scene() -> None:
        done = asyncio.Event()
        take = keeper.taker(done)
        for number, payload in _expected(count):
            assert not done.is_set()
            reply = f"$JS.ACK.BENCH.who.1.{number}.77.1700000000000000000.{count - number}"
            await take(SimpleNamespace(reply=reply, data=payload))
            if number % GROUP in (0, 1, 3, GROUP - 1):
                kept[number] = keeper.shelf.count
        assert done.is_set()

    asyncio.run(scene())
    assert kept == {1: 0, 3: 0, GROUP - 1: 0, GROUP: GROUP, GROUP + 1: GROUP, count: count}
    assert keeper.first_ns > 0
    assert _on_disk(tmp_path) == _expected(count)
    asyncio.run(keeper.leave())
    assert keeper.count == count


def test_a_keeper_of_a_redis_stream_keeps_each_part_in_the_order_of_its_entries(
    tmp_path: Path,
) -> None:
    run = BenchRun(system=REDIS_STREAMS_STORED, n=1, count=3, directory=tmp_path)
    keeper = _keeper(redis_streams.newcomer(run), tmp_path)
    assert isinstance(keeper, redis_streams.StreamKeeper)
    names = [b"1700000000000-9", b"1700000000000-10", b"1700000000001-0"]
    keeper.take([(name, {redis_streams.FIELD: name}) for name in names])
    assert [payload for _, payload in _on_disk(tmp_path)] == names
    asyncio.run(keeper.leave())
    assert keeper.count == len(names)


@pytest.mark.parametrize("module", [jetstream, redis_streams])
def test_who_is_not_asked_to_keep_anything_has_no_shelf(module: object) -> None:
    newcomer = module.newcomer(BenchRun(system="jetstream", n=1))  # type: ignore[attr-defined]
    assert not isinstance(newcomer, Keeper)
