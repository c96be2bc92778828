"""Demo as a user runs it: to its end with Spark, interrupted, and with broken healing."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from skipring.cli import skipring
from skipring.errors import InputError
from skipring.lab.demo import runner
from skipring.lab.demo.output import PlainOutput
from skipring.lab.demo.script import STEPS, DemoPlan, End, Event, Scoreboard, Step
from skipring.lab.demo.state import NodeState
from skipring.spark import errors as errors_module
from tests.support.processes import MARK, left_of
from tests.support.spark_session import quick_programs

DEADLINE_S = 900.0  # for steps that take less than a minute: the machine is shared
ADDRESS = re.compile(r"In the browser: http://127\.0\.0\.1:\d+/\?token=\S+")
NODE = re.compile(r"^(n\d\d) +(\d+) +(\S+) +(\d+) +([0-9a-f]{8})$", re.MULTILINE)
VERDICT = re.compile(
    r"^✓ (?:done|healed) in [\d.]+ s \(\d+ rounds?\): (\d+) of \1 in the ring, (\d+) "
    r"publications,\s0 lost$",
    re.MULTILINE,
)
TITLES = (
    "1  A ring of real processes",
    "2  Every node gets every order",
    "3  kill -9 for 5 of 16",
    "4  The supervisor dies and loses its database",
    "5  Everything is scrambled",
    "6  The killed nodes rejoin",
    "Scoreboard",
    "7  Analysis with Spark",
    "Try next:",
)

# Python runs it first: crashes are never detected.
NO_DETECTOR = """
from skipring.core.failure_detector import FailureDetector
FailureDetector.take_evictions = lambda detector, now: []
"""
# No node compares tries, so missing publications are never repaired.
NO_REPAIR = """
from skipring.core.antientropy import AntiEntropy
AntiEntropy.on_tick = lambda *given, **named: None
"""


class Demo:
    """Running ``skipring demo`` with its own directories."""

    def __init__(self, directory: Path, *options: str, first: str | None = None) -> None:
        self.place = directory / "place"
        self.scratch = directory / "scratch"
        self._out, self._err = directory / "out", directory / "err"
        for made in (self.place, self.scratch):
            made.mkdir()
        environment = {**os.environ, "TMPDIR": str(self.scratch), "COLUMNS": "80"}
        environment |= {"PYTHONIOENCODING": "utf-8", MARK: str(self.scratch)}
        environment |= quick_programs(directory)
        if first is not None:
            (directory / "sitecustomize.py").write_text(first)
            paths = [str(directory), os.environ.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        command = [sys.executable, "-m", "skipring", "demo", "--headless", "--assert", *options]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                cwd=self.place,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self._out.read_text(encoding="utf-8")

    @property
    def errors(self) -> str:
        return self._err.read_text(encoding="utf-8")

    def until(self, printed: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while printed not in self.text:
            assert self.process.poll() is None, self.text + self.errors
            assert time.monotonic() < deadline, self.text + self.errors
            time.sleep(0.02)

    def interrupt(self) -> None:
        """Press Ctrl-C again and again, as a person does, until the data is gone."""
        deadline = time.monotonic() + DEADLINE_S
        while any(self.scratch.glob("skipring-demo-*")):
            assert time.monotonic() < deadline
            os.killpg(self.process.pid, signal.SIGINT)
            time.sleep(0.02)

    def status(self) -> int:
        return self.process.wait(DEADLINE_S)

    def left(self) -> list[str]:
        """Return the processes and files that the demo has left behind."""
        return [*left_of(str(self.scratch)), *map(str, self.scratch.iterdir())]


@contextmanager
def running(directory: Path, *options: str, first: str | None = None) -> Iterator[Demo]:
    demo = Demo(directory, *options, first=first)
    try:
        yield demo
    finally:
        if demo.process.poll() is None:
            demo.process.terminate()  # it stops the other processes
        demo.status()


def pid_of(name: str, text: str) -> int:
    found = re.search(rf"^{name} +(\d+) ", text, re.MULTILINE)
    assert found is not None
    return int(found[1])


# -- to the end --------------------------------------------------------------------------------


def check_the_story(text: str) -> None:
    assert ADDRESS.fullmatch(text.splitlines()[0])
    places = [text.index(title) for title in TITLES]
    assert places == sorted(places)
    assert [int(members) for members, _ in VERDICT.findall(text)] == [16, 16, 11, 11, 11, 16]


def check_the_scoreboard(text: str) -> None:
    nodes = NODE.findall(text[text.index("Scoreboard") :])
    assert [name for name, *_ in nodes] == [f"n{number:02d}" for number in range(16)]
    assert len({label for _, _, label, _, _ in nodes}) == 16
    (published,) = {stored for _, _, _, stored, _ in nodes}
    assert published == VERDICT.findall(text)[-1][1]
    assert len({root for *_, root in nodes}) == 1
    assert f"silver {published}" in " ".join(text.split())


@pytest.mark.heavy
def test_demo_with_spark_completes_and_leaves_only_the_report(tmp_path: Path) -> None:
    with running(tmp_path) as demo:
        assert demo.status() == 0, demo.text + demo.errors
    assert demo.errors == ""
    check_the_story(demo.text)
    check_the_scoreboard(demo.text)
    report = demo.place / "skipring-demo.html"
    assert f"The report stays: {report}" in demo.text
    assert "Exactly once" in report.read_text(encoding="utf-8")
    assert [path.name for path in demo.place.iterdir()] == [report.name]
    assert demo.left() == []


# -- interrupted -------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("options", "moment"),
    [
        (["--no-spark"], "In the browser"),  # before there are nodes
        (["--no-spark"], "the supervisor is dead"),  # while publishing goes on
        pytest.param([], "killed: ", marks=pytest.mark.slow),  # while Spark starts
        pytest.param([], "Spark reads", marks=pytest.mark.slow),  # with Spark workers
    ],
)
def test_interrupted_demo_leaves_nothing_behind(
    tmp_path: Path, options: list[str], moment: str
) -> None:
    with running(tmp_path, *options) as demo:
        demo.until(moment)
        demo.interrupt()
        assert demo.status() in (130, -signal.SIGINT)  # by an interrupt while it exits
    assert demo.errors.strip() == "interrupted"
    assert demo.left() == []
    assert list(demo.place.iterdir()) == []


# -- broken ------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_paused_node_is_named_and_the_demo_fails(tmp_path: Path) -> None:
    with running(tmp_path, "--no-spark", "--deadline", "5") as demo:
        demo.until("data below")
        os.kill(pid_of("n03", demo.text), signal.SIGSTOP)
        assert demo.status() == 3
    assert "Failed: step" in demo.text
    assert "n03 is not in the ring" in demo.text
    assert demo.left() == []


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("broken", "deadline", "fault"),
    [
        (NO_DETECTOR, "15", r"step 3: L0: database: n\d\d under label '\d+' is not a live"),
        pytest.param(NO_REPAIR, "30", r"PUB: n\d\d lacks \d+ of \d+", marks=pytest.mark.slow),
    ],
    ids=["crashes are not detected", "missing publications are not repaired"],
)
def test_demo_with_broken_healing_fails_and_names_the_fault(
    tmp_path: Path, broken: str, deadline: str, fault: str
) -> None:
    with running(tmp_path, "--no-spark", "--deadline", deadline, first=broken) as demo:
        assert demo.status() == 3
    text = " ".join(demo.text.split())
    assert "✗ not healed after" in text
    assert re.search(fault, text[text.index("Failed:") :])
    assert demo.left() == []


# -- without Spark, and what is refused --------------------------------------------------------


@pytest.fixture
def peaceful(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """Run the demo in this process, without the steps that do damage."""
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setattr(runner, "STEPS", STEPS[:1])
        yield patch


def demo_status(*options: str) -> int:
    status: int = skipring.main(["demo", "--n", "4", "--assert", *options], standalone_mode=False)
    return status


@pytest.mark.heavy
def test_demo_without_spark_prints_the_command_and_succeeds(
    peaceful: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    peaceful.setattr(errors_module, "find_spec", lambda name: None)
    assert demo_status() == 0
    text = capsys.readouterr().out
    assert "Left out: Spark is not installed; run: pip install 'skipring[spark]'" in text
    assert "✓ It healed each time" in text


@pytest.mark.heavy
def test_stay_keeps_the_ring_until_interrupted_and_prints_its_supervisor(
    peaceful: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show = PlainOutput.show

    async def show_and_interrupt(output: PlainOutput, event: Event) -> None:
        await show(output, event)
        if isinstance(event, End):
            os.kill(os.getpid(), signal.SIGINT)

    peaceful.setattr(PlainOutput, "show", show_and_interrupt)
    with pytest.raises(click.Abort):  # as every command ends that is interrupted
        demo_status("--stay", "--no-spark")
    text = capsys.readouterr().out
    assert re.search(r"skipring ring orders --supervisor 127\.0\.0\.1:\d+ --watch", text)


def test_unwritable_report_is_refused_at_the_start(tmp_path: Path) -> None:
    given = ["demo", "--report", str(tmp_path / "nowhere" / "report.html")]
    with pytest.raises(InputError, match="choose another file"):
        skipring.main(given, standalone_mode=False)


def test_nodes_with_another_root_are_a_fault_even_without_spark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Differing:
        """Runner without steps, whose nodes are not in sync at the end."""

        faults = ()

        def __init__(self, *_: object) -> None:
            pass

        async def run(self, steps: Sequence[Step]) -> None:
            pass

        async def sum_up(self) -> Scoreboard:
            nodes = (NodeState("n00", "0", 3, "aa"), NodeState("n01", "1", 3, "bb"))
            return Scoreboard((), nodes, {"n00": 1, "n01": 2})

    async def nothing(*_: object) -> None:
        pass

    output = SimpleNamespace(show=nothing)
    monkeypatch.setattr(runner, "ScriptRunner", Differing)
    cluster = SimpleNamespace(directory=Path())
    script = runner.run_script(
        DemoPlan(report=None),
        output,  # type: ignore[arg-type]
        cluster,  # type: ignore[arg-type]
    )
    (fault,) = asyncio.run(script)
    assert "root" in fault
