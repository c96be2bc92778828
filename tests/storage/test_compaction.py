"""Compaction: a rewritten segment has the live entries, and gaps in place of the others."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from skipring.core.limits import SESSION_BYTES, UNKNOWN_DIGEST, is_same_chain
from skipring.errors import StorageError
from skipring.storage import compaction
from skipring.storage.topic_log import SegmentLog
from tests.storage.logs import (
    NEWS,
    FailingDisk,
    SyncedDisk,
    batch,
    flip,
    made,
    offsets,
    opened,
    positions,
    segments,
    state,
    topic_path,
    write,
)


def test_chain_is_known_at_the_end_of_a_gap_and_its_session_inside(tmp_path: Path) -> None:
    path = made(tmp_path, 30)
    stop = int(segments(path)[1].stem)
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        before = [log.chain_at(offset) for offset in range(61)]
        for offset in range(2, stop, 2):
            log.remove(offset)
        assert [log.chain_at(offset) for offset in range(61)] == before
        store.commit()
    for _ in range(2):
        with opened(tmp_path) as store:
            log = store.log(NEWS)
            inside = range(3, stop)
            found = [log.chain_at(offset) for offset in range(61)]
            session = before[1][:SESSION_BYTES]
            assert {found[offset] for offset in inside} == {session + UNKNOWN_DIGEST}
            assert all(is_same_chain(found[offset], before[offset]) for offset in inside)
            assert [found[o] for o in range(61) if o not in inside] == [
                before[o] for o in range(61) if o not in inside
            ]
        data = segments(path)[0].read_bytes()
        segments(path)[0].write_bytes(data[:-5])  # a scan finds the gap


@pytest.mark.parametrize("sessions_max", [2, 100])
def test_sessions_inside_a_gap_are_known_after_further_rewrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sessions_max: int
) -> None:
    monkeypatch.setattr(compaction, "SESSIONS_MAX", sessions_max)
    for _ in range(12):  # each start is a session
        path = made(tmp_path, 5)
    starts = [int(each.stem) for each in segments(path)]
    with opened(tmp_path) as store:
        before = [store.log(NEWS).chain_at(offset) for offset in range(starts[-1])]
        log = store.log(NEWS)
        for kept in (4, 3, 2):  # each time some segments are rewritten
            for offset in range(2, starts[-1], 2):
                if offset % (2 * kept):
                    log.remove(offset)
            store.commit()
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        after = [log.chain_at(offset) for offset in range(log.low, starts[-1])]
    assert sum(each.endswith(UNKNOWN_DIGEST) for each in after) > len(after) // 2
    assert all(map(is_same_chain, after, before[log.low :]))
    others = [bytes([e[0] ^ 1]) + e[1:-1] + bytes([e[-1] ^ 1]) for e in before[log.low :]]
    assert not any(map(is_same_chain, after, others))


def test_damaged_entry_is_copied_and_found_later(tmp_path: Path) -> None:
    path = made(tmp_path, 30)
    first, stop = segments(path)[0], int(segments(path)[1].stem)
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        flip(first, positions(first)[1] + 90)
        for offset in range(4, stop, 2):
            log.remove(offset)
        store.commit()
        assert offsets(log) == [0, *range(stop, 60, 2)]
        assert log.read(2) is None
        assert log.discard(2) == 2
        assert log.count_absent(0, 60) == 2


def test_interrupted_rewrite_is_removed(tmp_path: Path) -> None:
    path = made(tmp_path, 30)
    before = state(tmp_path)
    first = segments(path)[0]
    first.with_name(first.name + ".new").write_bytes(os.urandom(500))
    assert state(tmp_path) == before
    assert not list(path.glob("*.new"))
    assert not (path / "quarantine").exists()


def _drop_some(log: SegmentLog) -> list[int]:
    """Trim a segment, remove most of another and some of a third; return the offsets in order."""
    starts = [each.start for each in log.extents()]
    log.trim(starts[1])
    removed = [*range(starts[2] + 2, starts[3], 2), starts[4]]
    for offset in removed:
        log.remove(offset)
    return removed


@pytest.mark.parametrize("is_power_lost", [False, True])
def test_crash_at_every_step_of_a_reclaim_loses_and_invents_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_power_lost: bool
) -> None:
    live, copies = tmp_path / "live", tmp_path / "copies"
    made(live, 40)
    with opened(live) as store:
        log = store.log(NEWS)
        epoch, chain = log.epoch, log.chain_at(80)
        removed = _drop_some(log)
        low = log.low
        for _ in range(8):
            log.append(batch(log.end))
        with monkeypatch.context() as context:
            synced = SyncedDisk(context, live)
            disk = FailingDisk(context)

            def crash() -> None:
                disk.before = lambda: None
                target = copies / f"{len(list(copies.glob('*'))):03}"
                synced.copy(target) if is_power_lost else shutil.copytree(live, target)
                disk.before = crash

            disk.before = crash
            store.commit()
            crash()
        assert low > 0
        expected = [each for each in range(low, 96, 2) if each not in removed]
        assert offsets(log) == expected
    lows = []
    for copy in sorted(copies.iterdir()):
        with opened(copy) as store:
            log = store.log(NEWS)
            assert (store.damage, log.epoch, log.chain_at(80)) == (None, epoch, chain)
            found = offsets(log)
            assert log.end >= 80
            assert {each for each in expected if each < log.end} <= set(found)
            restored = [each for each in removed if each in found]
            assert restored in ([], removed)
            lows.append(log.low)
            log.trim(low)
            for offset in removed:
                log.remove(offset)
            write(store, 1, 0)
            assert offsets(log) == [
                each for each in range(log.low, log.end, 2) if each not in removed
            ]
        assert state(copy)[2] == epoch
        assert not list(topic_path(copy).glob("*.new"))
    assert lows == sorted(lows)
    assert (lows[0], lows[-1]) == (0, low)
    assert len(lows) > 15


def test_every_failed_call_of_a_reclaim_is_repaired_by_the_next_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FailingDisk(monkeypatch)
    number, is_failed = 0, True
    while is_failed:
        directory = tmp_path / str(number)
        path = made(directory, 40)
        with opened(directory) as store:
            log = store.log(NEWS)
            removed = _drop_some(log)
            disk.calls, disk.fail_at = 0, number
            try:
                store.commit()
            except StorageError:
                pass
            else:
                is_failed = disk.calls > number
            disk.fail_at = -1
            expected = [each for each in range(log.low, 80, 2) if each not in removed]
            assert offsets(log) == expected
            while store.waiting_logs:
                store.commit()
            sizes = [each.stat().st_size for each in segments(path)]
            assert offsets(log) == expected
            assert int(segments(path)[0].stem) == log.low
            assert min(sizes[:-1]) < max(sizes) / 2
            epoch = log.epoch
        assert state(directory) == (expected, 80, epoch)
        shutil.rmtree(directory)
        number += 1
    assert number > 10
