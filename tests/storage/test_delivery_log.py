"""Delivery logs: kept over restarts, bounded, and damage only loses entries."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import ENOSPC
from pathlib import Path
from zlib import crc32

import pytest

from skipring.core.effects import Origin
from skipring.storage import delivery_log as delivery_log_module
from skipring.storage.delivery_log import FOLDER, ROW_BYTES, DeliveryLog, DeliveryRows
from skipring.storage.store import LogStore
from tests.storage.logs import CHAT, NEWS, batch, flip, opened, segments, topic_path

ALL = 1 << 40
ORIGINS = tuple(Origin)
SEVERAL = 200  # batches of two records

Delivery = tuple[int, int, str]  # time, hops and origin


def delivery(offset: int, life: int = 0) -> Delivery:
    """Return the delivery of the batch at an offset, unique in one life of a node."""
    return 10**15 + 1000 * life + 7 * offset, offset // 2 % 256, ORIGINS[offset // 2 % 3].value


def record(trace: DeliveryLog, offsets: range, topic: str = NEWS, life: int = 0) -> None:
    """Record batches of two records, which begin at even offsets."""
    assert offsets.start % 2 == offsets.stop % 2 == 0
    for offset in offsets[::2]:
        time_us, hops, origin = delivery(offset, life)
        trace.record((topic, offset, time_us, hops, Origin(origin), 2))


def deliveries(offsets: range, life: int = 0) -> dict[int, Delivery]:
    return {offset: delivery(offset // 2 * 2, life) for offset in offsets}


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


@contextmanager
def tracing(directory: Path, batches: int = 0) -> Iterator[tuple[LogStore, DeliveryLog]]:
    """Yield a store with more batches and its delivery log, written at the end."""
    with opened(directory) as store:
        store_batches(store, batches)
        trace = DeliveryLog.open(directory, store)
        yield store, trace
        trace.write()
        trace.close()


def store_batches(store: LogStore, count: int, topic: str = NEWS) -> None:
    log = store.log(topic)
    for _ in range(count):
        log.append(batch(log.end, topic=topic))
    store.commit()


def traced(directory: Path, count: int = SEVERAL) -> Path:
    """Return the current file of a delivery log of some batches."""
    with tracing(directory, count) as (_, trace):
        record(trace, range(2 * count))
    return files(directory)[-1]


def files(directory: Path) -> list[Path]:
    return sorted((directory / FOLDER).iterdir())


def kept(directory: Path) -> dict[int, Delivery]:
    """Return the deliveries after a restart."""
    with tracing(directory) as (_, trace):
        return read(trace)


# -- in memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 512, 513, 3000])
def test_recorded_deliveries_can_be_read(count: int) -> None:
    trace = DeliveryLog()
    record(trace, range(2 * count))
    assert read(trace) == deliveries(range(2 * count))
    assert read(trace, CHAT) == {}
    assert (trace.end(NEWS), trace.end(CHAT)) == (2 * count, 0)
    assert not trace.is_behind
    trace.write()
    assert trace.error is None


@pytest.mark.parametrize(
    ("start", "end"), [(0, 1), (5, 5), (9, 3), (7, 8), (101, ALL), (1023, 1030)]
)
def test_only_the_requested_range_is_read(start: int, end: int) -> None:
    trace = DeliveryLog()
    record(trace, range(2000))
    wanted = deliveries(range(start, min(end, 2000)))
    assert read(trace, start=start, end=end) == wanted
    for count in (0, 1, 3):
        first = list(wanted)[:count]
        assert list(read(trace, start=start, end=end, count=count)) == first


def test_contiguous_rows_are_read_together() -> None:
    trace = DeliveryLog()
    trace.record((NEWS, 0, 50, 3, Origin.SPREAD, 2))
    trace.record((NEWS, 2, 60, 0, Origin.OWN, 1))
    trace.record((NEWS, 9, 70, 300, Origin.REPAIR, 100_000))  # hops have one byte
    first, second = trace.read(NEWS, 0, ALL, ALL)
    assert first == DeliveryRows(0, [50, 50, 60], bytes([3, 3, 0]), bytes([1, 1, 0]))
    assert (second.start, second.end, second.hops[0]) == (9, 100_009, 255)
    record(trace, range(200_000, 210_000))
    sizes = [len(known.times) for known in trace.read(NEWS, 200_000, ALL, ALL)]
    assert max(sizes) == delivery_log_module.CHUNK_MAX


def test_reading_a_page_does_not_read_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = DeliveryLog()
    record(trace, range(20_000))
    checked: list[bytes] = []

    def counted(fields: bytes) -> int:
        checked.append(fields)
        return crc32(fields)

    assert trace.end(NEWS) == 20_000  # packs the recorded deliveries
    monkeypatch.setattr(delivery_log_module, "crc32", counted)
    assert read(trace, start=5000, end=5100) == deliveries(range(5000, 5100))
    assert read(trace, start=5000, count=100) == deliveries(range(5000, 5100))
    assert len(checked) < 2 * 50 + 50


def test_deliveries_of_topics_are_separate() -> None:
    trace = DeliveryLog()
    for offset in range(0, 200, 2):
        record(trace, range(offset, offset + 2))
        record(trace, range(offset, offset + 2), CHAT, life=1)
    assert read(trace) == deliveries(range(200))
    assert read(trace, CHAT) == deliveries(range(200), life=1)
    trace.forget(CHAT)
    assert (read(trace, CHAT), trace.end(CHAT)) == ({}, 0)
    assert read(trace) == deliveries(range(200))


def test_offsets_may_be_skipped() -> None:
    trace = DeliveryLog()
    record(trace, range(10))
    record(trace, range(5000, 5010))
    assert read(trace) == deliveries(range(10)) | deliveries(range(5000, 5010))
    assert read(trace, start=10, end=5000) == {}


def test_oldest_deliveries_in_memory_are_dropped_beyond_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery_log_module, "IN_MEMORY_BYTES_MAX", 300 * ROW_BYTES)
    trace = DeliveryLog()
    record(trace, range(4000))
    found = read(trace)
    assert 300 <= len(found) <= 600
    assert found == deliveries(range(4000 - len(found), 4000))


# -- on a disk -----------------------------------------------------------------------------------


def test_written_deliveries_survive_a_restart(tmp_path: Path) -> None:
    with tracing(tmp_path, SEVERAL) as (_, trace):
        record(trace, range(2 * SEVERAL))
        assert trace.is_behind
        trace.write()
        assert not trace.is_behind
        (file,) = files(tmp_path)
        assert file.stat().st_mode & 0o777 == 0o600
        assert read(trace) == deliveries(range(2 * SEVERAL))
    with tracing(tmp_path) as (_, trace):
        assert read(trace) == deliveries(range(2 * SEVERAL))
        assert (trace.failures, trace.end(NEWS)) == (0, 2 * SEVERAL)
        assert read(trace, start=101, end=110) == deliveries(range(101, 110))
        trace.forget(NEWS)
        assert read(trace) == {}
    assert kept(tmp_path) == {}


def test_many_small_writes_are_one_file_of_rows(tmp_path: Path) -> None:
    with tracing(tmp_path, SEVERAL) as (_, trace):
        for offset in range(0, 2 * SEVERAL, 2):
            record(trace, range(offset, offset + 2))
            trace.write()
            assert len(read(trace)) == offset + 2
    (file,) = files(tmp_path)
    assert 0 <= file.stat().st_size - SEVERAL * ROW_BYTES < 200
    assert kept(tmp_path) == deliveries(range(2 * SEVERAL))


def test_recording_continues_after_every_restart(tmp_path: Path) -> None:
    for start in range(0, 300, 60):
        with tracing(tmp_path, 30) as (_, trace):
            assert read(trace) == deliveries(range(start))
            record(trace, range(start, start + 60))
            assert read(trace) == deliveries(range(start + 60))
    assert kept(tmp_path) == deliveries(range(300))


def test_only_durable_deliveries_are_written(tmp_path: Path) -> None:
    with tracing(tmp_path, 50) as (_, trace):
        record(trace, range(140))  # the store does not have the last ones yet
        trace.write()
        assert trace.is_behind
        assert read(trace) == deliveries(range(140))
    with tracing(tmp_path, 20) as (_, trace):
        assert read(trace) == deliveries(range(100)), "the later ones were not durable"


def test_oldest_deliveries_on_disk_are_dropped_beyond_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_log_module, "FILE_BYTES_MAX", 100 * ROW_BYTES)
    with tracing(tmp_path, 1000) as (_, trace):
        for start in range(0, 2000, 20):
            record(trace, range(start, start + 20))
            trace.write()
            assert sum(path.stat().st_size for path in files(tmp_path)) < 250 * ROW_BYTES
        found = read(trace)
        assert 200 <= len(found) <= 480
        assert found == deliveries(range(2000 - len(found), 2000))
        assert list(read(trace, start=1800, count=1)) == [1800]
    assert len(files(tmp_path)) == 2
    assert kept(tmp_path) == found


def test_reading_and_recording_work_while_another_thread_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_log_module, "FILE_BYTES_MAX", 1500 * ROW_BYTES)
    with tracing(tmp_path, 2000) as (_, trace):
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
                assert trace.end(NEWS) == start + 80
        finally:
            stop.set()
            writer.join()
        assert trace.failures == 0
    assert kept(tmp_path) == deliveries(range(4000))


# -- offsets with a new meaning ------------------------------------------------------------------


def test_another_store_in_the_directory_has_no_old_deliveries(tmp_path: Path) -> None:
    traced(tmp_path)
    shutil.rmtree(tmp_path / "topics")
    with tracing(tmp_path, SEVERAL) as (_, trace):
        assert read(trace) == {}
        record(trace, range(20), life=1)
    assert kept(tmp_path) == deliveries(range(20), life=1)


def test_new_epoch_has_no_old_deliveries(tmp_path: Path) -> None:
    traced(tmp_path, 50)
    segments(topic_path(tmp_path))[0].unlink()  # a loss
    with tracing(tmp_path) as (store, trace):
        assert store.log(NEWS).end == 100
        assert read(trace) == {}
        store_batches(store, 10)
        record(trace, range(100, 120), life=1)
    assert kept(tmp_path) == deliveries(range(100, 120), life=1)


def test_deliveries_are_dropped_if_the_log_has_lost_its_end(tmp_path: Path) -> None:
    traced(tmp_path, 50)
    segments(topic_path(tmp_path))[-1].unlink()
    with tracing(tmp_path) as (store, trace):
        end = store.log(NEWS).end
        assert end < 100
        assert (read(trace), trace.end(NEWS)) == ({}, 0)
        store_batches(store, 30)
        record(trace, range(end, end + 20), life=1)
    assert kept(tmp_path) == deliveries(range(end, end + 20), life=1)


# -- damage --------------------------------------------------------------------------------------


def check_usable(directory: Path) -> dict[int, Delivery]:
    """Return the remaining deliveries; assert that the log accepts and keeps new ones."""
    with tracing(directory, 50) as (store, trace):
        found = read(trace)
        assert found.items() <= deliveries(range(2 * SEVERAL)).items(), "nothing is invented"
        end = store.log(NEWS).end
        new = range(end - 100, end)
        record(trace, new)
        trace.write()
        assert read(trace) == found | deliveries(new)
    assert kept(directory) == found | deliveries(new)
    return found


def row_at(file: Path, number: int) -> int:
    """Return the position of a row."""
    return file.stat().st_size - (SEVERAL - number) * ROW_BYTES


@pytest.mark.parametrize("place", [0, 5, 10, 18, 21, 25])
def test_damaged_row_is_dropped_alone(tmp_path: Path, place: int) -> None:
    file = traced(tmp_path)
    for number in (0, 7, SEVERAL - 1):
        flip(file, row_at(file, number) + place)
    lost = (0, 1, 14, 15, 2 * SEVERAL - 2, 2 * SEVERAL - 1)
    expected = deliveries(range(2 * SEVERAL))
    assert check_usable(tmp_path) == {o: d for o, d in expected.items() if o not in lost}


@pytest.mark.parametrize("count", [10, 100])
def test_many_damaged_rows_are_skipped(tmp_path: Path, count: int) -> None:
    file = traced(tmp_path)
    data = bytearray(file.read_bytes())
    begin = row_at(file, 50)
    data[begin : begin + count * ROW_BYTES] = bytes(count * ROW_BYTES)
    file.write_bytes(data)
    expected = deliveries(range(100)) | deliveries(range(100 + 2 * count, 2 * SEVERAL))
    with tracing(tmp_path) as (_, trace):
        for start in range(0, 2 * SEVERAL, 9):
            wanted = {offset: each for offset, each in expected.items() if offset >= start}
            assert read(trace, start=start) == wanted
    assert check_usable(tmp_path) == expected


@pytest.mark.parametrize("cut", [1, ROW_BYTES - 1, ROW_BYTES, 50 * ROW_BYTES + 3])
def test_truncated_file_keeps_its_beginning(tmp_path: Path, cut: int) -> None:
    file = traced(tmp_path)
    os.truncate(file, file.stat().st_size - cut)
    rows = SEVERAL - -(-cut // ROW_BYTES)
    assert check_usable(tmp_path) == deliveries(range(2 * rows))


@pytest.mark.parametrize("seed", range(20))
def test_delivery_log_stays_usable_after_flipped_bits(seed: int, tmp_path: Path) -> None:
    file = traced(tmp_path)
    rng = random.Random(seed)
    for _ in range(rng.choice([1, 3, 100])):
        flip(file, rng.randrange(file.stat().st_size), 1 << rng.randrange(8))
    check_usable(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(random.Random(0).randbytes(50_000)),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:10]),
        lambda file: file.write_bytes(file.read_bytes()[30:]),
        lambda file: file.unlink(),
        lambda file: shutil.rmtree(file.parent),
    ],
)
def test_unusable_file_is_replaced(damage: Callable[[Path], None], tmp_path: Path) -> None:
    damage(traced(tmp_path))
    assert check_usable(tmp_path) == {}


# -- a disk that refuses writes --------------------------------------------------------------------


def test_full_disk_keeps_deliveries_in_memory_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(ENOSPC, "no room")

    with tracing(tmp_path, 500) as (_, trace):
        record(trace, range(10))
        trace.write()
        record(trace, range(10, 1000))
        with monkeypatch.context() as patch:
            patch.setattr(delivery_log_module, "_append", full)
            trace.write()
        assert trace.failures == 1
        assert "no room" in str(trace.error)
        assert read(trace) == deliveries(range(1000))
        trace.write()
        assert (trace.failures, trace.error) == (1, None)
    assert kept(tmp_path) == deliveries(range(1000))


@pytest.mark.parametrize("is_folder", [True, False])
def test_wrong_kind_of_file_keeps_the_log_in_memory(tmp_path: Path, is_folder: bool) -> None:
    if is_folder:
        file = traced(tmp_path)
        file.unlink()
        file.mkdir()
    else:
        (tmp_path / FOLDER).write_bytes(b"file")
    with tracing(tmp_path, SEVERAL) as (_, trace):
        record(trace, range(2 * SEVERAL))
        trace.write()
        assert trace.error is not None
        assert read(trace) == deliveries(range(2 * SEVERAL))
        trace.forget(NEWS)
        assert read(trace) == {}


def test_recording_continues_in_memory_after_a_close(tmp_path: Path) -> None:
    with tracing(tmp_path, 10) as (_, trace):
        trace.close()
        trace.close()
        record(trace, range(10))
        trace.write()
        assert not trace.is_behind
        assert read(trace) == deliveries(range(10))
