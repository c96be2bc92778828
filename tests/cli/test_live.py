"""A live ring of real processes, started from the command line and stopped by signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import pytest
from click.testing import CliRunner

from skipring.cli import skipring
from skipring.errors import InputError
from skipring.storage.publications import PublicationStore
from skipring.storage.supervisor import SupervisorStore

DEADLINE_S = 60.0
TICK = "0.05"


@contextmanager
def process(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running command and the address it says it listens on; it is always ended."""
    running = subprocess.Popen(
        [sys.executable, "-m", "skipring", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        first = _first_line(running)
        assert first.startswith("listening 127.0.0.1:"), first
        yield running, first.removeprefix("listening ").strip()
    finally:
        running.kill()
        running.communicate(timeout=DEADLINE_S)


def _first_line(running: subprocess.Popen[str]) -> str:
    lines: Queue[str] = Queue()
    assert running.stdout is not None
    stdout = running.stdout
    Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
    try:
        return lines.get(timeout=DEADLINE_S)
    except Empty:
        raise AssertionError("the process says nothing") from None


def stopped(running: subprocess.Popen[str], number: signal.Signals) -> int:
    """Ask a process to stop; its exit status."""
    running.send_signal(number)
    return running.wait(timeout=DEADLINE_S)


def test_a_supervisor_and_a_node_say_where_they_listen_and_stop_when_asked(tmp_path: Path) -> None:
    data = str(tmp_path / "node")
    with process("supervisor", "--listen", "127.0.0.1:0", "--tick", TICK) as (first, address):
        words = ["--supervisor", address, "--topic", "news", "--listen", "127.0.0.1:0"]
        with process("node", *words, "--tick", TICK, "--data", data) as (second, _):
            assert stopped(second, signal.SIGTERM) == 0
        assert stopped(first, signal.SIGINT) == 0
    with PublicationStore.open(tmp_path / "node") as store:
        assert store.topics == []


def test_a_supervisor_keeps_its_database(tmp_path: Path) -> None:
    with process(
        "supervisor", "--listen", "127.0.0.1:0", "--tick", TICK, "--data", str(tmp_path)
    ) as (running, _):
        assert stopped(running, signal.SIGTERM) == 0
    with SupervisorStore.open(tmp_path) as store:
        assert store.load() == {}


def test_the_supervisor_can_be_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with process("supervisor", "--listen", "127.0.0.1:0", "--tick", TICK) as (_, address):
        monkeypatch.setenv("SKIPRING_SUPERVISOR", address)
        with process("node", "--topic", "news", "--listen", "127.0.0.1:0", "--tick", TICK) as (
            running,
            _,
        ):
            assert stopped(running, signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["supervisor", "--listen", "0.0.0.0:0"], "no certificates"),
        (["supervisor", "--listen", "nonsense"], "expected HOST:PORT"),
        (["supervisor", "--listen", "127.0.0.1:99999"], "expected HOST:PORT"),
        (
            ["node", "--supervisor", "example.org:1", "--topic", "t", "--listen", "127.0.0.1:0"],
            "no certificates",
        ),
    ],
)
def test_what_others_could_reach_or_is_no_address_is_refused(
    words: list[str], sentence: str
) -> None:
    result = CliRunner().invoke(skipring, words)
    assert isinstance(result.exception, InputError)
    assert sentence in str(result.exception)
