"""Quarantine: stored batches outside the trie, from the future or of stale members."""

from __future__ import annotations

import pytest

from skipring.core.log import MemoryLog
from skipring.core.retention import quarantine
from skipring.core.retention.quarantine import Quarantine, QuarantineState
from tests.support.batches import batch

B = [batch(b"x" * 100, first=first) for first in range(5)]


def made() -> Quarantine:
    return Quarantine(MemoryLog(B))


def test_batch_from_the_future_is_due_when_its_time_comes() -> None:
    found = made()
    for offset, stamp in enumerate((30, 10, 20)):
        assert found.add(B[offset].id, offset, stamp)
    assert found.due(9) == []
    assert found.due(20) == [B[1].id, B[2].id]
    assert found.remove(B[1].id) == 1
    assert (len(found), found.returned, found.due(30)) == (2, 0, [B[0].id, B[2].id])


def test_batches_of_stale_members_are_counted_and_are_never_due() -> None:
    found = made()
    found.add(B[0].id, 0)
    found.add(B[1].id, 1, 7)
    assert (found.returned, found.due(1 << 62)) == (1, [B[1].id])


def test_full_quarantine_hides_no_other_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "HIDDEN_MAX", 2)
    found = made()
    assert [found.add(each.id, offset) for offset, each in enumerate(B[:3])] == [True, True, False]
    assert found.hidden == {B[0].id: 0, B[1].id: 1}


def test_only_batches_that_the_log_has_are_found() -> None:
    found = made()
    for key, offset in ((B[0].id, 0), (B[1].id, 2), (B[2].id, 99)):
        found.add(key, offset)
    assert found.stored() == {B[0].id: B[0]}
    assert [found.has(each.id, 0) for each in B[:2]] == [True, False]


def test_state_is_the_quarantine_and_an_audit_drops_wrong_stamps() -> None:
    state = QuarantineState(hidden={B[0].id: 0, B[1].id: 4}, early={B[0].id: 7, B[2].id: 1})
    found = made()
    found.load(state)
    assert found.state() == state
    found.audit()
    assert (found.early, found.returned, found.due(7)) == ({B[0].id: 7}, 1, [B[0].id])
