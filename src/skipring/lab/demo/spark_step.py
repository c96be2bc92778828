"""Spark step of the demo: a process that starts early, gets its task late, and reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct, json

from skipring.core.peers import TopicId
from skipring.errors import SkipringError
from skipring.lab.processes import Processes, until
from skipring.wire.rpc import Address

PROGRAM: Final = str(Path(__file__).with_name("spark_program.py"))
SPARK: Final = "spark"  # the name of the process
BEGIN_FILE: Final = "begin"  # below the directory of the program: the task may begin
POLL_S: Final = 0.02
FINISH_S: Final = 10.0  # Guess: a JVM without work ends in one second.


class SparkReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Line that the program prints; one field is set."""

    progress: str | None = None
    rows: dict[str, int] | None = None  # rows of each table; the task is done
    failed: str | None = None  # the error that ended the task


class SparkProcess:
    """Process that starts Spark, and runs the pipeline after the signal to begin.

    It writes tables into its own directory, and then the report. An older report is deleted first
    to prevent confusion with the new one.
    """

    def __init__(
        self, processes: Processes, supervisor: Address, topic: TopicId, report: Path
    ) -> None:
        self._processes = processes
        self._directory = processes.data(SPARK)
        self._report = report
        report.unlink(missing_ok=True)
        self._directory.mkdir()
        words = [PROGRAM, supervisor, topic, str(self._directory), str(report)]
        processes.fork(SPARK, words)

    @property
    def written_report(self) -> Path | None:
        """Return the report; None if the process has not written it."""
        return self._report if self._report.exists() else None

    async def work(self) -> AsyncIterator[SparkReport]:
        """Begin the task; yield the reports up to the last. Raise SkipringError if it fails."""
        (self._directory / BEGIN_FILE).touch()
        read = 0
        while True:
            has_ended = self._has_ended()  # checked before the last lines are read
            for line in self._processes.lines(SPARK)[read:]:
                read += 1
                report = json.decode(line, type=SparkReport)
                if report.failed is not None:
                    raise SkipringError(report.failed)
                yield report
                if report.rows is not None:
                    return
            if has_ended:
                error = self._processes.last_log_line(SPARK)
                raise SkipringError(f"the Spark process has ended: {error}")
            await asyncio.sleep(POLL_S)

    async def finish(self) -> None:
        """Wait for a limited time until the process ends by itself, so the JVM can clean up."""
        with suppress(SkipringError):
            await until(self._has_ended, "the end of Spark", FINISH_S, POLL_S)

    def _has_ended(self) -> bool:
        return self._processes.running[SPARK].poll() is not None
