"""Quarantine: batches from the future and returned ones, within limits."""

from __future__ import annotations

import pytest

from skipring.core.retention import quarantine
from skipring.core.retention.quarantine import FutureBatch, Quarantine, QuarantineState
from tests.support.batches import batch

B = [batch(b"x" * 100, first=first) for first in range(5)]


def test_batch_from_the_future_is_released_when_its_time_comes() -> None:
    found = Quarantine()
    for stamp, each in zip((30, 10, 20), B, strict=False):
        found.add_future(each, stamp)
    assert found.release(9) == []
    assert found.release(20) == [B[1], B[2]]
    assert (len(found), B[0].id in found, B[1].id in found) == (1, True, False)


def test_limit_removes_the_oldest_batches_and_counts_them() -> None:
    found = Quarantine(bytes_min=3 * B[0].size_bytes)
    for each in (*B, B[4]):
        found.add_future(each, 10)
    assert (found.release(10), found.evicted) == (B[2:], 2)


def test_limit_grows_with_the_store() -> None:
    found = Quarantine(bytes_min=1)
    for each in B:
        found.add_future(each, 10, store_bytes=100 * 2 * B[0].size_bytes)
    assert (len(found), found.evicted) == (2, 3)


def test_released_bytes_make_room() -> None:
    found = Quarantine(bytes_min=B[0].size_bytes)
    for each in B:
        found.add_future(each, 10)
        assert found.release(10) == [each]
    assert found.evicted == 0


def test_returned_batches_are_listed_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "RETURNED_MAX", 2)
    found = Quarantine()
    for offset, each in enumerate(B[:3]):
        found.add_returned(each.id, offset)
    assert found.returned == {B[1].id: 1, B[2].id: 2}
    assert B[2].id in found


def test_state_is_the_quarantine() -> None:
    state = QuarantineState(future=(FutureBatch(7, B[0]),), returned={B[1].id: 4}, evicted=2)
    found = Quarantine(bytes_min=B[0].size_bytes)
    found.load(state)
    assert (found.state(), found.release(7)) == (state, [B[0]])
