"""Processes of a benchmark: start, stop, CPU time and memory."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from time import clock_gettime_ns
from typing import Final, NoReturn, ParamSpec, TypeVar

MIB: Final = 1 << 20
STOPPING_S: Final = 5.0  # Guess: then SIGKILL follows.
SIGNALLED: Final = 128  # what a shell adds to the number of the signal that ended a process

_PROC: Final = Path("/proc")
_PARENT, _FIRST_TIME, _LAST_TIME = 1, 11, 15  # fields of /proc/PID/stat after the name

_P = ParamSpec("_P")
_T = TypeVar("_T")


# -- figures ---------------------------------------------------------------------------------


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


def peak_bytes() -> int:
    """Return the peak resident memory of this process."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


# -- start and stop --------------------------------------------------------------------------


def run_alone(job: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run a job in a new process, so that its memory is measured alone."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(job, *args, **kwargs).result()


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise SystemExit, so that context managers stop their processes."""

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(SIGNALLED + number)

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may install handlers
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def process(
    command: Sequence[str], log: Path, *, out: int | None = None, is_killed: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that writes stderr to ``log``; stop it when the block ends."""
    with ExitStack() as stack:
        with _signals_deferred(), log.open("wb") as errors:
            running = subprocess.Popen(  # noqa: S603  (programs of a fixed table)
                command,
                stdin=subprocess.DEVNULL,
                stdout=errors if out is None else out,
                stderr=errors,
            )
            stack.callback(stop, running, is_killed=is_killed)
        yield running


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defer SIGINT and SIGTERM: between fork and registration they would leave an orphan."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    deferred: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _: deferred.append(got))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for got in deferred:
            signal.raise_signal(got)


def stop(running: subprocess.Popen[bytes], *, is_killed: bool = False) -> None:
    """Terminate a process; kill it after STOPPING_S, or at once with ``is_killed``."""
    if not is_killed:
        running.terminate()
        with suppress(subprocess.TimeoutExpired):
            running.wait(STOPPING_S)
    running.kill()
    running.wait()


def last_line(log: Path) -> str:
    """Return the last line of a log that contains letters."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    # The frames of exception groups end with lines without letters.
    texts = (line.strip(" |") for line in reversed(lines) if any(map(str.isalpha, line)))
    return next(texts, "it said nothing")
