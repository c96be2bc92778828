"""What processes cost, as the system counts it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_PROCESSES = Path("/proc")
_PARENT, _FIRST_TIME, _LAST_TIME = 1, 11, 15  # of the fields behind a process's name


def cpu_s(roots: Iterable[int] = ()) -> float:
    """Processor time of this process, of some others, and of all that they have started.

    Also of what has ended meanwhile, if its parent waited for it.
    """
    found = dict(_stats())
    children: dict[int, list[int]] = {}
    for pid, fields in found.items():
        children.setdefault(int(fields[_PARENT]), []).append(pid)
    waiting, seen = [os.getpid(), *roots], set[int]()
    while waiting:
        pid = waiting.pop()
        if pid not in seen:
            seen.add(pid)
            waiting += children.get(pid, [])
    ticks = sum(
        int(field) for pid in seen & found.keys() for field in found[pid][_FIRST_TIME:_LAST_TIME]
    )
    return ticks / os.sysconf("SC_CLK_TCK")


def _stats() -> Iterator[tuple[int, list[str]]]:
    """What the system says of each process: the fields behind its name, which may be anything."""
    for path in _PROCESSES.glob("[0-9]*/stat"):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it has just ended
        yield int(path.parent.name), text.rpartition(")")[2].split()
