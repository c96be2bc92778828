"""Rings of one process per node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.processes import LiveProcesses, numbered


@contextmanager
def process_ring(
    path: Path, count: int, *, tick_s: float = 0.5, has_metrics: bool = False
) -> Iterator[LiveProcesses]:
    """Yield a legitimate ring of one supervisor and some nodes, one process each."""
    with LiveProcesses(path, tick_s=tick_s, has_metrics=has_metrics) as ring:
        ring.start_supervisor()
        ring.start(*numbered(count))
        ring.until_legitimate()
        yield ring
