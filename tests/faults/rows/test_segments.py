"""Damage to segment files: it hits the intended files, and the store opens afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from faults.load import fill_history, segments_of
from faults.requests import TOPIC
from faults.rows.segments import FLIPS, LOSSES, flip_places, tear_tail
from skipring.storage.store import LogStore


@pytest.fixture
def history(tmp_path: Path) -> list[bytes]:
    """Return the payloads of a store with several segments in ``tmp_path``."""
    payloads = fill_history(tmp_path, 4_000, records=10)
    assert len(segments_of(tmp_path)) >= 4
    return payloads


def stored(directory: Path) -> list[bytes]:
    """Return the payloads that a store still has."""
    with LogStore.open(directory) as store:
        log = store.log(TOPIC)
        entries = list(log.read_range(0, log.end))
        assert all(entry.batch.is_genuine(TOPIC) for entry in entries)
        return [record.payload for entry in entries for record in entry.batch.records()]


def test_each_of_the_chosen_places_is_changed(tmp_path: Path, history: list[bytes]) -> None:
    before = {path: path.read_bytes() for path in segments_of(tmp_path)}
    flip_places(list(before), FLIPS, Random(0))
    changes = [
        old != new
        for path, content in before.items()
        for old, new in zip(content, path.read_bytes(), strict=True)
    ]
    assert sum(changes) == FLIPS
    left = stored(tmp_path)
    assert set(left) < set(history)
    assert len(left) == len(set(left)) >= len(history) - 10 * FLIPS


@pytest.mark.parametrize("seed", range(5))
def test_torn_tail_costs_only_the_last_records(
    tmp_path: Path, history: list[bytes], seed: int
) -> None:
    path = segments_of(tmp_path)[-1]
    before = path.read_bytes()
    tear_tail(path, Random(seed))
    after = path.read_bytes()
    assert before != after
    assert before.startswith(after) or after.startswith(before)
    left = stored(tmp_path)
    assert left == history[: len(left)]
    assert len(left) >= len(history) - 10


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__.strip("_"))
def test_store_opens_without_the_lost_files(
    tmp_path: Path, history: list[bytes], lose: Callable[[list[Path], Random], None]
) -> None:
    lose(segments_of(tmp_path), Random(0))
    left = stored(tmp_path)
    is_whole = lose.__name__ in ("_lose_footer", "_lose_record")
    assert (left == history) is is_whole
    assert [each for each in history if each in set(left)] == left
