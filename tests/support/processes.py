"""Processes: whether one runs, and who carries a mark, which all that it starts inherits."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "SKIPRING_TEST_MARK"
# Java's second compiler and its threads that look for garbage are for programs that run longer.
# Measured: a session and its first small jobs take 10 s of CPU instead of 18.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ENDED_WITHIN_S = 30.0


def is_running(pid: int) -> bool:
    """True if there is such a process; one that ended and nobody has asked for does not run."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it ended before the opening or the reading
        return False
    return state != "Z"


def marked(mark: str) -> list[str]:
    """The processes, except this one, that carry a mark: number and command."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is not ours
            variables = (path / "environ").read_bytes().split(b"\0")
            if f"{MARK}={mark}".encode() in variables and path.name != str(os.getpid()):
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ")
                found.append(f"{path.name} {command.decode(errors='replace'):.200}")
    return found


def left_of(mark: str) -> list[str]:
    """The processes with a mark that have not ended in time; none, if all is well."""
    deadline = time.monotonic() + ENDED_WITHIN_S
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@contextmanager
def nothing_left(mark: str) -> Iterator[None]:
    """Whatever carries the mark at the end is killed, if it has not ended by itself."""
    try:
        yield
    finally:
        for process in marked(mark):
            with suppress(ProcessLookupError):
                os.kill(int(process.split()[0]), signal.SIGKILL)
