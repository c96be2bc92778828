"""Segments of a log in order: reads, statistics, and files that are deleted or rewritten."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skipring.core.log import LogEntry, MemoryLog
from skipring.storage import topic_log
from skipring.storage.store import LogStore
from skipring.storage.topic_log import SegmentLog
from tests.storage.logs import (
    NEWS,
    OWNER,
    batch,
    made,
    offsets,
    opened,
    segments,
    state,
    topic_path,
    write,
)


def test_segments_before_low_are_deleted_and_the_rest_stays(tmp_path: Path) -> None:
    path = made(tmp_path, 40)
    starts = [int(each.stem) for each in segments(path)]
    assert len(starts) > 4
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        epoch, chains = log.epoch, [log.chain_at(offset) for offset in range(81)]
        assert log.trim(starts[3] + 3) == starts[3] + 2
        store.commit()
        assert [int(each.stem) for each in segments(path)] == starts[3:]
        low = log.low
        assert [log.chain_at(offset) for offset in range(low, 81)] == chains[low:]
    assert state(tmp_path) == (list(range(low, 80, 2)), 80, epoch)


def test_segment_with_few_live_entries_is_rewritten(tmp_path: Path) -> None:
    path = made(tmp_path, 30)
    first = segments(path)[0]
    stop, size = int(segments(path)[1].stem), first.stat().st_size
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        before = log.read(0)
        for offset in range(2, stop, 2):
            log.remove(offset)
        store.commit()
        assert first.stat().st_size < size / 2
        assert offsets(log) == [0, *range(stop, 60, 2)]
        assert isinstance(before, LogEntry)
        assert log.read(0) == before
        assert (log.low, log.end, log.records) == (0, 60, 60 - stop + 2)


def test_extents_know_counts_and_times_without_a_read(tmp_path: Path) -> None:
    path = made(tmp_path, 30)
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        found = log.extents()
        assert [each.start for each in found] == [int(each.stem) for each in segments(path)]
        assert sum(each.records for each in found) == log.records
        for each in found:
            assert (each.earliest, each.latest) == (1000 + each.start, 1000 + each.end - 1)
        log.remove(0)
        assert log.extents()[0].size_bytes < found[0].size_bytes
        assert log.extents()[0].records == found[0].records - 2


def test_entries_are_listed_while_their_segments_are_replaced(tmp_path: Path) -> None:
    path = made(tmp_path, 30)
    stop = int(segments(path)[1].stem)
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        found = log.entries()
        seen = [next(found), next(found)]
        for offset in range(4, stop - 2, 2):
            log.remove(offset)
        store.commit()
        seen += found
    assert seen == [(batch(each).id, each) for each in [0, 2, *range(stop - 2, 60, 2)]]


def test_last_segment_keeps_the_end_of_an_empty_log(tmp_path: Path) -> None:
    path = made(tmp_path, 3)
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        chain = log.chain_at(6)
        assert log.trim(6) == 6
        store.commit()
        assert (log.low, log.end, log.records) == (6, 6, 0)
        assert segments(path)[0].stat().st_size < 400
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        assert (log.low, log.end, log.chain_at(6)) == (6, 6, chain)
        write(store, 1)
        assert offsets(log) == [6]


# -- trimming, on the disk and in memory -----------------------------------------------------


class TrimmedLogs:
    """One log on the disk and one in memory that get the same calls; a start may restore drops."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = opened(directory)
        self.memory = MemoryLog()
        self.trimmed = 0
        self.removed: list[int] = []
        self.is_discarded = False

    @property
    def log(self) -> SegmentLog:
        return self.store.log(NEWS)

    def append(self, count: int, size: int) -> None:
        made_batch = batch(self.log.end, count, size=size)
        assert self.log.append(made_batch) == self.memory.append(made_batch)

    def commit(self) -> None:
        self.store.commit()

    def trim(self, place: int) -> None:
        offset = place * (self.memory.end + 4) // 100 - 2
        assert self.log.trim(offset) == self.memory.trim(offset)
        self.trimmed = self.memory.low

    def remove(self, place: int) -> None:
        offset = place * (self.memory.end + 4) // 100 - 2
        count = self.memory.remove(offset)
        assert self.log.remove(offset) == count
        self.removed += [offset] if count else []

    def remove_many(self, place: int) -> None:
        for each in range(max(place - 20, 0), place):
            self.remove(each)

    def discard(self, place: int) -> None:
        offset = place * self.memory.end // 100
        first = next(self.memory.read_range(0, self.memory.end), None)
        if first is None or offset < first.end:
            return  # any later removal raises ``low``
        assert self.log.discard(offset) == self.memory.discard(offset)
        self.is_discarded = True  # the log on the disk keeps its number

    def reopen(self) -> None:
        """Restart the store: the caller drops again what it dropped before."""
        while self.store.waiting_logs:
            self.store.commit()
        epoch, chain = self.log.epoch, self.log.chain_at(self.log.end)
        low = self.log.low
        self.store.close()
        self.store = opened(self.directory)
        assert self.store.damage is None
        assert self.log.low == low
        if self.log.end:
            assert (self.log.epoch, self.log.chain_at(self.log.end)) == (epoch, chain)
        for offset in self.removed:
            self.log.remove(offset)
        self.log.trim(self.trimmed)

    def check(self) -> None:
        log, memory = self.log, self.memory
        assert (log.low, log.end, log.records) == (memory.low, memory.end, memory.records)
        assert offsets(log) == [entry.offset for entry in memory.read_range(0, memory.end)]
        assert list(log.entries()) == list(memory.entries())
        for start, end in ((0, log.end), (log.end // 3, log.end), (3, log.end // 2)):
            assert log.count_absent(start, end) == memory.count_absent(start, end)
            assert log.count_trimmed(start, end) == memory.count_trimmed(start, end)
        assert memory.newest(OWNER).items() <= log.newest(OWNER).items() or self.is_discarded
        stored = sum([each.records for each in log.extents()])
        inside = log.end - max(log.durable_end, log.low)
        assert stored <= log.records <= stored + inside


PLACES = st.integers(0, 100)
TRIMS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 4), st.integers(1, 90)),
    st.tuples(st.just("append"), st.integers(1, 4), st.integers(1, 90)),
    st.tuples(st.just("commit")),
    st.tuples(st.sampled_from(["trim", "remove", "remove_many", "discard"]), PLACES),
    st.tuples(st.just("reopen")),
)


@pytest.mark.heavy
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(TRIMS, min_size=5, max_size=60))
def test_log_on_disk_is_trimmed_like_a_log_in_memory(
    calls: list[tuple[str, *tuple[int, ...]]],
) -> None:
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as context:
        context.setattr(os, "fsync", lambda file: None)
        context.setattr(topic_log, "sync_data", lambda file: None)
        logs = TrimmedLogs(Path(directory))
        for number in range(20):
            logs.append(1 + number % 3, 30)
        for name, *arguments in calls:
            getattr(logs, name)(*arguments)
            logs.check()
        logs.reopen()
        logs.check()
        logs.store.close()


# -- size of the files -----------------------------------------------------------------------

MAX_BYTES = 128 << 10


def disk_bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in path.iterdir() if each.is_file())


@pytest.mark.heavy
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 1 << 30),
    largest=st.integers(100, 4000),
    keys=st.sampled_from([0, 8, 60, 400]),  # 0: the topic is not compacted
    group=st.integers(1, 40),
)
def test_files_take_at_most_2_2_times_the_limit(
    seed: int, largest: int, keys: int, group: int
) -> None:
    """Publish ten times the limit; trim at 17/16 of it, as retention by bytes does."""
    rng = Random(seed)
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as context:
        context.setattr(os, "fsync", lambda file: None)
        context.setattr(topic_log, "sync_data", lambda file: None)
        store, path = LogStore.open(Path(directory), OWNER), topic_path(Path(directory))
        log, written, total = store.log(NEWS), 0, 0
        log.limit_segments(MAX_BYTES)
        live: dict[int, int] = {}  # sizes by offset
        newest: dict[int, int] = {}  # offsets by key
        worst = 0
        while written < 10 * MAX_BYTES:
            for _ in range(group):
                added = batch(log.end, 1, size=rng.randint(50, largest))
                offset = log.append(added)
                live[offset] = added.size_bytes
                written, total = written + added.size_bytes, total + added.size_bytes
                if keys:
                    key = rng.randrange(keys)
                    before = newest.get(key, -1)
                    newest[key] = offset
                    if before in live:
                        assert log.remove(before) == 1
                        total -= live.pop(before)
            if total > MAX_BYTES * 17 // 16:
                while total > MAX_BYTES:
                    total -= live.pop(next(iter(live)))
                log.trim(next(iter(live)))
            store.commit()
            worst = max(worst, disk_bytes(path))
            assert log.records == len(live)
        assert worst <= 2.2 * MAX_BYTES
        sizes = [each.stat().st_size for each in segments(path)]
        footer_bytes = 50 * MAX_BYTES // 16 // 150  # an entry has at least 150 bytes
        assert max(sizes) <= MAX_BYTES // 16 + 2 * largest + footer_bytes
        store.close()


def test_limit_of_segments_holds_for_new_ones_and_can_be_removed(tmp_path: Path) -> None:
    with LogStore.open(tmp_path) as store:
        log, path = store.log(NEWS), topic_path(tmp_path)
        log.limit_segments(256 << 10)
        for bytes_max in (16 << 10, None):
            for _ in range(60):
                log.append(batch(log.end, size=1000))
            store.commit()
            before = len(segments(path))
            log.limit_segments(bytes_max)
        assert before > 5
        for _ in range(60):
            log.append(batch(log.end, size=1000))
        store.commit()
        assert len(segments(path)) <= before + 1
