"""Supervisor and node processes, started from the command line and stopped by signals."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from skipring.cli import skipring
from skipring.core.batches import RecordBatch
from skipring.errors import InputError, SkipringError
from skipring.storage.store import LogStore
from tests.support.batches import payloads_of
from tests.support.commands import DEADLINE_S, invoked, process, ran, unused_address

TICK = "0.05"


def stopped(running: subprocess.Popen[str], number: signal.Signals) -> int:
    """Send a signal; return the exit status."""
    running.send_signal(number)
    return running.wait(timeout=DEADLINE_S)


def test_supervisor_and_node_print_their_address_and_stop_on_signal(tmp_path: Path) -> None:
    data = str(tmp_path / "node")
    with process("supervisor", "--listen", "127.0.0.1:0", "--tick", TICK) as (first, address):
        words = ["--supervisor", address, "--topic", "news", "--listen", "127.0.0.1:0"]
        with process("node", *words, "--tick", TICK, "--data", data) as (second, _):
            assert stopped(second, signal.SIGTERM) == 0
        assert stopped(first, signal.SIGINT) == 130
    with LogStore.open(tmp_path / "node") as store:
        assert store.topics == []


@contextmanager
def ring_of_one(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a supervisor and a node; yield the node and the address of the supervisor."""
    with process("supervisor", "--listen", "127.0.0.1:0", "--tick", TICK) as (_, address):
        own = ("--supervisor", address, "--topic", "news", "--listen", "127.0.0.1:0")
        with process("node", *own, "--tick", TICK, *words) as (running, _):
            yield running, address


def published(address: str, *words: str, given: str = "") -> list[str]:
    """Publish, waiting for a member; return the ids."""
    wait = f"{DEADLINE_S:g}s"
    result = ran("pub", "news", *words, "--supervisor", address, "--wait", wait, given=given)
    assert result.returncode == 0, result.stderr
    return [json.loads(line)["id"] for line in result.stdout.splitlines()]


def stored_batches(directory: Path) -> list[RecordBatch]:
    """Return the batches on the disk of a node that does not run."""
    with LogStore.open(directory) as store:
        log = store.log("news")
        return [entry.batch for entry in log.read_range(0, log.end)]


def test_acknowledged_publications_are_on_the_disk_of_a_member(tmp_path: Path) -> None:
    with ring_of_one("--data", str(tmp_path)) as (running, address):
        ids = published(address, "hello") + published(address, given="one\ntwo\n")
        running.kill()  # acknowledged publications survive this
        running.wait(timeout=DEADLINE_S)
    stored = stored_batches(tmp_path)
    assert [key.hex() for batch in stored for key in batch.record_ids()] == ids
    assert payloads_of(stored) == [b"hello", b"one", b"two"]


def test_member_without_disk_accepts_only_volatile_publications() -> None:
    with ring_of_one() as (_, address):
        assert len(published(address, "hello", "--volatile")) == 1
        result = ran("pub", "news", "hello", "--supervisor", address)
    assert result.returncode == 4
    assert "--volatile" in result.stderr


def test_reader_gets_earlier_publications_and_ends_when_synced() -> None:
    with ring_of_one() as (_, address):
        ids = published(address, "--volatile", given="one\ntwo\nthree\n")
        result = ran("sub", "news", "--supervisor", address, "--exit-when-synced")
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert sorted(line["id"] for line in lines) == sorted(ids)
    assert {line["payload"] for line in lines} == {"one", "two", "three"}


def test_publishing_without_member_or_supervisor_fails_with_advice() -> None:
    with process("supervisor", "--listen", "127.0.0.1:0", "--tick", TICK) as (_, address):
        result = ran("pub", "news", "hello", "--supervisor", address, "--wait", "500ms")
        assert result.returncode == 4
        waiting, error = result.stderr.splitlines()
        assert waiting.startswith("waiting up to 0.5 s: 'news' has no members; start a node")
        assert error.startswith("Error: 'news' has no members")
    with unused_address() as address:
        result = ran("pub", "news", "hello", "--supervisor", address, "--wait", "0")
    assert result.returncode == 4
    assert "nothing listens on" in result.stderr


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
def test_unsafe_or_invalid_listen_address_is_refused(words: list[str], sentence: str) -> None:
    result = invoked(*words)
    assert isinstance(result.exception, InputError)
    assert sentence in str(result.exception)


@pytest.mark.parametrize("name", ["a b", "supervisor", "", "x" * 65])
def test_invalid_node_name_is_refused(name: str) -> None:
    words = ["--supervisor", "127.0.0.1:1", "--topic", "news", "--listen", "127.0.0.1:0"]
    error = invoked("node", *words, "--name", name).exception
    assert isinstance(error, SkipringError)
    assert str(error).startswith("name: ")


@pytest.mark.parametrize("tick", ["nan", "inf", "0", "-1", "soon"])
def test_invalid_tick_is_refused(tick: str) -> None:
    words = ["supervisor", "--listen", "127.0.0.1:0", "--tick", tick]
    assert CliRunner().invoke(skipring, words).exit_code == 2


@pytest.mark.parametrize("command", ["ring", "doctor", "pub", "sub"])
@pytest.mark.parametrize("address", ["", ",", "here", "127.0.0.1:", "127.0.0.1:99999"])
def test_invalid_supervisor_address_is_refused(command: str, address: str) -> None:
    error = invoked(command, "news", "--supervisor", address).exception
    assert isinstance(error, InputError)


def test_closed_standard_streams_do_no_harm() -> None:
    command = shlex.join([sys.executable, "-m", "skipring", "pub", "news", "--supervisor"])
    for streams in ("<&-", ">&- 'hello'", "<&- >&- 2>&-"):
        line = f"{command} 127.0.0.1:1 --wait 0 {streams}"
        status = subprocess.run(["sh", "-c", line], timeout=DEADLINE_S, check=False).returncode
        assert status in (0, 4), line  # nothing to publish, or no member accepts it


def test_many_large_lines_are_published(tmp_path: Path) -> None:
    with ring_of_one("--data", str(tmp_path)) as (_, address):
        published(address, "the first")
        lines = [f"{number}" + "x" * 400_000 for number in range(20)]
        result = ran("pub", "news", "--supervisor", address, given="\n".join(lines))
    assert result.returncode == 0, result.stderr
    assert payloads_of(stored_batches(tmp_path))[1:] == [line.encode() for line in lines]


def test_lines_before_a_line_that_is_too_long_are_published(tmp_path: Path) -> None:
    with ring_of_one("--data", str(tmp_path)) as (_, address):
        published(address, "the first")
        result = ran("pub", "news", "--supervisor", address, given="good\n" + "x" * 600_000)
    assert result.returncode == 2
    assert len(result.stdout.splitlines()) == 1
