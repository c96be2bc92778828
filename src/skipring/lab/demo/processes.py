"""Processes of the command line by name: forked, signalled, and ended with this process.

The methods never wait for a process, so a caller polls them in a loop of its own kind. Only closing
waits until every process has ended.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Final, Self

from msgspec import Struct

from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.errors import SkipringError
from skipring.wire.rpc import Address

ANY_PORT: Final = "127.0.0.1:0"
LISTENING: Final = "listening "
POLL_S: Final = 0.01
# Modules that the commands import. The fork server loads them once, so a process starts in
# milliseconds.
PRELOAD: Final = (
    "skipring.cli",
    "skipring.api.connection",
    "skipring.lab.demo.processes",
    "skipring.node.process",
    "structlog.stdlib",
    "uvloop",
)
# -P: the current directory is no source of modules
PROGRAM: Final = ("-P", "-c", f"from {__name__} import run_from_argv; run_from_argv()")
PR_SET_PDEATHSIG: Final = 1  # Linux
# The path of a Unix socket has at most 107 bytes; the fork server adds about 40.
TEMPORARY_PATH_MAX: Final = 60

Poll = Callable[[], int | None]  # exit status, negative for a signal; None while the process runs


class Process(Struct, kw_only=True):
    """Process that was started, and its command."""

    words: list[str]
    out: Path
    pid: int
    poll: Poll
    address: Address = ""
    is_paused: bool = False


class Processes:
    """Supervisor, nodes and other commands as processes, inside a ``with`` block."""

    def __init__(
        self,
        directory: Path,
        options: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.running: dict[str, Process] = {}
        self.ended: dict[str, Process] = {}
        self._options = tuple(options)  # of the supervisor and of every node
        self._environment = environment
        self.directory = directory
        self._starts = 0

    def __enter__(self) -> Self:
        multiprocessing.get_context("forkserver").set_forkserver_preload(list(PRELOAD))
        _start_fork_server()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for name in self.running:
            self.send_signal(name, signal.SIGKILL)
        for process in self.running.values():
            while process.poll() is None:
                time.sleep(POLL_S)

    # -- starting and ending -------------------------------------------------------------------

    def fork_supervisor(self, options: Sequence[str] = ()) -> None:
        """Start a supervisor with a database on disk, at a free port."""
        self.fork(SUPERVISOR, [SUPERVISOR, *self._place(SUPERVISOR), *options])

    def fork_node(
        self,
        name: NodeId,
        topic: TopicId,
        supervisor: Address | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """Start a node that joins a topic and stores its data, at a free port."""
        address = supervisor or self.running[SUPERVISOR].address
        ring = ["--supervisor", address, "--topic", topic, "--name", name]
        self.fork(name, ["node", *ring, *self._place(name), *options])

    def fork(self, name: str, words: Sequence[str]) -> None:
        """Start a command, or a Python program, under a name that no running process has."""
        assert name not in self.running
        self._starts += 1
        out = self.directory / f"{name}.{self._starts}.out"
        if self._environment is None:
            pid, poll = _fork(words, out, self.log(name))
        else:
            pid, poll = _spawn(words, out, self.log(name), self._environment)
        self.running[name] = Process(words=list(words), out=out, pid=pid, poll=poll)

    def fork_again(self, name: str) -> None:
        """Start an ended process again, with its command, data and name."""
        self.fork(name, self.ended.pop(name).words)

    def send_signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process, unless it has ended."""
        process = self.running[name]
        if process.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(process.pid, number)

    def status(self, name: str) -> int | None:
        """Return the exit status of a running process, negative for a signal; None while it runs.

        An ended process moves from ``running`` to ``ended``.
        """
        status = self.running[name].poll()
        if status is not None:
            self.ended[name] = self.running.pop(name)
        return status

    def _place(self, name: str) -> tuple[str, ...]:
        return "--listen", ANY_PORT, "--data", str(self.data(name)), *self._options

    # -- observations --------------------------------------------------------------------------

    def is_listening(self, name: str) -> bool:
        """Return True once a process has printed its address, and store the address."""
        if not self.has_printed(name, 1):
            return False
        first = self.lines(name)[0]
        assert first.startswith(LISTENING), f"{name} printed {first!r}"
        process = self.running[name]
        process.address = first.removeprefix(LISTENING)
        if name == SUPERVISOR:  # after a restart, the nodes dial the same address
            process.words[process.words.index("--listen") + 1] = process.address
        return True

    def has_printed(self, name: str, count: int) -> bool:
        """Return True once a process has printed ``count`` lines; raise if it has ended before."""
        status = self.running[name].poll()
        if len(self.lines(name)) >= count:  # read after the status
            return True
        if status is not None:
            raise SkipringError(f"{name} ended with status {status}: {self.last_log_line(name)}")
        return False

    @property
    def nodes(self) -> list[NodeId]:
        """Return the nodes that run and are not paused."""
        return [
            name
            for name, process in self.running.items()
            if process.words[0] == "node" and not process.is_paused
        ]

    def data(self, name: str) -> Path:
        """Return the data directory of a process."""
        return self.directory / name

    def log(self, name: str) -> Path:
        """Return the log file of a process."""
        return self.directory / f"{name}.err"

    def lines(self, name: str) -> list[str]:
        """Return the complete lines that a process has printed."""
        out = (self.running.get(name) or self.ended[name]).out
        text = out.read_text(encoding="utf-8") if out.exists() else ""
        return text.split("\n")[:-1]

    def last_log_line(self, name: str) -> str:
        """Return the last line that a process has logged."""
        log = self.log(name)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        return text.splitlines()[-1] if text else "its log is empty"


def numbered(count: int) -> list[NodeId]:
    """Return the names of ``count`` nodes."""
    return [f"n{number:02d}" for number in range(count)]


# --- start of a process ----------------------------------------------------------------


def _start_fork_server() -> None:
    """Start the server with SIGINT blocked, and with a short path for its socket.

    Processes inherit the mask: Ctrl-C must not reach one before it has its own session.
    """
    resource_tracker.ensure_running()  # first: it unblocks SIGINT when it starts
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    directory = tempfile.tempdir
    if len(tempfile.gettempdir()) > TEMPORARY_PATH_MAX:
        tempfile.tempdir = "/tmp"  # noqa: S108  (the server makes a directory of its own in it)
    try:
        forkserver.ensure_running()
    finally:
        tempfile.tempdir = directory
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _fork(words: Sequence[str], out: Path, err: Path) -> tuple[int, Poll]:
    process = multiprocessing.get_context("forkserver").Process(
        target=run_command, args=(list(words), str(out), str(err)), daemon=True
    )
    process.start()
    assert process.pid is not None
    return process.pid, lambda: process.exitcode


def _spawn(
    words: Sequence[str], out: Path, err: Path, environment: Mapping[str, str]
) -> tuple[int, Poll]:
    """Start an interpreter: the loader reads LD_PRELOAD, and Python PYTHONPATH, only at its start.

    The fork server has the environment of this process.
    """
    process = subprocess.Popen(  # noqa: S603  (our own program)
        [sys.executable, *PROGRAM, str(out), str(err), *words],
        env={**os.environ, **environment},
    )
    return process.pid, process.poll


def run_from_argv() -> None:
    """Run the command in ``sys.argv``, after the files for its output."""
    _, out, err, *words = sys.argv
    run_command(words, out, err)


def run_command(words: list[str], stdout: str, stderr: str) -> None:
    """Run a command of skipring, or a program if the first word is a file, in a new session.

    The kernel kills this process when its parent ends. The fork server ends when no process has
    its pipe open any more, so this process closes all inherited files, after asking the kernel.
    """
    os.setsid()
    with suppress(OSError, AttributeError):  # only Linux has it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, stdout, append),
        (2, stderr, append),
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # drops a Ctrl-C for the parent's session
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in [name for name in os.environ if name.startswith("SKIPRING_")]:
        del os.environ[name]  # they are options of the command line
    if words[0].endswith(".py"):
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
    else:
        sys.argv = ["skipring", *words]
        runpy.run_module("skipring", run_name="__main__")
