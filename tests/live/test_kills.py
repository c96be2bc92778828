"""Killed nodes: the ring closes, and no acknowledged publication is lost.

Acknowledged means durable at the node that has acknowledged it. If that node is killed before
any other member has the publication, it is missing until the node restarts with its disk.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from faults.processes import LiveProcesses, numbered
from tests.support.process_rings import process_ring

NODES = 10
THIRTY_PERCENT = 3
TICK_S = 0.25  # an eviction takes 9 to 18 ticks


class Killing:
    """Kills of nodes in a ring, with a record of acknowledged publications."""

    def __init__(self, ring: LiveProcesses, rng: Random) -> None:
        self._ring = ring
        self._rng = rng
        self._acknowledged: set[bytes] = set()

    def repeat(self, *, is_patient: bool) -> None:
        """Kill one node, then 30 %, healed in between or not; then restart all of them."""
        one, *others = self._rng.sample(self._ring.nodes, 1 + THIRTY_PERCENT)
        survivor = self._rng.choice([n for n in self._ring.nodes if n not in (one, *others)])
        needed = set(self._acknowledged)
        needed.update(self._kill_after_they_have_published([one], survivor))
        if is_patient:
            self._assert_healed(needed)
        needed.update(self._kill_after_they_have_published(others, survivor))
        self._assert_healed(needed)
        self._ring.restart(one, *others)
        self._assert_healed(self._acknowledged)

    def _kill_after_they_have_published(self, victims: list[str], survivor: str) -> list[bytes]:
        """Return the publications that a surviving node has acknowledged."""
        for name in victims:
            self._acknowledged.update(self._ring.publish(name, b"the last word"))
        self._ring.kill(*victims)
        safe = self._ring.publish(survivor, b"while they are dead")
        self._acknowledged.update(safe)
        return safe

    def _assert_healed(self, needed: set[bytes]) -> None:
        """Assert that the live nodes form a ring with all needed publications and no others."""
        seen = self._ring.until_legitimate()
        assert set(seen.subscribers) == set(self._ring.nodes)
        for name in self._ring.nodes:
            assert needed <= self._ring.stored(name) <= self._acknowledged, name


@pytest.mark.heavy
@pytest.mark.parametrize("repeats", [2, pytest.param(100, marks=pytest.mark.slow)])
def test_killed_nodes_are_evicted_and_return_with_their_acknowledged_publications(
    tmp_path: Path, repeats: int
) -> None:
    with process_ring(tmp_path, NODES, tick_s=TICK_S) as ring:
        killing = Killing(ring, Random(repeats))
        for number in range(repeats):
            killing.repeat(is_patient=number % 2 == 0)


@pytest.mark.heavy
def test_ring_returns_with_all_publications_after_all_nodes_are_killed(tmp_path: Path) -> None:
    with process_ring(tmp_path, NODES, tick_s=TICK_S) as ring:
        acknowledged = {key for name in ring.nodes for key in ring.publish(name, b"before")}
        everybody = list(ring.running)
        ring.kill(*everybody)
        ring.restart(*everybody)
        ring.until_legitimate()
        assert all(ring.stored(name) == acknowledged for name in ring.nodes)


@pytest.mark.heavy
def test_immediately_restarted_node_keeps_its_label(tmp_path: Path) -> None:
    with process_ring(tmp_path, NODES) as ring:
        before = ring.until_legitimate()
        for name in numbered(NODES)[:2]:
            ring.kill(name)
            ring.restart(name)
            after = ring.until_legitimate()
            assert after.supervisor.database == before.supervisor.database
        assert ring.evicted() == []
