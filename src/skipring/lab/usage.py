"""CPU time and memory of processes, from the clocks of Linux and from /proc."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from time import clock_gettime_ns
from typing import Final, ParamSpec, TypeVar

MIB: Final = 1 << 20

_PROC: Final = Path("/proc")
_PARENT, _FIRST_TIME, _LAST_TIME = 1, 11, 15  # fields of /proc/PID/stat after the process name

_P = ParamSpec("_P")
_T = TypeVar("_T")


def cpu_ns(pid: int) -> int:
    """Return the CPU time of a process and its threads; 0 if it has ended."""
    try:
        return clock_gettime_ns((~pid << 3) | 2)  # the number of a process's CPU clock on Linux
    except OSError:
        return 0


def tree_cpu_s(roots: Iterable[int] = ()) -> float:
    """Return the CPU time of this process, of ``roots`` and of their descendants.

    Descendants that have ended count if their parent waited for them.
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
    """Yield the fields after the name of each process; the name may contain any character."""
    for path in _PROC.glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            text = path.read_text(encoding="utf-8", errors="replace")
            yield int(path.parent.name), text.rpartition(")")[2].split()


def resident_bytes() -> int:
    """Return the resident memory of this process; without /proc its peak."""
    return resident_bytes_of("self") or peak_bytes()


def resident_bytes_of(process: int | str) -> int:
    """Return the resident memory of a process; 0 if it has ended or there is no /proc."""
    try:
        pages = (_PROC / str(process) / "statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()


def written_bytes() -> int:
    """Return the bytes that this process has caused to be written to disks; 0 if unknown."""
    try:
        lines = (_PROC / "self" / "io").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))


def peak_bytes() -> int:
    """Return the peak resident memory of this process."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def run_alone(job: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run a job in a new process, so that its memory is measured alone."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(job, *args, **kwargs).result()
