"""A supervisor and 16 nodes, one process each, form a legitimate ring."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.processes import LiveProcesses, numbered

TICKS_MAX = 60


@pytest.mark.heavy
def test_sixteen_processes_form_a_legitimate_ring_within_60_ticks_of_the_last_start(
    tmp_path: Path,
) -> None:
    with LiveProcesses(tmp_path, has_metrics=True) as ring:
        ring.start_supervisor()
        ring.start(*numbered(16))
        before = {name: ring.ticks(name) for name in ring.nodes}
        seen = ring.until_legitimate(ring.world_by_command)
        taken = {name: ring.ticks(name) - before[name] for name in ring.nodes}
    assert sorted(seen.subscribers) == numbered(16)
    assert seen.crashed == ()
    assert max(taken.values()) <= TICKS_MAX, taken
