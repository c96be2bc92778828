"""How much memory a process has, as the operating system counts it; and a process for it."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

MIB: Final = 1 << 20
_PROCESSES: Final = Path("/proc")

_P = ParamSpec("_P")
_T = TypeVar("_T")


def alone(job: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run a job in a new process, whose memory is all its own."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(job, *args, **kwargs).result()


def resident_bytes() -> int:
    """Memory that is resident now; where the system does not say, the largest so far."""
    return resident_bytes_of("self") or peak_bytes()


def resident_bytes_of(process: int | str) -> int:
    """Memory of any process that is resident now; 0 if it has ended, or the system does not say."""
    try:
        told = (_PROCESSES / str(process) / "statm").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(told.split()[1]) * resource.getpagesize()


def peak_bytes() -> int:
    """Largest resident memory so far."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
