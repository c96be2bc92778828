"""Processes: whether one runs, and which carry a mark that all their children inherit."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

MARK = "SKIPRING_TEST_MARK"
# Java's second compiler and its garbage collection threads are for programs that run longer.
# Measured: a session and its first small jobs take 10 s of CPU instead of 18.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ENDED_WITHIN_S = 30.0
DEADLINE_S = 60.0


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


class LoggingProcess:
    """Running skipring command and its log."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def hang_up(self) -> None:
        """Send SIGHUP."""
        self._process.send_signal(signal.SIGHUP)

    async def listen_address(self) -> str:
        """Return the address in the first line of output."""
        assert self._process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            return (await self._process.stdout.readline()).decode().split()[1]

    async def logged(self, event: str) -> dict[str, str]:
        """Return the next log entry of an event."""
        assert self._process.stderr is not None
        async with asyncio.timeout(DEADLINE_S):
            while line := await self._process.stderr.readline():
                found: dict[str, str] = json.loads(line)
                if found["event"] == event:
                    return found
        raise AssertionError(f"the process has ended without a word about {event!r}")


@asynccontextmanager
async def logging_process(*words: str) -> AsyncIterator[LoggingProcess]:
    """Run a skipring command at a free port; kill it in the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "skipring", *words, "--listen", "127.0.0.1:0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield LoggingProcess(process)
    finally:
        process.kill()
        async with asyncio.timeout(DEADLINE_S):
            await process.communicate()
