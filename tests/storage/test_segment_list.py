"""Segments of a log in order: reads, statistics, and files that are deleted or rewritten."""

from __future__ import annotations

from pathlib import Path

from skipring.core.log import LogEntry
from tests.storage.logs import NEWS, batch, made, offsets, opened, segments, state, write


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
