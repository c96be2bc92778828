"""Paused nodes: a short pause is tolerated, a long one leads to eviction and a return."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipring.core.failure_detector import EVICTION_TICKS, LONE_EVICTION_TICKS, UNHEARD_TICKS
from skipring.lab.faults.processes import SUPERVISOR, LiveProcesses, numbered

NODES = 16
INTERVALS = 5
ATTEMPTS = 5  # on a busy machine a pause may take longer
VICTIM = "n03"


def started(ring: LiveProcesses) -> None:
    ring.start_supervisor()
    ring.start(*numbered(NODES))
    ring.until_legitimate()


def pause_for(ring: LiveProcesses, intervals: int) -> int:
    """Pause a node for some ticks of the supervisor; return their actual number."""
    before = ring.ticks(SUPERVISOR)
    ring.pause(VICTIM)
    ring.until(lambda: ring.ticks(SUPERVISOR) >= before + intervals)
    ring.resume(VICTIM)
    return ring.ticks(SUPERVISOR) - before


@pytest.mark.heavy
def test_node_paused_for_5_intervals_is_not_evicted(tmp_path: Path) -> None:
    with LiveProcesses(tmp_path, has_metrics=True) as ring:
        started(ring)
        for _ in range(ATTEMPTS):
            evicted = ring.evicted()
            if pause_for(ring, INTERVALS) < UNHEARD_TICKS + EVICTION_TICKS:
                break
            ring.until_legitimate()
        else:
            pytest.fail("every pause took much longer than it should")
        resumed = ring.ticks(SUPERVISOR)
        ring.until(lambda: ring.ticks(SUPERVISOR) > resumed + UNHEARD_TICKS + LONE_EVICTION_TICKS)
        assert ring.evicted() == evicted
        ring.until_legitimate()


@pytest.mark.heavy
def test_node_paused_for_long_is_evicted_and_rejoins_when_it_continues(tmp_path: Path) -> None:
    with LiveProcesses(tmp_path) as ring:
        started(ring)
        ring.pause(VICTIM)
        ring.until(lambda: VICTIM in ring.evicted())
        missed = ring.publish("n00", b"while it was stopped")
        seen = ring.until_legitimate()
        assert VICTIM not in seen.subscribers
        ring.resume(VICTIM)
        seen = ring.until_legitimate()
        assert seen.subscribers.keys() == set(numbered(NODES))
        assert ring.stored(VICTIM) == set(missed)


@pytest.mark.heavy
def test_supervisor_paused_for_long_evicts_no_member(tmp_path: Path) -> None:
    with LiveProcesses(tmp_path, has_metrics=True) as ring:
        started(ring)
        before, supervisors = ring.ticks(VICTIM), ring.ticks(SUPERVISOR)
        ring.pause(SUPERVISOR)
        ring.until(lambda: ring.ticks(VICTIM) > before + LONE_EVICTION_TICKS)
        ring.resume(SUPERVISOR)
        ring.until(lambda: ring.ticks(SUPERVISOR) > supervisors + LONE_EVICTION_TICKS)
        assert ring.evicted() == []
        ring.until_legitimate()
