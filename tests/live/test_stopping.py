"""Stopping: processes that receive SIGTERM or SIGINT end soon, regardless of the others."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from faults.processes import SUPERVISOR, LiveProcesses, numbered
from faults.requests import TOPIC
from tests.support.process_rings import process_ring

NODES = 4
READER = "reader"
# A node used to wait 5 s for a supervisor that had ended. Measured since: 0.46 to 0.54 s.
END_S_MAX = 3.0


def end_together(ring: LiveProcesses, number: signal.Signals, *names: str) -> float:
    """Send a signal to processes; return the seconds until the last of them has ended."""
    begun = time.monotonic()
    for name in names:
        ring.send_signal(name, number)
    for name in names:
        ring.exit_status(name)
    return time.monotonic() - begun


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda each: each.name)
def test_supervisor_nodes_and_a_reader_end_together(tmp_path: Path, number: signal.Signals) -> None:
    with LiveProcesses(tmp_path, has_metrics=True) as ring:
        ring.start_supervisor()
        ring.start(*numbered(NODES))
        supervisor = ring.running[SUPERVISOR].address
        ring.run(READER, "sub", TOPIC, "--supervisor", supervisor)
        ring.until(lambda: len(ring.world().subscribers) == NODES)
        ring.until_legitimate()
        seconds = end_together(ring, number, SUPERVISOR, *numbered(NODES), READER)
    print(f"all ended after {seconds:.2f} s")  # noqa: T201  (pytest shows it on request)
    assert seconds < END_S_MAX


@pytest.mark.heavy
def test_node_ends_after_its_neighbours_and_the_supervisor_were_killed(tmp_path: Path) -> None:
    with process_ring(tmp_path, NODES) as ring:
        last, *others = numbered(NODES)
        ring.kill(SUPERVISOR, *others)
        seconds = end_together(ring, signal.SIGTERM, last)
    print(f"the node ended after {seconds:.2f} s")  # noqa: T201
    assert seconds < END_S_MAX


@pytest.mark.heavy
def test_node_whose_neighbours_were_killed_still_leaves_the_roster(tmp_path: Path) -> None:
    with process_ring(tmp_path, NODES) as ring:
        last, *others = numbered(NODES)
        ring.kill(*others)
        seconds = end_together(ring, signal.SIGTERM, last)
        assert last not in ring.evicted()
        assert last not in {node for _, node in ring.world().supervisor.database}
    print(f"the node ended after {seconds:.2f} s")  # noqa: T201
    assert seconds < END_S_MAX
