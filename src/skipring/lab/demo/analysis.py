"""Spark beside the demo: a process that is started early, given its task late, and always ended.

The task goes to its stdin as one line of JSON; what happens comes from its stdout, one JSON value
on a line. If its stdin ends, it ends at once, with its JVM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from msgspec import Struct, json

from skipring.core.peers import TopicId
from skipring.errors import SkipringError
from skipring.wire.rpc import Address

PROGRAM: Final = ("-P", "-m", "skipring.lab.demo.analyst")  # -P: not from the directory
LOG: Final = "analyst.err"
FINISH_S: Final = 10.0  # Our guess: a JVM without work ends in one.


class Task(Struct, frozen=True, kw_only=True):
    """What to read, and where to put what comes of it."""

    supervisor: Address
    topic: TopicId
    lake: str
    report: str


class Told(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What has happened: one of these."""

    is_ready: bool = False  # Spark has started
    progress: str | None = None
    rows: dict[str, int] | None = None  # of each table: it is done
    failed: str | None = None  # why it will not be done


class Analyst:
    """The process that works with Spark."""

    def __init__(self, process: Process, directory: Path, report: Path) -> None:
        self._process = process
        self._directory = directory
        self._report = report

    @property
    def written_report(self) -> Path | None:
        """The report, if it is there."""
        return self._report if self._report.exists() else None

    async def work(self, supervisor: Address, topic: TopicId) -> AsyncIterator[Told]:
        """Give it its task; what it tells, to the end. SkipringError if it ends before."""
        lake = str(self._directory / "lake")
        task = Task(supervisor=supervisor, topic=topic, lake=lake, report=str(self._report))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(ConnectionError):  # it has ended: the loop finds that
            self._process.stdin.write(json.encode(task) + b"\n")
            await self._process.stdin.drain()
        async for line in self._process.stdout:
            told = json.decode(line, type=Told)
            if told.failed is not None:
                raise SkipringError(told.failed)
            yield told
            if told.rows is not None:
                return
        raise SkipringError(f"Spark's process has ended: {self._last_words()}")

    def _last_words(self) -> str:
        log = self._directory / LOG
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")

    async def finish(self) -> None:
        """Wait for it to end, by itself if it can, since its JVM then clears away; not for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S):
                await self._process.wait()

    async def close(self) -> None:
        """End it and all that it has started, at once."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await self.finish()


def _log(directory: Path, report: Path) -> BinaryIO:
    report.unlink(missing_ok=True)
    directory.mkdir()
    return (directory / LOG).open("wb")


@asynccontextmanager
async def started_analyst(directory: Path, report: Path) -> AsyncIterator[Analyst]:
    """Start Spark, which writes below a directory only, but for the report; it ends with the block.

    A report that is there from another time would be taken for the new one: it is removed.
    """
    with _log(directory, report) as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *PROGRAM,
            stdin=PIPE,
            stdout=PIPE,
            stderr=errors,
            env={**os.environ, "TMPDIR": str(directory)},
            start_new_session=True,  # Ctrl-C is for us: we end it
        )
    analyst = Analyst(process, directory, report)
    try:
        yield analyst
    finally:
        await analyst.close()
