"""Spark process of the demo: its reports, and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from skipring.errors import SkipringError
from skipring.lab.demo import spark_step
from skipring.lab.demo.spark_step import SparkReport, spark_process
from tests.support.processes import is_running

DEADLINE_S = 60.0
GONE_S = 10.0  # a process that was killed may take a moment to vanish
READY = 'print("{\\"is_ready\\": true}", flush=True)\n'
REPORTS = (
    "import sys\n" + READY + "task = sys.stdin.readline()\n"
    'print("{\\"progress\\": \\"halfway\\"}", flush=True)\n'
    "assert 'orders' in task\n"
    'print("{\\"rows\\": {\\"silver\\": 3}}", flush=True)\n'
)
FAILS = 'print("{\\"failed\\": \\"no Java\\"}", flush=True)\n'
DIES = "import sys\nsys.exit('out of memory')\n"
STAYS = (  # and has a child that stays, too
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "open(sys.argv[1], 'w').write(str(child.pid))\n" + READY + "time.sleep(600)\n"
)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with monkeypatch.context() as patch:
        yield patch


def run_program(patch: pytest.MonkeyPatch, directory: Path, code: str) -> list[SparkReport]:
    patch.setattr(spark_step, "PROGRAM", ("-c", code))

    async def scene() -> list[SparkReport]:
        async with (
            asyncio.timeout(DEADLINE_S),
            spark_process(directory / "spark", directory / "report") as spark,
        ):
            return [report async for report in spark.work("127.0.0.1:1", "orders")]

    return asyncio.run(scene())


def test_reports_arrive_in_order(program: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run_program(program, tmp_path, REPORTS) == [
        SparkReport(is_ready=True),
        SparkReport(progress="halfway"),
        SparkReport(rows={"silver": 3}),
    ]


@pytest.mark.parametrize(("code", "text"), [(FAILS, "no Java"), (DIES, "out of memory")])
def test_failure_is_an_error_with_a_sentence(
    program: pytest.MonkeyPatch, tmp_path: Path, code: str, text: str
) -> None:
    with pytest.raises(SkipringError, match=text):
        run_program(program, tmp_path, code)


def test_older_report_is_deleted(program: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "report").write_text("old")
    run_program(program, tmp_path, REPORTS)
    assert not (tmp_path / "report").exists()


def test_spark_and_its_children_are_dead_after_the_block(
    program: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program.setattr(spark_step, "PROGRAM", ("-c", STAYS, str(tmp_path / "pid")))

    async def scene() -> int:
        async with (
            asyncio.timeout(DEADLINE_S),
            spark_process(tmp_path / "spark", tmp_path / "report") as spark,
        ):
            async for _ in spark.work("127.0.0.1:1", "orders"):
                return int((tmp_path / "pid").read_text())
        raise AssertionError("no report")

    child = asyncio.run(scene())
    deadline = time.monotonic() + GONE_S
    try:
        while is_running(child):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
