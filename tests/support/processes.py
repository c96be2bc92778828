"""Processes: whether one runs, and which carry a mark that all their children inherit."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "SKIPRING_TEST_MARK"
# Java's second compiler and its garbage collection threads are for programs that run longer.
# Measured: a session and its first small jobs take 10 s of CPU instead of 18.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ENDED_WITHIN_S = 30.0


def is_running(pid: int) -> bool:
    """Return True if the process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it ended before the open or the read
        return False
    return state != "Z"


def marked(mark: str) -> list[str]:
    """Return number and command of the processes with a mark, except this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            variables = (path / "environ").read_bytes().split(b"\0")
            if f"{MARK}={mark}".encode() in variables and path.name != str(os.getpid()):
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ")
                found.append(f"{path.name} {command.decode(errors='replace'):.200}")
    return found


def left_of(mark: str) -> list[str]:
    """Return the processes with a mark that have not ended in time."""
    deadline = time.monotonic() + ENDED_WITHIN_S
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@contextmanager
def nothing_left(mark: str) -> Iterator[None]:
    """Kill the processes with the mark that have not ended by themselves."""
    try:
        yield
    finally:
        for process in marked(mark):
            with suppress(ProcessLookupError):
                os.kill(int(process.split()[0]), signal.SIGKILL)
