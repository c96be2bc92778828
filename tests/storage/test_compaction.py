"""Compaction: a rewritten segment has the live entries, and gaps in place of the others."""

from __future__ import annotations

import os
from pathlib import Path

from skipring.core.log import TRIMMED_CHAIN
from tests.storage.logs import NEWS, flip, made, offsets, opened, positions, segments, state


def test_chain_is_known_at_the_end_of_a_gap_and_not_inside(tmp_path: Path) -> None:
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
            assert {found[offset] for offset in inside} == {TRIMMED_CHAIN}
            assert [found[o] for o in range(61) if o not in inside] == [
                before[o] for o in range(61) if o not in inside
            ]
        data = segments(path)[0].read_bytes()
        segments(path)[0].write_bytes(data[:-5])  # a scan finds the gap


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
