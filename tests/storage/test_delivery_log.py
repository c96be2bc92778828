"""Delivery logs: kept over restarts, bounded, and damage only loses entries."""

from __future__ import annotations

import random
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from skipring.core.effects import Origin
from skipring.storage import delivery_log as trace_module
from skipring.storage.delivery_file import DeliveryFile
from skipring.storage.delivery_log import DeliveryLog
from skipring.storage.durable_mark import losses_of
from skipring.storage.store import PublicationStore
from tests.storage.stored import CHAT, NEWS, flip, query, write

FILE = "deliveries.sqlite3"
CHUNK = 64  # smaller than the real chunks: publications take time to make
SEVERAL = 2 * CHUNK + 20  # two full chunks and a partial one
ALL = 1 << 40
ORIGINS = tuple(Origin)

Delivery = tuple[int, int, str]  # time, hops and origin


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "CHUNK_MAX", CHUNK)


def delivery(offset: int, life: int = 0) -> Delivery:
    """Return the unique delivery of an offset in one life of a node."""
    return 10**15 + 1000 * life + 7 * offset, offset % 256, ORIGINS[offset % 3].value


def record(trace: DeliveryLog, offsets: range, topic: str = NEWS, life: int = 0) -> None:
    for offset in offsets:
        time_us, hops, origin = delivery(offset, life)
        trace.record(topic, offset, time_us, hops, Origin(origin))


def read(
    trace: DeliveryLog, topic: str = NEWS, start: int = 0, end: int = ALL, count: int = ALL
) -> dict[int, Delivery]:
    """Return the deliveries by offset; assert that they are unique and in order."""
    found: dict[int, Delivery] = {}
    for known in trace.read(topic, start, end, count):
        origins = [ORIGINS[place].value for place in known.origins]
        columns = zip(known.times, known.hops, origins, strict=True)
        part = dict(enumerate(columns, known.start))
        assert known.end == known.start + len(part) > known.start
        assert min(part) > max(found, default=-1)
        found |= part
    return found


def deliveries(offsets: range, life: int = 0) -> dict[int, Delivery]:
    return {offset: delivery(offset, life) for offset in offsets}


@contextmanager
def opened(
    directory: Path, publications: int = 0
) -> Iterator[tuple[PublicationStore, DeliveryLog]]:
    """Yield a store with more publications and its delivery log, written at the end."""
    with PublicationStore.open(directory) as store:
        if publications:
            write(store, publications)
        trace = DeliveryLog.open(directory, store)
        try:
            yield store, trace
            trace.write()
        finally:
            trace.close()


def traced(directory: Path, count: int = SEVERAL) -> Path:
    """Return the directory of a store with publications and a delivery log of all of them."""
    with opened(directory, count) as (_, trace):
        record(trace, range(count))
    return directory


def kept(directory: Path) -> dict[int, Delivery]:
    """Return the deliveries after a restart."""
    with opened(directory) as (_, trace):
        return read(trace)


def rows(directory: Path) -> list[tuple[int, bytes]]:
    return query(directory, "SELECT chunk, body FROM chunks ORDER BY chunk", FILE)


# -- in memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, CHUNK, SEVERAL])
def test_recorded_deliveries_can_be_read(count: int) -> None:
    trace = DeliveryLog()
    record(trace, range(count))
    assert read(trace) == deliveries(range(count))
    assert read(trace, CHAT) == {}
    assert (trace.end(NEWS), trace.end(CHAT)) == (count, 0)


@pytest.mark.parametrize(
    ("start", "end"), [(0, 1), (5, 5), (9, 3), (CHUNK - 1, CHUNK + 1), (100, ALL)]
)
def test_only_the_requested_range_is_read(start: int, end: int) -> None:
    trace = DeliveryLog()
    record(trace, range(SEVERAL))
    wanted = deliveries(range(start, min(end, SEVERAL)))
    assert read(trace, start=start, end=end) == wanted
    first = list(wanted)[:3]
    assert list(read(trace, start=start, end=end, count=3)) == first


def test_deliveries_of_topics_are_separate() -> None:
    trace = DeliveryLog()
    for offset in range(SEVERAL):
        record(trace, range(offset, offset + 1))
        record(trace, range(offset, offset + 1), CHAT, life=1)
    assert read(trace) == deliveries(range(SEVERAL))
    assert read(trace, CHAT) == deliveries(range(SEVERAL), life=1)
    trace.forget(CHAT)
    assert read(trace, CHAT) == {}
    assert read(trace) == deliveries(range(SEVERAL))


def test_offsets_may_be_skipped() -> None:
    trace = DeliveryLog()
    record(trace, range(10))
    record(trace, range(5000, 5010))
    assert read(trace) == deliveries(range(10)) | deliveries(range(5000, 5010))
    assert read(trace, start=10, end=5000) == {}


# -- on a disk -----------------------------------------------------------------------------------


def test_written_deliveries_survive_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path, SEVERAL) as (_, trace):
        record(trace, range(SEVERAL))
        assert trace.is_behind
        trace.write()
        assert not trace.is_behind
        assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
        assert read(trace) == deliveries(range(SEVERAL))
    with opened(tmp_path) as (_, trace):
        assert read(trace) == deliveries(range(SEVERAL))
        assert (trace.failures, trace.end(NEWS)) == (0, SEVERAL)
        assert read(trace, start=100, end=110) == deliveries(range(100, 110))


def test_many_small_writes_fill_few_rows(tmp_path: Path) -> None:
    with opened(tmp_path, SEVERAL) as (_, trace):
        for offset in range(SEVERAL):
            record(trace, range(offset, offset + 1))
            if offset % 5 == 0:
                trace.write()
                assert len(read(trace)) == offset + 1
    assert len(rows(tmp_path)) == 3
    assert kept(tmp_path) == deliveries(range(SEVERAL))


def test_recording_continues_after_every_restart(tmp_path: Path) -> None:
    for start in range(0, 300, 60):
        with opened(tmp_path, 60) as (_, trace):
            assert read(trace) == deliveries(range(start))
            record(trace, range(start, start + 60))
            assert read(trace) == deliveries(range(start + 60))
    assert kept(tmp_path) == deliveries(range(300))


def test_only_durable_deliveries_are_written(tmp_path: Path) -> None:
    with opened(tmp_path, 100) as (_, trace):
        record(trace, range(SEVERAL))  # the store does not have the last ones yet
        trace.write()
        assert trace.is_behind
        assert read(trace) == deliveries(range(SEVERAL))
    with opened(tmp_path, SEVERAL - 100) as (_, trace):
        assert read(trace) == deliveries(range(100)), "the later ones were not durable"


def test_written_chunks_are_read_from_the_file_and_not_from_memory(tmp_path: Path) -> None:
    with opened(tmp_path, SEVERAL) as (_, trace):
        record(trace, range(SEVERAL))
        trace.write()
        execute(tmp_path / FILE, "DELETE FROM chunks")
        assert read(trace) == deliveries(range(2 * CHUNK, SEVERAL))  # the chunk that is not full
        record(trace, range(SEVERAL + 5, SEVERAL + 6))
        trace.write()
        assert read(trace) == deliveries(range(SEVERAL + 5, SEVERAL + 6))


@pytest.mark.parametrize("on_disk", [False, True])
def test_oldest_deliveries_are_dropped_beyond_the_limit(
    on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "ON_DISK_MAX" if on_disk else "IN_MEMORY_MAX", 300)
    with opened(tmp_path, 1000 if on_disk else 0) as (_, trace):
        for start in range(0, 1000, 50):
            record(trace, range(start, start + 50))
            trace.write()
        found = read(trace)
    assert 300 <= len(found) <= 300 + CHUNK
    assert found == deliveries(range(1000 - len(found), 1000))
    if on_disk:
        assert len(rows(tmp_path)) == 6
        assert kept(tmp_path) == found


def test_reading_and_recording_work_while_another_thread_writes(tmp_path: Path) -> None:
    with opened(tmp_path, 4000) as (_, trace):
        stop = threading.Event()

        def keep_writing() -> None:
            while not stop.is_set():
                trace.write()

        writer = threading.Thread(target=keep_writing)
        writer.start()
        try:
            for start in range(0, 4000, 80):
                record(trace, range(start, start + 80))
                near = max(0, start - 300)
                assert read(trace, start=near) == deliveries(range(near, start + 80))
            assert read(trace) == deliveries(range(4000))
        finally:
            stop.set()
            writer.join()
        assert trace.failures == 0
    assert kept(tmp_path) == deliveries(range(4000))


# -- offsets with a new meaning ------------------------------------------------------------------


def test_another_store_in_the_directory_has_no_old_deliveries(tmp_path: Path) -> None:
    traced(tmp_path)
    for path in tmp_path.glob("publications.*"):
        path.unlink()
    with opened(tmp_path, SEVERAL) as (_, trace):
        assert read(trace) == {}
    assert rows(tmp_path) == []


def test_new_epoch_has_no_old_deliveries(tmp_path: Path) -> None:
    traced(tmp_path / "a", 100)
    shutil.copy(tmp_path / "a" / "publications.sqlite3", tmp_path / "older")
    with opened(tmp_path / "a", 50) as (_, trace):
        record(trace, range(100, 150))
    shutil.copy(tmp_path / "older", tmp_path / "a" / "publications.sqlite3")
    with opened(tmp_path / "a") as (store, trace):
        assert (losses_of(store.archive(NEWS).epoch), store.archive(NEWS).end) == (1, 100)
        assert read(trace) == {}
        write(store, 60)
        record(trace, range(100, 160), life=1)
    with opened(tmp_path / "a") as (_, trace):
        assert read(trace) == deliveries(range(100, 160), life=1)


def test_deliveries_beyond_the_end_of_the_store_are_forgotten(tmp_path: Path) -> None:
    """Restore an old copy of the store, but not of the delivery log."""
    shutil.copytree(traced(tmp_path / "a", CHUNK), tmp_path / "old")
    with opened(tmp_path / "a", 50) as (_, trace):
        record(trace, range(CHUNK, CHUNK + 50))
    for path in (tmp_path / "old").glob("publications.*"):
        shutil.copy(path, tmp_path / "a" / path.name)
    with opened(tmp_path / "a") as (store, trace):
        assert read(trace) == deliveries(range(CHUNK))
        write(store, 50)
    with opened(tmp_path / "a") as (_, trace):
        assert read(trace) == deliveries(range(CHUNK)), "others have these offsets now"


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("offset", [0, 1, CHUNK, 100, SEVERAL - 30])
def test_reused_offset_invalidates_later_ones(on_disk: bool, offset: int, tmp_path: Path) -> None:
    again = range(offset, offset + 30)
    expected = deliveries(range(offset)) | deliveries(again, life=1)
    with opened(tmp_path, SEVERAL) as (_, trace):
        record(trace, range(SEVERAL))
        if on_disk:
            trace.write()
        record(trace, again, life=1)
        assert read(trace) == expected
    assert kept(tmp_path) == expected


# -- damage --------------------------------------------------------------------------------------


def check_usable(directory: Path) -> dict[int, Delivery]:
    """Return the remaining deliveries; assert that the log accepts and keeps new ones."""
    with opened(directory, 100) as (store, trace):
        found = read(trace)
        assert all(found[offset] == delivery(offset) for offset in found), "nothing is invented"
        end = store.archive(NEWS).end
        new = range(end - 100, end)
        record(trace, new)
        trace.write()
        assert read(trace) == found | deliveries(new)
    with opened(directory) as (_, trace):
        assert read(trace) == found | deliveries(new)
    return found


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_delivery_log_stays_usable_after_truncation(
    share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "CHUNK_MAX", 1024)  # a chunk then takes several pages
    path = traced(tmp_path, 2148) / FILE
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    check_usable(tmp_path)


@pytest.mark.parametrize("seed", range(20))
def test_delivery_log_stays_usable_after_flipped_bits(seed: int, tmp_path: Path) -> None:
    path = traced(tmp_path) / FILE
    rng = random.Random(seed)
    for _ in range(rng.choice([1, 3, 100])):
        flip(path, rng.randrange(path.stat().st_size), 1 << rng.randrange(8))
    check_usable(tmp_path)


def with_garbage(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(50_000))


def with_other_tables(path: Path) -> None:
    path.unlink()
    execute(path, "CREATE TABLE chunks(chunk TEXT, other TEXT)")


def with_tables_that_are_no_text(path: Path) -> None:
    flip(path, path.read_bytes().index(b"KEY, body") + 3, 0x80)


def with_values_of_other_types(path: Path) -> None:
    for chunk, body in ((1, "'text'"), (2, "7"), (3, "x''")):
        execute(path, f"UPDATE chunks SET body = {body} WHERE chunk = {chunk}")


def with_old_log_beside(path: Path) -> None:
    path.with_name(path.name + "-wal").write_bytes(random.Random(1).randbytes(10_000))


def execute(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(statement)
        db.commit()


@pytest.mark.parametrize(
    "damage",
    [
        with_garbage,
        with_other_tables,
        partial(execute, statement="CREATE TABLE other(x)"),
        with_tables_that_are_no_text,
        with_values_of_other_types,
        with_old_log_beside,
        Path.unlink,
    ],
)
def test_delivery_log_stays_usable_after_any_damage(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    damage(traced(tmp_path) / FILE)
    check_usable(tmp_path)


def test_chunk_with_a_wrong_checksum_is_dropped_alone(tmp_path: Path) -> None:
    traced(tmp_path)
    (_, body) = rows(tmp_path)[1]
    changed = body[:100] + bytes([body[100] ^ 1]) + body[101:]
    execute(tmp_path / FILE, f"UPDATE chunks SET body = x'{changed.hex()}' WHERE chunk = 2")
    whole = deliveries(range(CHUNK)) | deliveries(range(2 * CHUNK, SEVERAL))
    assert check_usable(tmp_path) == whole


def test_chunk_damaged_at_run_time_is_not_served(tmp_path: Path) -> None:
    with opened(traced(tmp_path)) as (_, trace):
        execute(tmp_path / FILE, "UPDATE chunks SET body = zeroblob(10000) WHERE chunk = 2")
        execute(tmp_path / FILE, "DELETE FROM chunks WHERE chunk = 1")
        assert read(trace) == deliveries(range(2 * CHUNK, SEVERAL))


def test_file_damaged_at_run_time_is_rebuilt(tmp_path: Path) -> None:
    in_memory = deliveries(range(CHUNK, 100))
    with opened(tmp_path, 100) as (store, trace):
        write(store, 5, topic=CHAT)
        record(trace, range(100))
        trace.write()
        execute(tmp_path / FILE, "DROP TABLE chunks")
        record(trace, range(5), CHAT)
        trace.write()
        assert trace.failures == 1
        assert (read(trace), read(trace, CHAT)) == (in_memory, deliveries(range(5)))
        trace.write()
        assert (trace.failures, trace.error) == (1, None)
    with opened(tmp_path) as (_, trace):
        assert (read(trace), read(trace, CHAT)) == (in_memory, deliveries(range(5)))


def disk_full_error() -> sqlite3.OperationalError:
    """Return the error of SQLite on a full disk."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE t(x)")
        db.execute("PRAGMA max_page_count = 2")
        with pytest.raises(sqlite3.OperationalError) as caught:
            db.execute("INSERT INTO t VALUES (zeroblob(100000))")
    return caught.value


# -- a disk that refuses writes --------------------------------------------------------------------


def test_full_disk_keeps_deliveries_in_memory_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise disk_full_error()

    with opened(tmp_path, 1000) as (_, trace):
        record(trace, range(10))
        trace.write()
        record(trace, range(10, 1000))
        with monkeypatch.context() as patch:
            patch.setattr(DeliveryFile, "write", full)
            trace.write()
        assert (trace.failures, trace.error) == (1, "database or disk is full")
        assert read(trace) == deliveries(range(1000))
        trace.write()
        assert (trace.failures, trace.error) == (1, None)
    assert kept(tmp_path) == deliveries(range(1000))


def test_unwritten_deliveries_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "IN_MEMORY_MAX", 300)
    with opened(tmp_path, CHUNK) as (_, trace):
        record(trace, range(CHUNK))
        trace.write()
        record(trace, range(CHUNK, 1000))  # never durable, so never written
        trace.write()
        found = list(read(trace))
        assert found[:CHUNK] == list(range(CHUNK))
        assert 300 <= len(found) - CHUNK <= 300 + CHUNK


def test_directory_in_place_of_the_file_keeps_the_log_in_memory(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir(parents=True)
    with opened(tmp_path, SEVERAL) as (_, trace):
        record(trace, range(SEVERAL))
        trace.write()
        assert trace.error is not None
        assert read(trace) == deliveries(range(SEVERAL))


def test_second_close_does_nothing_and_recording_continues(tmp_path: Path) -> None:
    with opened(tmp_path, 10) as (_, trace):
        trace.close()
        trace.close()
        record(trace, range(10))
        trace.write()
        assert not trace.is_behind
        assert read(trace) == deliveries(range(10))


# -- packs -----------------------------------------------------------------------------------------


def same(offsets: range, hops: int = 3, time_us: int = 10**15) -> dict[int, Delivery]:
    """Return the deliveries of publications that arrived together."""
    return dict.fromkeys(offsets, (time_us, hops, Origin.SPREAD.value))


def record_pack(trace: DeliveryLog, offsets: range, hops: int = 3) -> None:
    trace.record(NEWS, offsets.start, 10**15, hops, Origin.SPREAD, len(offsets))


@pytest.mark.parametrize("start", [0, 7])
@pytest.mark.parametrize("count", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 5])
def test_pack_of_any_size_equals_single_deliveries(start: int, count: int) -> None:
    trace, one_by_one = DeliveryLog(), DeliveryLog()
    record_pack(trace, range(start, start + count))
    for offset in range(start, start + count):
        record_pack(one_by_one, range(offset, offset + 1))
    assert read(trace) == read(one_by_one) == same(range(start, start + count))
    assert trace.end(NEWS) == one_by_one.end(NEWS) == (start + count if count else 0)
    chunks = [len(known.times) for known in trace.read(NEWS, 0, ALL, ALL)]
    assert chunks == [len(known.times) for known in one_by_one.read(NEWS, 0, ALL, ALL)]
    assert max(chunks, default=0) <= CHUNK


def test_packs_fill_a_partial_chunk() -> None:
    trace = DeliveryLog()
    for start in range(0, 240, 40):
        record_pack(trace, range(start, start + 40), hops=start // 40)
    chunks = [len(known.times) for known in trace.read(NEWS, 0, ALL, ALL)]
    assert chunks == [CHUNK, CHUNK, CHUNK, 240 - 3 * CHUNK]
    assert [hops for _, hops, _ in read(trace).values()] == [at // 40 for at in range(240)]


def test_pack_invalidates_deliveries_from_its_first_offset_on() -> None:
    trace = DeliveryLog()
    record_pack(trace, range(SEVERAL))
    record_pack(trace, range(CHUNK + 5, CHUNK + 9), hops=9)
    assert read(trace) == same(range(CHUNK + 5)) | same(range(CHUNK + 5, CHUNK + 9), hops=9)


@pytest.mark.parametrize("durable", [SEVERAL, CHUNK + 5])
def test_durable_part_of_a_pack_survives_a_restart(tmp_path: Path, durable: int) -> None:
    with opened(tmp_path, durable) as (_, trace):
        record_pack(trace, range(SEVERAL))
    assert kept(tmp_path) == same(range(durable))
