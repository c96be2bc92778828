"""Spark step of the demo: a process that starts early, gets its task late, and always ends.

The task goes to its stdin as one line of JSON; its reports come from its stdout, one JSON value per
line. At the end of stdin the process kills itself and its JVM.
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

PROGRAM: Final = ("-P", "-m", "skipring.lab.demo.spark_program")  # -P: not from the directory
LOG: Final = "spark.err"
FINISH_S: Final = 10.0  # Guess: a JVM without work ends in one second.


class SparkTask(Struct, frozen=True, kw_only=True):
    """Topic to read, and the files to write."""

    supervisor: Address
    topic: TopicId
    lake: str
    report: str


class SparkReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Report of the process; one field is set."""

    is_ready: bool = False  # Spark has started
    progress: str | None = None
    rows: dict[str, int] | None = None  # of each table: the task is done
    failed: str | None = None  # the error that ended the task


class SparkProcess:
    """Process that runs the Spark pipeline."""

    def __init__(self, process: Process, directory: Path, report: Path) -> None:
        self._process = process
        self._directory = directory
        self._report = report

    @property
    def written_report(self) -> Path | None:
        """Return the report; None if the process has not written it."""
        return self._report if self._report.exists() else None

    async def work(self, supervisor: Address, topic: TopicId) -> AsyncIterator[SparkReport]:
        """Send the task; yield the reports up to the last. Raise SkipringError if it fails."""
        lake = str(self._directory / "lake")
        task = SparkTask(supervisor=supervisor, topic=topic, lake=lake, report=str(self._report))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(ConnectionError):  # it has ended; the loop below finds no report
            self._process.stdin.write(json.encode(task) + b"\n")
            await self._process.stdin.drain()
        async for line in self._process.stdout:
            report = json.decode(line, type=SparkReport)
            if report.failed is not None:
                raise SkipringError(report.failed)
            yield report
            if report.rows is not None:
                return
        raise SkipringError(f"the Spark process has ended: {self._last_log_line()}")

    def _last_log_line(self) -> str:
        text = (self._directory / LOG).read_text(encoding="utf-8", errors="replace")
        lines = [line for line in text.split("\n") if line.strip()]
        return lines[-1] if lines else "its log is empty"

    async def finish(self) -> None:
        """Wait for a limited time until the process ends by itself: then the JVM cleans up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S):
                await self._process.wait()

    async def close(self) -> None:
        """Kill the process and all processes that it has started."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await self.finish()


def _open_log(directory: Path, report: Path) -> BinaryIO:
    report.unlink(missing_ok=True)
    directory.mkdir()
    return (directory / LOG).open("wb")


@asynccontextmanager
async def spark_process(directory: Path, report: Path) -> AsyncIterator[SparkProcess]:
    """Start Spark for the block; it writes into ``directory``, and the report.

    An older report is deleted, so that it is not mistaken for the new one.
    """
    with _open_log(directory, report) as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *PROGRAM,
            stdin=PIPE,
            stdout=PIPE,
            stderr=errors,
            env={**os.environ, "TMPDIR": str(directory)},
            start_new_session=True,  # Ctrl-C reaches the demo only, which kills this process
        )
    spark = SparkProcess(process, directory, report)
    try:
        yield spark
    finally:
        await spark.close()
