"""Spark process of the demo: its reports, and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from skipring.errors import SkipringError
from skipring.lab.demo import spark_step
from skipring.lab.demo.spark_step import SparkReport
from skipring.lab.processes import Processes
from tests.support.processes import is_running

DEADLINE_S = 60.0
GONE_S = 10.0  # a process that was killed may take a moment to vanish
REPORTS = """
import pathlib, sys, time
while not (pathlib.Path(sys.argv[3]) / "begin").exists(): time.sleep(0.01)
print('{"progress": "halfway"}', flush=True)
assert sys.argv[2] == "orders"
print('{"rows": {"silver": 3}}', flush=True)
"""
FAILS = """print('{"failed": "no Java"}', flush=True)"""
DIES = "import sys; sys.exit('out of memory')"
STAYS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
print('{"progress": "%d"}' % child.pid, flush=True)
time.sleep(600)
"""  # and has a child that stays, too


def run_program(
    patch: pytest.MonkeyPatch, directory: Path, code: str, most: int = 9
) -> list[SparkReport]:
    """Return up to ``most`` reports of a program; end it."""
    program = directory / "program.py"
    program.write_text(code)
    patch.setattr(spark_step, "PROGRAM", str(program))

    async def scene() -> list[SparkReport]:
        found: list[SparkReport] = []
        with Processes(directory) as processes:
            spark = spark_step.SparkProcess(
                processes, "127.0.0.1:1", "orders", directory / "report"
            )
            async with asyncio.timeout(DEADLINE_S):
                async for report in spark.work():
                    found.append(report)
                    if len(found) == most:
                        break
        return found

    return asyncio.run(scene())


def test_reports_arrive_in_order_and_an_older_report_is_deleted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "report").write_text("old")
    assert run_program(monkeypatch, tmp_path, REPORTS) == [
        SparkReport(progress="halfway"),
        SparkReport(rows={"silver": 3}),
    ]
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(("code", "text"), [(FAILS, "no Java"), (DIES, "out of memory")])
def test_failure_is_an_error_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, text: str
) -> None:
    with pytest.raises(SkipringError, match=text):
        run_program(monkeypatch, tmp_path, code)


def test_spark_and_its_children_are_dead_after_the_block(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (report,) = run_program(monkeypatch, tmp_path, STAYS, most=1)
    child = int(report.progress or "")
    deadline = time.monotonic() + GONE_S
    try:
        while is_running(child):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
