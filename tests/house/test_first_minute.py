"""README and tutorial: each command block, pasted into a terminal, prints the shown output."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
import time
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fcntl import ioctl
from pathlib import Path
from secrets import token_hex
from select import select
from struct import pack
from subprocess import PIPE

import pytest
from msgspec import Struct

from tests.house.test_docs import ROOT, commands
from tests.house.test_operations import is_refused
from tests.spark.rings import running_ring
from tests.support.processes import MARK, left_of, nothing_left
from tests.support.spark_session import quick_programs

README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
OTHER_PAGES = [ROOT / "docs" / "dashboard.md", ROOT / "docs" / "spark.md"]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INSTALL = re.compile(r"^pip install (.*)$", re.MULTILINE)
PORT = "7400"
DEADLINE_S = 300.0
ROWS, COLUMNS = 50, 120
RUNS = 20
MINUS = "\N{MINUS SIGN}"
WORDS_MAX = 900


# --- pages -----------------------------------------------------------------------------


class Block(Struct, frozen=True):
    """A block of commands and the lines that the page shows as their output."""

    commands: str
    shown: str = ""


def blocks(text: str) -> list[Block | tuple[str, str]]:
    """Return the actions of a reader, in order: commands to paste, and programs to save by name."""
    found: list[Block | tuple[str, str]] = []
    for kind, content in FENCE.findall(text):
        match kind:
            case "sh":
                found.append(Block(content))
            case "text":
                last = found[-1]
                assert isinstance(last, Block), "output follows its commands"
                found[-1] = Block(last.commands, content)
            case "python":
                name = content.partition("\n")[0].removeprefix("# ")
                found.append((name if name.endswith(".py") else "readme.py", content))
            case _:
                pytest.fail(f"a block of kind {kind!r} is not tested")
    return found


def is_shown(output: str, shown: str) -> bool:
    """Return True if the lines of the page occur in the output, in their order.

    A terminal prints other lines between them: notices of jobs and of background commands.
    """
    lines = iter(output.replace("\r\n", "\n").split("\n"))
    return all(
        any(re.fullmatch(re.escape(wanted).replace("…", ".*"), line) for line in lines)
        for wanted in shown.splitlines()
        if wanted not in ("", "…")
    )


@pytest.mark.parametrize(
    ("output", "shown"),
    [("4\r\n", "4\n"), ("", "…\n"), ("[1] 7\nb 01 x\nc\n", "b …\nc\n"), ("a\nb\nc\n", "…\nb\n")],
)
def test_shown_output_is_recognised(output: str, shown: str) -> None:
    assert is_shown(output, shown)


@pytest.mark.parametrize(("output", "shown"), [("5\n", "4\n"), ("", "4\n"), ("b\na\n", "a\nb\n")])
def test_different_output_is_detected(output: str, shown: str) -> None:
    assert not is_shown(output, shown)


def test_readme_is_short() -> None:
    assert len(README.read_text("utf-8").split()) <= WORDS_MAX


# --- a terminal ------------------------------------------------------------------------


class Terminal:
    """An interactive shell on a pseudo-terminal."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        pid, self._controller = pty.fork()
        if pid == 0:
            os.chdir(directory)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)
        self._pid = pid
        ioctl(self._controller, termios.TIOCSWINSZ, pack("HHHH", ROWS, COLUMNS, 0, 0))
        settings = termios.tcgetattr(self._controller)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(self._controller, termios.TCSANOW, settings)

    def paste(self, text: str) -> tuple[int, str]:
        """Paste commands at once; return the status of the last one, and the output."""
        mark = token_hex(8)
        os.write(self._controller, f"{text}echo {mark} $?\n".encode())
        output = ""
        deadline = time.monotonic() + DEADLINE_S
        while (found := re.search(rf"{mark} (\d+)\r?\n", output)) is None:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"no end of\n{text}\n{output}"
            if select([self._controller], [], [], left_s)[0]:
                output += os.read(self._controller, 1 << 16).decode(errors="replace")
        return int(found[1]), output[: found.start()]

    def leave(self) -> None:
        """End the shell as a user does."""
        os.write(self._controller, b"exit\n")
        deadline = time.monotonic() + DEADLINE_S
        while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            assert time.monotonic() < deadline, "the shell does not end"
            time.sleep(0.01)
        self._pid = 0

    def close(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._controller)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with pip and all requirements, in which skipring is not installed."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=False)
    (library,) = place.glob("lib/python*/site-packages")
    (installed,) = Path(sys.prefix).glob("lib/python*/site-packages")
    for each in installed.iterdir():  # no package index is asked
        if "skipring" not in each.name and not (library / each.name).exists():
            (library / each.name).symlink_to(each)
    pip = place / "bin" / "pip"
    pip.write_text(f"#!{place}/bin/python\nfrom pip._internal.cli.main import main\nmain()\n")
    pip.chmod(0o755)
    return place


@contextmanager
def terminal(directory: Path, environment: Path, port: str) -> Iterator[Terminal]:
    """Open a terminal for a ring at a port of its own; no process of it is left at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    mark = token_hex(8)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SKIPRING_")}
    path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    settings = kept | {
        MARK: mark,
        "PATH": path,
        "PS1": "",
        "TERM": "dumb",
        "BASH_SILENCE_DEPRECATION_WARNING": "1",
        "SKIPRING_SUPERVISOR": f"127.0.0.1:{port}",
        **quick_programs(environment),
    }
    settings.pop("PYTHONPATH", None)
    with nothing_left(mark):
        opened = Terminal(directory, settings)
        try:
            yield opened
            opened.leave()
            assert left_of(mark) == []
        finally:
            opened.close()


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def paste_page(page: Path, directory: Path, environment: Path) -> float:
    """Run the blocks of a page; return the duration of its first block in seconds."""
    port = free_port()
    install = f"pip install -q --no-index --no-deps --no-build-isolation {ROOT}"
    first_s = 0.0
    with terminal(directory, environment, port) as shell:
        for step in blocks(page.read_text("utf-8")):
            if not isinstance(step, Block):
                (directory / step[0]).write_text(step[1], "utf-8")
                continue
            started = time.monotonic()
            status, output = shell.paste(INSTALL.sub(install, step.commands).replace(PORT, port))
            assert status == 0, (step.commands, output)
            assert is_shown(output, step.shown), (step.commands, output)
            first_s = first_s or time.monotonic() - started
    return first_s


@contextmanager
def busy_cores() -> Iterator[None]:
    """Keep two cores busy."""
    with ExitStack() as stack:
        for _ in range(2):
            loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(loop.wait)
            stack.callback(loop.kill)
        yield


@pytest.mark.heavy
def test_readme_works_pasted_into_a_terminal(tmp_path: Path, environment: Path) -> None:
    paste_page(README, tmp_path / "readme", environment)


@pytest.mark.heavy
def test_tutorial_works_pasted_into_a_terminal(tmp_path: Path, environment: Path) -> None:
    paste_page(TUTORIAL, tmp_path / "tutorial", environment)
    assert [each.name for each in (tmp_path / "tutorial").iterdir()] == []


@pytest.mark.slow
@pytest.mark.parametrize("page", [README, TUTORIAL], ids=["readme", "tutorial"])
def test_page_works_every_time_on_busy_cores(page: Path, tmp_path: Path, environment: Path) -> None:
    with busy_cores():
        took = [paste_page(page, tmp_path / str(run), environment) for run in range(RUNS)]
    told = f"{page.name}: {RUNS} runs, the first block took {min(took):.1f} to {max(took):.1f} s"
    print(told)  # noqa: T201  (shown by -s; a measurement, not an assertion)


def programs() -> list[str]:
    """Return the programs of the README: the first runs alone, the second has feature flags."""
    return [step[1] for step in blocks(README.read_text("utf-8")) if isinstance(step, tuple)]


def test_program_of_the_readme_runs_alone(tmp_path: Path) -> None:
    program, _ = programs()
    lines = [line for line in program.splitlines() if line]
    assert len(lines) <= 10
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "b'hello'\n"), done.stderr


def test_feature_flags_of_the_readme_take_six_lines() -> None:
    _, program = programs()
    assert len([line for line in program.splitlines() if line]) == 6
    with running_ring(2, topic="news", tick_s=0.1) as ring:
        environment = os.environ | {"SKIPRING_SUPERVISOR": ring.supervisor}
        command = [sys.executable, "-u", "-c", program]
        with subprocess.Popen(command, env=environment, stdout=PIPE, text=True) as watch:
            try:
                assert watch.stdout is not None
                lines = [watch.stdout.readline() for _ in range(2)]
            finally:
                watch.kill()
    assert lines == ["True\n", "dark-mode True\n"]


# --- other first pages ------------------------------------------------------------------


COMMANDS = [
    (page.name, command) for page in OTHER_PAGES for command in commands(page.read_text("utf-8"))
]


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_every_command_of_the_first_pages_is_accepted(
    page: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    words = re.split(r" [|&>]", command)[0].replace("$1", "ann")
    assert not is_refused(words), page


def test_commands_of_every_page_are_found() -> None:
    assert {page for page, _ in COMMANDS} == {page.name for page in OTHER_PAGES}


def test_keys_of_the_dashboard_are_on_its_page() -> None:
    html = (ROOT / "src/skipring/web/static/index.html").read_text("utf-8")
    keys = set(re.findall(r"<kbd>(.+?)</kbd>", html))
    page = (ROOT / "docs" / "dashboard.md").read_text("utf-8").partition("## Keys")[2]
    assert len(keys) > 5
    assert {key for key in keys if f"`{key.replace(MINUS, '-')}`" not in page} == set()
