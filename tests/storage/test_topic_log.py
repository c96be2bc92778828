"""Log of a topic: reads, ranges, the chain, quarantine, and commits that fail."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.limits import CHAIN_BYTES, SESSION_BYTES, is_same_chain
from skipring.core.log import ANY_BYTE, EntryFilter, LogEntry, MemoryLog, PageLimits
from skipring.errors import StorageError, StoreFullError
from skipring.storage import segment as segment_module
from skipring.storage import topic_directory, topic_log
from skipring.storage.segment_format import (
    START_OF_CHAIN,
    TRAILER_BYTES,
    decode_entry,
    entry_bytes,
    footer_bytes,
)
from skipring.storage.store import LogStore
from skipring.storage.topic_log import SegmentLog, next_chain
from tests.storage.logs import (
    NEWS,
    OWNER,
    FailingDisk,
    batch,
    flip,
    made,
    offsets,
    opened,
    paged,
    positions,
    quarantined,
    segments,
    state,
    topic_path,
    write,
)


def append(log: SegmentLog, count: int) -> None:
    for _ in range(count):
        log.append(batch(log.end))


def evens(end: int, start: int = 0) -> list[int]:
    return list(range(start, end, 2))


def test_batch_is_readable_at_once_and_durable_after_the_commit(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        assert log.append(batch(0)) == 0
        assert log.append(batch(2, count=3)) == 2
        assert (log.end, log.durable_end, log.records, store.unwritten) == (5, 0, 5, 5)
        assert offsets(log) == [0, 2]
        store.commit()
        assert (log.end, log.durable_end, log.records, store.unwritten) == (5, 5, 5, 0)
        assert offsets(log) == [0, 2]
        log.append(batch(5))
    assert state(tmp_path)[:2] == ([0, 2], 5)


def test_read_returns_the_batch_that_contains_an_offset(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        log.append(batch(0, count=5))
        store.commit()
        log.append(batch(5, count=3))
        found = [log.read(offset) for offset in range(9)]
        assert [each.offset for each in found if each is not None] == [0] * 5 + [5] * 3
        assert found[8] is None
        assert log.read(1 << 60) is None


def test_ranges_over_segment_boundaries(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        write(store, 15, 1, 4)
        append(log, 3)
        end = log.end
        assert len(segments(topic_path(tmp_path))) > 3
        for start in range(end + 2):
            for stop in range(start + 1, end + 2, 3):
                found = [entry.offset for entry in log.read_range(start, stop)]
                assert found == [each for each in evens(end) if each < stop and each + 2 > start]


def test_offsets_and_chain_survive_segment_boundaries(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        expected = [START_OF_CHAIN[:CHAIN_BYTES]]
        digest = START_OF_CHAIN
        for first in evens(60):
            made_batch = batch(first)
            log.append(made_batch)
            digest = next_chain(digest, made_batch.id, log.chain_at(log.end)[:SESSION_BYTES])
            expected += 2 * [digest[:CHAIN_BYTES]]  # inside a batch: the value after it
            assert [log.chain_at(offset) for offset in range(log.end + 1)] == expected
            if first % 6 == 0:
                store.commit()
                assert [log.chain_at(offset) for offset in range(log.end + 1)] == expected
        store.commit()
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        assert [log.chain_at(offset) for offset in range(log.end + 1)] == expected


def test_chain_detects_another_order_of_the_same_batches(tmp_path: Path) -> None:
    a, b, c, d, e = (batch(first) for first in evens(10))
    chains = []
    for parts in (((a, b, c), (d, e)), ((a, d, c), (b, e))):
        with opened(tmp_path / parts[0][1].id.hex()) as store:
            log = store.log(NEWS)
            for part in parts:
                for each in part:
                    log.append(each)
                store.commit()
            chains.append([log.chain_at(offset) for offset in evens(11)])
    one, other = chains
    assert all(map(is_same_chain, one[:2], other[:2]))
    assert not any(map(is_same_chain, one[2:], other[2:]))


def test_same_batches_that_are_stored_after_another_start_have_another_session(
    tmp_path: Path,
) -> None:
    chains = []
    path, copy = tmp_path / "store", tmp_path / "copy"
    made(path, 3)
    shutil.copytree(path, copy)
    for each in (path, copy):
        with opened(each) as store:
            write(store, 3)
            chains.append([store.log(NEWS).chain_at(offset) for offset in range(13)])
    one, other = chains
    assert one[:7] == other[:7]
    assert all(x != y for x, y in zip(one[7:], other[7:], strict=True))
    assert all(map(is_same_chain, one, other))


def test_chain_of_a_damaged_entry_is_zeros(tmp_path: Path) -> None:
    path = made(tmp_path, 15)
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        flip(segments(path)[0], 150)
        assert log.read(0) is None
        assert log.chain_at(2) == bytes(12)
        assert log.chain_at(4) != bytes(12)


def test_absent_records_between_two_offsets_are_counted(tmp_path: Path) -> None:
    path = made(tmp_path, 30)
    _, second, third, *_ = segments(path)
    lost = range(int(second.stem), int(third.stem))
    second.unlink()
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        assert log.discard(0) == 2
        assert log.count_absent(0, log.end) == 2 + len(lost)
        assert log.count_absent(1, lost[1]) == 1 + 1
        assert log.count_absent(lost.stop, log.end) == 0
        pages = [log.read_page(lost.start, log.end, PageLimits(1, 1, 1, 1))]
        assert (pages[0].entries, pages[0].next) == ([], lost.stop)


def test_newest_numbers_of_each_incarnation_of_the_owner(tmp_path: Path) -> None:
    def one(publisher: str, first: int, *, unordered: bool = False) -> RecordBatch:
        records = [BatchRecord(b"x")] * 3
        return RecordBatch.of(
            records, publisher=publisher, first=first, topic=NEWS, unordered=unordered
        )

    incarnation = 5 << 22
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        log.append(one(OWNER, 10))
        log.append(one(OWNER, 2))
        log.append(one(OWNER, 900, unordered=True))
        log.append(one("b", 77))
        log.append(one(OWNER, incarnation + 7))
        expected = {0: 12, 5: incarnation + 9}
        assert log.newest(OWNER) == expected
        store.commit()
        log.append(one(OWNER, 40))
        assert log.newest(OWNER) == expected | {0: 42}
        assert log.newest("b") == {}
        log.discard(15)
        store.commit()
    with opened(tmp_path) as store:
        assert store.log(NEWS).newest(OWNER) == expected | {0: 42}


class Reads:
    """Bytes that are read from files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        pread = os.pread

        def counted(file: int, size: int, position: int) -> bytes:
            data = pread(file, size, position)
            self.sizes.append(len(data))
            return data

        monkeypatch.setattr(os, "pread", counted)


def test_pages_are_bounded_and_read_no_more_than_they_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogStore.open(tmp_path) as store:
        log = store.log(NEWS)
        write(store, 200)
        everything = list(log.read_range(0, log.end))
        size = positions(segments(topic_path(tmp_path))[0])[-1] // 200
        reads = Reads(monkeypatch)
        for count in (1, 2, 5, 20):
            start = 0
            while start < log.end:
                limits = PageLimits(count * size, 1000, 1 << 20, 1000)
                page = log.read_page(start, log.end, limits)
                assert count - 1 <= len(page.entries) <= count + 1 or page.next == log.end
                assert len(reads.sizes) == 1
                assert sum(reads.sizes) <= (count + 1) * size + 10
                assert page.entries == everything[start // 2 : page.next // 2]
                reads.sizes.clear()
                start = page.next
        entries, following = log.read_page(0, log.end, PageLimits(1 << 20, 7, 1 << 20, 1000))
        assert (len(entries), following) == (7, 14)
        entries, following = log.read_page(5, 12, PageLimits(1 << 20, 100, 1 << 20, 1000))
        assert ([entry.offset for entry in entries], following) == ([4, 6, 8, 10], 12)


def test_pages_of_some_ids_skip_the_others_without_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogStore.open(tmp_path) as store:
        log = store.log(NEWS)
        write(store, 300)
        append(log, 100)
        everything = list(log.read_range(0, log.end))
        decoded: list[int] = []

        def counted(data: memoryview, at: int) -> LogEntry | None:
            decoded.append(at)
            return decode_entry(data, at)

        monkeypatch.setattr(segment_module, "decode_entry", counted)
        reads = Reads(monkeypatch)
        for firsts in (range(1), range(30, 60), range(255, 256), range(0)):
            wanted = [entry for entry in everything if entry.batch.id[0] in firsts]
            limits = PageLimits(1 << 20, 1000, 3000, 1000)
            assert paged(log, limits, firsts) == wanted
            assert len(decoded) == len(wanted)
            assert max(reads.sizes) < 3400
            decoded.clear()
        reads.sizes.clear()
        wanted = [entry for entry in everything if entry.batch.id[0] in range(30, 60)]
        page = log.read_page(
            0, 600, PageLimits(1 << 20, 1000, 1 << 20, 5), EntryFilter(range(30, 60))
        )
        assert page == (wanted[:5], wanted[5].offset)  # the limit of scanned entries


LARGE = PageLimits(1 << 20, 1000, 1 << 20, 1000)


@pytest.mark.parametrize("is_sealed", [False, True])
def test_entries_that_the_index_excludes_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_sealed: bool
) -> None:
    with opened(tmp_path) if is_sealed else LogStore.open(tmp_path) as store:
        write(store, 60)
    for _ in range(2):  # the second time from footers
        with opened(tmp_path) as store:
            log = store.log(NEWS)
            everything = list(log.read_range(0, log.end))
            reads = Reads(monkeypatch)
            wanted = EntryFilter(publishers=frozenset({"node1"}))
            page = log.read_page(0, log.end, LARGE, wanted)
            assert page.entries == [e for e in everything if e.batch.publisher == "node1"]
            assert len(reads.sizes) <= len(segments(topic_path(tmp_path, NEWS)))
            reads.sizes.clear()
            times = EntryFilter(times=range(1119, 1200))  # the last batch
            page = log.read_page(0, log.end, LARGE, times)
            assert everything[-1] in page.entries
            assert len(reads.sizes) == 1
            page = log.read_page(0, log.end, LARGE, EntryFilter(times=range(9)))
            assert page == ([], log.end)
            assert len(reads.sizes) == 1


@pytest.mark.parametrize("firsts", [ANY_BYTE, range(100)])
def test_pages_skip_damaged_and_absent_entries(tmp_path: Path, firsts: range) -> None:
    path = made(tmp_path, 40)
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        append(log, 10)
        before = paged(log, PageLimits(400, 10, 1000, 10), firsts)
        for file in segments(path):
            flip(file, positions(file)[1] - 1)  # the last byte of an entry, found by a read
        damaged = {int(file.stem) for file in segments(path)}
        for offset in (10, 92):
            log.discard(offset)
        gone = damaged | {10, 92}
        found = paged(log, PageLimits(400, 10, 1000, 10), firsts)
        assert found == [entry for entry in before if entry.offset not in gone]
        segments(path)[1].write_bytes(b"")
        assert set(paged(log, PageLimits(400, 10, 1000, 10), firsts)) < set(found)


LIMITS = st.builds(
    PageLimits, st.integers(1, 900), st.integers(1, 9), st.integers(1, 2000), st.integers(1, 20)
)


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=30),
    committed=st.integers(0, 30),
    discarded=st.sets(st.integers(0, 60), max_size=4),
    limits=LIMITS,
    firsts=st.builds(lambda a, b: range(min(a, b), max(a, b) + 1), *[st.integers(0, 255)] * 2),
    start=st.integers(0, 60),
)
def test_log_on_disk_behaves_like_a_log_in_memory(
    counts: list[int],
    committed: int,
    discarded: set[int],
    limits: PageLimits,
    firsts: range,
    start: int,
) -> None:
    memory = MemoryLog()
    with TemporaryDirectory() as directory, opened(Path(directory)) as store:
        log = store.log(NEWS)
        for number, count in enumerate(counts):
            if number == committed:
                store.commit()
            made_batch = batch(log.end, count)
            assert log.append(made_batch) == memory.append(made_batch)
        for offset in discarded:
            assert log.discard(offset) == memory.discard(offset)
        assert (log.end, log.records) == (memory.end, memory.records)
        assert list(log.entries()) == list(memory.entries())
        for offset in range(log.end + 1):
            assert plain(log.read(offset)) == plain(memory.read(offset))
        for end in (start + 1, start + 7, log.end):
            expected = list(memory.read_range(start, end))
            assert [plain(each) for each in log.read_range(start, end)] == expected
        for each in (firsts, ANY_BYTE):
            found = [plain(entry) for entry in paged(log, limits, each, start)]
            assert found == paged(memory, limits, each, start)


def plain(entry: LogEntry | None) -> LogEntry | None:
    """Return an entry without its digest: a log in memory has none."""
    return LogEntry(entry.offset, b"", entry.batch) if entry is not None else None


def test_quarantine_persists(tmp_path: Path) -> None:
    path = made(tmp_path, 10)
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        epoch = log.epoch
        append(log, 1)
        before = [log.chain_at(offset) for offset in range(23)]
        assert log.discard(7) == 2
        assert log.discard(7) == 0
        assert log.discard(20) == 2  # not yet on the disk
        assert log.discard(99) == 0
        expected = [each for each in evens(20) if each != 6]
        assert offsets(log) == expected
        assert log.read(6) is log.read(7) is log.read(20) is None
        assert [offset for _, offset in log.entries()] == expected
        store.commit()
        assert [each.batch for each in quarantined_entries(path)] == [batch(6), batch(20)]
        store.commit()
        assert len(quarantined(path)) == 1
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        assert offsets(log) == expected
        assert (log.end, log.epoch) == (22, epoch)
        assert [log.chain_at(offset) for offset in range(23)] == before
        write(store, 1)
        assert offsets(log) == [*expected, 22]


def quarantined_entries(path: Path) -> list[LogEntry]:
    """Return the entries in the only file of the quarantine."""
    (name,) = quarantined(path)
    data = (path / "quarantine" / name).read_bytes()
    found: list[LogEntry] = []
    at = 0
    while (entry := decode_entry(data, at)) is not None:
        found.append(entry)
        at += entry_bytes(data, at)
    assert at == len(data)
    return found


def test_commit_of_many_discards_syncs_and_searches_the_quarantine_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(tmp_path, 100)
    calls: list[Path] = []
    for name in ("sync_directory", "replace_by_directory"):
        call = getattr(topic_directory, name)
        monkeypatch.setattr(
            topic_directory, name, lambda path, call=call: (calls.append(path), call(path))[1]
        )
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        for offset in evens(200):
            log.discard(offset)
        calls.clear()
        store.commit()
        assert len(calls) <= 8
        assert len(quarantined_entries(path)) == 100
        assert log.records == 0


def test_damaged_batch_is_discarded_whole(tmp_path: Path) -> None:
    path = made(tmp_path, 10)
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        flip(segments(path)[0], 150)
        assert log.read(0) is None
        assert log.discard(1) == 2
        store.commit()
        assert 0 not in [offset for _, offset in log.entries()]
    with opened(tmp_path) as store:
        assert offsets(store.log(NEWS)) == evens(20, 2)
        assert store.log(NEWS).records == 18


def test_lost_files_read_as_absent_and_the_log_continues(tmp_path: Path) -> None:
    path = made(tmp_path, 10)
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        shutil.rmtree(path)
        assert log.read(0) is None
        assert list(log.read_range(0, 20)) == []
        append(log, 1)
        with pytest.raises(StorageError):
            store.commit()
        assert log.read(20) is not None
        store.commit()
        assert log.durable_end == 22
    assert state(tmp_path)[:2] == ([20], 22)


@pytest.mark.parametrize("earlier", [0, 3, 10])
def test_every_failed_call_is_repaired_by_the_next_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: int
) -> None:
    disk = FailingDisk(monkeypatch)
    copies = tmp_path / "copies"
    number = 0
    while True:
        directory = tmp_path / str(number)
        with opened(directory) as store:
            log = store.log(NEWS)
            if earlier:
                write(store, earlier)
            append(log, 5)
            log.discard(0)
            disk.calls, disk.fail_at = 0, number
            try:
                store.commit()
            except StorageError:
                is_failed = True
                assert 2 * earlier <= log.durable_end < log.end
                assert offsets(log) == evens(2 * earlier + 10, 2)
            else:
                is_failed = False
            disk.fail_at = -1
            append(log, 1)
            disk.before = lambda here=directory: _copy(here, copies)
            store.commit()
            disk.before = lambda: None
            end = 2 * earlier + 12
            assert log.durable_end == end
            assert offsets(log) == evens(end, 2)
            epoch = log.epoch
        assert state(directory) == (evens(end, 2), end, epoch)
        for copy in copies.iterdir():  # a crash during the second commit
            found, copied_end, copied_epoch = state(copy)
            assert set(evens(copied_end, 2)) <= set(found) <= set(evens(end))
            assert copied_end >= 2 * earlier
            assert copied_epoch == epoch or not earlier
        shutil.rmtree(copies)
        number += 1
        if not is_failed and disk.calls < number:
            break
    assert number > 5


@pytest.mark.parametrize("earlier", [0, 3, 10])
def test_crash_at_every_step_of_a_commit_keeps_confirmed_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: int
) -> None:
    live, copies = tmp_path / "live", tmp_path / "copies"
    with opened(live) as store:
        log = store.log(NEWS)
        if earlier:
            write(store, earlier)
        epoch = log.epoch
        append(log, 8)
        log.discard(2 * earlier + 4)
        with monkeypatch.context() as context:
            disk = FailingDisk(context)
            disk.before = lambda: _copy(live, copies)
            store.commit()
    _copy(live, copies)
    found = sorted(copies.iterdir())
    assert len(found) > 5
    ends = []
    for copy in found:
        with opened(copy) as store:
            log = store.log(NEWS)
            readable = offsets(log)
            lost = [2 * earlier + 4] if log.end > 2 * earlier + 4 else []
            assert log.end >= 2 * earlier
            assert set(evens(log.end)) - set(readable) <= set(lost)
            if earlier:
                assert log.epoch == epoch
            ends.append(log.end)
            write(store, 1)
            assert offsets(log)[-1] == log.end - 2
    assert ends == sorted(ends)
    assert ends[-1] == 2 * earlier + 16


def _copy(live: Path, copies: Path) -> None:
    number = len(list(copies.iterdir())) if copies.exists() else 0
    shutil.copytree(live, copies / f"{number:03}")


def test_entries_of_a_failed_sync_are_written_to_a_new_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(tmp_path, 2)
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        size = segments(path)[0].stat().st_size
        append(log, 1)
        with monkeypatch.context() as context:
            disk = FailingDisk(context)
            disk.fail_at = 1  # the sync
            with pytest.raises(StorageError):
                store.commit()
            assert segments(path)[0].stat().st_size > size
            assert log.durable_end == 4
            disk.refused = "ftruncate"  # the file cannot be cut
            store.commit()
            assert segments(path)[0].stat().st_size > size
        assert log.durable_end == 6
        assert [int(each.stem) for each in segments(path)] == [0, 4]
        write(store, 1)
        assert len(segments(path)) == 2
        expected = [log.chain_at(offset) for offset in range(9)]
        epoch = log.epoch
    segments(path)[0].write_bytes(segments(path)[0].read_bytes())
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        assert offsets(log) == [0, 2, 4, 6]
        assert log.epoch == epoch
        assert [log.chain_at(offset) for offset in range(9)] == expected


def test_failed_commit_keeps_the_footer_of_the_segment_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(tmp_path, 7)
    first, last = segments(path)
    last.unlink()  # a crash after the first segment was sealed
    data = first.read_bytes()
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        append(log, 1)
        with monkeypatch.context() as context:
            FailingDisk(context).fail_at = 0
            with pytest.raises(StorageError):
                store.commit()
        store.commit()
        assert first.read_bytes() == data
        assert offsets(log) == list(range(0, log.end, 2))
    assert state(tmp_path)[0] == list(range(0, log.end, 2))


def test_unconfirmed_entries_are_not_trusted_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, copies = made(tmp_path / "live", 2), tmp_path / "copies"
    with opened(tmp_path / "live") as store:
        log = store.log(NEWS)
        append(log, 1)
        with monkeypatch.context() as context:
            disk = FailingDisk(context)
            disk.fail_at = 1  # the sync
            with pytest.raises(StorageError):
                store.commit()
            disk.before = lambda: _copy(tmp_path / "live", copies)
            disk.refused = "ftruncate"  # the file cannot be cut
            store.commit()
    assert len(segments(path)) == 2
    seen = set()
    for copy in sorted(copies.iterdir()):
        names = [int(each.stem) for each in segments(topic_path(copy))]
        found, end, _ = state(copy)
        seen.add((len(names), end))
        if names == [0, 4] and end == 4:
            assert found == [0, 2]
    assert (2, 4) in seen  # the new segment was empty


def test_full_disk_is_reported_and_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        write(store, 3)
        append(log, 20)
        with monkeypatch.context() as context:
            writes = os.pwrite

            def full(file: int, parts: list[bytes], position: int) -> int:
                writes(file, b"".join(parts)[:100], position)
                raise OSError(ENOSPC, "no room")

            context.setattr(os, "pwritev", full)
            for _ in range(4):
                with pytest.raises(StoreFullError, match="disk is full"):
                    store.commit()
                assert offsets(log) == evens(46)
        assert len(segments(topic_path(tmp_path))) <= 3
        store.commit()
        assert log.durable_end == 46
    assert state(tmp_path)[:2] == (evens(46), 46)


def test_everything_written_is_synced_before_the_commit_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirty: set[Path] = set()
    confirmed: list[set[Path]] = []

    def name_of(file: int) -> Path:
        return Path(f"/proc/self/fd/{file}").readlink()

    def pwritev(file: int, parts: list[bytes], position: int) -> int:
        is_footer = footer_bytes(parts[-1][-TRAILER_BYTES:]) > 0  # it can be rebuilt
        if name_of(file).suffix == ".log" and not is_footer:
            dirty.add(name_of(file))
            dirty.update([name_of(file).parent] if position == 0 else [])  # a new file
        return writes(file, parts, position)

    def synced(call: Callable[[int], None]) -> Callable[[int], None]:
        def wrapper(file: int) -> None:
            call(file)
            dirty.discard(name_of(file))

        return wrapper

    writes = os.pwritev
    monkeypatch.setattr(os, "pwritev", pwritev)
    monkeypatch.setattr(os, "fsync", synced(os.fsync))
    monkeypatch.setattr(topic_log, "sync_data", synced(topic_log.sync_data))
    with opened(tmp_path) as store:
        for count in (1, 3, 20, 1):
            for topic in (NEWS, "other"):
                for _ in range(count):
                    store.log(topic).append(batch(store.log(topic).end, topic=topic))
            store.commit()
            confirmed.append(set(dirty))
            assert confirmed.pop() == set()
        assert len(segments(topic_path(tmp_path))) > 3


def test_largest_batches_and_default_segments(tmp_path: Path) -> None:
    records = [BatchRecord(os.urandom(400_000), time=5)]
    with LogStore.open(tmp_path) as store:
        log = store.log(NEWS)
        batches = [
            RecordBatch.of(records, publisher="a", first=number, topic=NEWS) for number in range(9)
        ]
        for each in batches:
            log.append(each)
        store.commit()
        assert [entry.batch for entry in log.read_range(0, 9)] == batches
    with LogStore.open(tmp_path) as store:
        log = store.log(NEWS)
        assert [entry.batch for entry in log.read_range(0, 9)] == batches
        page = log.read_page(0, 9, PageLimits(1_000_000, 100, 1 << 30, 100))
        assert page.next == 3


def test_reads_and_appends_while_another_thread_commits(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        failures: list[BaseException] = []
        is_over = threading.Event()

        def commit() -> None:
            try:
                while not is_over.is_set():
                    store.commit()
            except BaseException as error:  # noqa: BLE001  (reported by the test)
                failures.append(error)

        thread = threading.Thread(target=commit)
        thread.start()
        try:
            for first in evens(400):
                log.append(batch(first))
                assert log.read(first) is not None
                assert log.chain_at(log.end)
                if first % 50 == 0:
                    assert [e.offset for e in log.read_range(0, log.end)] == evens(log.end)
                    assert [offset for _, offset in log.entries()] == evens(log.end)
                    assert 0 < max(log.newest(OWNER).values()) < log.end
        finally:
            is_over.set()
            thread.join(60)
        assert not failures
        store.commit()
        assert offsets(log) == evens(400)
    assert state(tmp_path)[:2] == (evens(400), 400)


def test_committed_batches_are_not_kept_in_memory(tmp_path: Path) -> None:
    with LogStore.open(tmp_path) as store:
        log = store.log(NEWS)
        log.append(batch(0))
        assert log.waiting_bytes > 0
        store.commit()
        assert log.waiting_bytes == 0


def test_trim_and_remove_are_like_those_of_a_log_in_memory(tmp_path: Path) -> None:
    memory = MemoryLog()
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        for _ in range(3):
            for _ in range(10):
                memory.append(batch(log.end))
                append(log, 1)
            store.commit()
        for call, offset in (("remove", 20), ("trim", 7), ("remove", 6), ("discard", 9)):
            assert getattr(log, call)(offset) == getattr(memory, call)(offset)
        assert (log.low, log.records) == (memory.low, memory.records)
        for _ in range(3):
            store.commit()
            assert offsets(log) == [entry.offset for entry in memory.read_range(0, 60)]
    assert state(tmp_path)[0] == [entry.offset for entry in memory.read_range(0, 60)]


def test_trim_at_or_below_low_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        write(store, 5)
        append(log, 3)
        assert [log.trim(offset) for offset in (-5, 0, 1, 4, 3)] == [0, 0, 0, 4, 0]
        assert (log.low, log.records) == (4, 12)
