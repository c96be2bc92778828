"""Paused processes: a short pause is tolerated, a long one leads to eviction and a return."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.processes import SUPERVISOR, LiveProcesses, numbered
from skipring.core.failure_detector import EVICTION_TICKS, LONE_EVICTION_TICKS, UNHEARD_TICKS
from tests.support.process_rings import process_ring

pytestmark = pytest.mark.heavy

NODES = 5
TICK_S = 0.25  # the tests wait for some 80 ticks
INTERVALS = 5
ATTEMPTS = 5  # on a busy machine a pause may take longer
VICTIM = "n03"


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveProcesses]:
    """Start the ring that all tests of this module use."""
    path = tmp_path_factory.mktemp("ring")
    with process_ring(path, NODES, tick_s=TICK_S, has_metrics=True) as ring:
        yield ring


@pytest.fixture
def ring(started: LiveProcesses) -> LiveProcesses:
    """Return the ring when it is legitimate."""
    started.until_legitimate()
    return started


def pause_for(ring: LiveProcesses, intervals: int) -> int:
    """Pause a node for some ticks of the supervisor; return their actual number."""
    before = ring.ticks(SUPERVISOR)
    ring.pause(VICTIM)
    ring.until(lambda: ring.ticks(SUPERVISOR) >= before + intervals)
    ring.resume(VICTIM)
    return ring.ticks(SUPERVISOR) - before


def test_node_paused_for_5_intervals_is_not_evicted(ring: LiveProcesses) -> None:
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


def test_supervisor_paused_for_long_evicts_no_member(ring: LiveProcesses) -> None:
    evicted = ring.evicted()
    before, supervisors = ring.ticks(VICTIM), ring.ticks(SUPERVISOR)
    ring.pause(SUPERVISOR)
    ring.until(lambda: ring.ticks(VICTIM) > before + LONE_EVICTION_TICKS)
    ring.resume(SUPERVISOR)
    ring.until(lambda: ring.ticks(SUPERVISOR) > supervisors + LONE_EVICTION_TICKS)
    assert ring.evicted() == evicted
    ring.until_legitimate()


def test_node_paused_for_long_is_evicted_and_rejoins_when_it_continues(ring: LiveProcesses) -> None:
    evictions = ring.evicted().count(VICTIM)
    ring.pause(VICTIM)
    ring.until(lambda: ring.evicted().count(VICTIM) > evictions)
    missed = ring.publish("n00", b"while it was stopped")
    seen = ring.until_legitimate()
    assert VICTIM not in seen.subscribers
    ring.resume(VICTIM)
    seen = ring.until_legitimate()
    assert seen.subscribers.keys() == set(numbered(NODES))
    assert ring.stored(VICTIM) == set(missed)
