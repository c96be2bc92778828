"""Spark's process beside the demo: what it tells, and that it always ends."""

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
from skipring.lab.demo import analysis
from skipring.lab.demo.analysis import Told, started_analyst
from tests.support.processes import is_running

DEADLINE_S = 60.0
GONE_S = 10.0  # a process that was killed may take a moment to vanish
READY = 'print("{\\"is_ready\\": true}", flush=True)\n'
TELLS = (
    "import sys\n" + READY + "task = sys.stdin.readline()\n"
    'print("{\\"progress\\": \\"halfway\\"}", flush=True)\n'
    "assert 'orders' in task\n"
    'print("{\\"rows\\": {\\"silver\\": 3}}", flush=True)\n'
)
FAILS = 'print("{\\"failed\\": \\"no Java\\"}", flush=True)\n'
DIES = "import sys\nsys.exit('out of memory')\n"
STAYS = (  # and has a child that stays too
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "open(sys.argv[1], 'w').write(str(child.pid))\n" + READY + "time.sleep(600)\n"
)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with monkeypatch.context() as patch:
        yield patch


def run_program(patch: pytest.MonkeyPatch, directory: Path, code: str) -> list[Told]:
    patch.setattr(analysis, "PROGRAM", ("-c", code))

    async def scene() -> list[Told]:
        async with (
            asyncio.timeout(DEADLINE_S),
            started_analyst(directory / "spark", directory / "report") as analyst,
        ):
            return [told async for told in analyst.work("127.0.0.1:1", "orders")]

    return asyncio.run(scene())


def test_what_spark_tells_comes_in_order(program: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run_program(program, tmp_path, TELLS) == [
        Told(is_ready=True),
        Told(progress="halfway"),
        Told(rows={"silver": 3}),
    ]


@pytest.mark.parametrize(("code", "said"), [(FAILS, "no Java"), (DIES, "out of memory")])
def test_a_failure_is_told_in_a_sentence(
    program: pytest.MonkeyPatch, tmp_path: Path, code: str, said: str
) -> None:
    with pytest.raises(SkipringError, match=said):
        run_program(program, tmp_path, code)


def test_a_report_of_another_time_is_not_taken_for_the_new_one(
    program: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "report").write_text("old")
    run_program(program, tmp_path, TELLS)
    assert not (tmp_path / "report").exists()


def test_at_the_end_of_the_block_spark_and_what_it_has_started_are_dead(
    program: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program.setattr(analysis, "PROGRAM", ("-c", STAYS, str(tmp_path / "pid")))

    async def scene() -> int:
        async with (
            asyncio.timeout(DEADLINE_S),
            started_analyst(tmp_path / "spark", tmp_path / "report") as analyst,
        ):
            async for _ in analyst.work("127.0.0.1:1", "orders"):
                return int((tmp_path / "pid").read_text())
        raise AssertionError("it told nothing")

    child = asyncio.run(scene())
    deadline = time.monotonic() + GONE_S
    try:
        while is_running(child):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
