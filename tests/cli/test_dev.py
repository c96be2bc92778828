"""``skipring dev``: a cluster in one command; all its processes end together."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

import click
import pytest

from skipring.errors import InputError
from tests.support.commands import COMMAND, DEADLINE_S, invoked, ran
from tests.support.processes import MARK, left_of, nothing_left


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Dev:
    """A running ``skipring dev`` with its output in files."""

    def __init__(self, directory: Path, mark: str, *words: str) -> None:
        self.mark = mark
        self.port = free_port()
        self.environment = os.environ | {MARK: mark, "SKIPRING_SUPERVISOR": str(self.port)}
        self._out, self._errors = directory / "dev.out", directory / "dev.err"
        with self._out.open("wb") as out, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*COMMAND, "dev", "--listen", str(self.port), "--no-dashboard", *words],
                stdout=out,
                stderr=errors,
                env=self.environment,
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        return self._out.read_text("utf-8")

    @property
    def errors(self) -> str:
        return self._errors.read_text("utf-8")

    def until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, (self.out, self.errors)
            time.sleep(0.02)

    def run(self, *words: str) -> str:
        done = ran(*words, env=self.environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pid_of(self, name: str) -> int:
        found = re.search(rf"{name} .* pid (\d+)", self.out)
        assert found is not None, self.out
        return int(found[1])


@contextmanager
def dev(directory: Path, *words: str) -> Iterator[Dev]:
    mark = token_hex(8)
    with nothing_left(mark):
        running = Dev(directory, mark, *words)
        try:
            running.until(lambda: "ready" in running.out or running.process.poll() is not None)
            yield running
        finally:
            running.process.kill()
            running.process.wait(DEADLINE_S)


def test_ring_is_ready_and_ctrl_c_ends_all_processes(tmp_path: Path) -> None:
    with dev(tmp_path) as running:
        running.run("pub", "news", "hello")
        line = json.loads(running.run("sub", "news", "--exit-when-synced"))
        assert line["payload"] == "hello"
        data = re.search(r"data +(\S+), deleted at the end", running.out)
        assert data is not None
        os.killpg(running.process.pid, signal.SIGINT)
        assert running.process.wait(DEADLINE_S) == 130
        assert left_of(running.mark) == []
        assert not Path(data[1]).exists()


def test_processes_end_when_the_command_is_killed(tmp_path: Path) -> None:
    with dev(tmp_path) as running:
        running.process.kill()
        running.process.wait(DEADLINE_S)
        assert left_of(running.mark) == []


def test_publications_in_the_data_directory_survive_a_restart(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with dev(tmp_path, "--data", data) as running:
        running.run("pub", "news", "hello")
        running.process.terminate()
        assert running.process.wait(DEADLINE_S) == 0
    with dev(tmp_path, "--data", data) as running:
        assert "hello" in running.run("sub", "news", "--exit-when-synced")


def test_killed_node_is_reported_with_the_command_that_restarts_it(tmp_path: Path) -> None:
    with dev(tmp_path) as running:
        os.kill(running.pid_of("node-2"), signal.SIGKILL)
        running.until(lambda: "skipring node --name node-2" in running.errors)
        assert "node-2 was ended by SIGKILL" in running.errors
        running.run("pub", "news", "hello")


@pytest.mark.parametrize(
    "words", [["--listen", "0.0.0.0:1"], ["--nodes", "0"], ["--topic", "", "--listen", "0"]]
)
def test_unusable_options_are_refused(words: list[str]) -> None:
    error = invoked("dev", "--no-dashboard", *words).exception
    assert isinstance(error, InputError | click.UsageError)
