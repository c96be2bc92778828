"""Child processes by name: started, signalled, observed, and ended with this process.

Methods of the sections "starting" and "observations" never wait, so an event loop can poll them.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any, Final, Self

from msgspec import Struct

from skipring.admin.dev_cluster import ANY_PORT, LISTENING
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.errors import SkipringError
from skipring.wire.rpc import Address

POLL_S: Final = 0.05
KILLED_POLL_S: Final = 0.01
DEADLINE_S: Final = 120.0  # for actions of some seconds, on a busy machine
STARTED_S: Final = 60.0  # Guess: the slowest system has all its connections by then.
UNTIL_POLL_S: Final = 0.002  # Guess: costs a process less than 1 % of a core.
TAIL_LINES: Final = 12
# Modules that the commands import. The fork server loads them once, so a process starts in
# milliseconds.
PRELOAD: Final = (
    "skipring.cli",
    "skipring.api.connection",
    "skipring.lab.processes",
    "skipring.node.process",
    "structlog.stdlib",
    "uvloop",
)
# -P: do not import modules from the current directory
PROGRAM: Final = ("-P", "-c", f"from {__name__} import run_from_argv; run_from_argv()")
PR_SET_PDEATHSIG: Final = 1  # Linux
BLOCKED: Final = frozenset({signal.SIGINT, signal.SIGTERM})
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
    """Supervisor, nodes and other programs as processes, inside a ``with`` block.

    The fork server starts them; with an ``environment`` each gets a new interpreter.
    """

    def __init__(
        self,
        directory: Path,
        options: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.running: dict[str, Process] = {}
        self.ended: dict[str, Process] = {}
        self._options = tuple(options)  # options of the supervisor and of every node
        self._environment = environment
        self.directory = directory
        self._starts = 0

    def __enter__(self) -> Self:
        if self._environment is None:
            multiprocessing.get_context("forkserver").set_forkserver_preload(list(PRELOAD))
            _start_fork_server()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            error.add_note(self._tails())
        for name, process in self.running.items():
            self.send_signal(name, signal.SIGKILL)
            with suppress(ProcessLookupError, PermissionError):  # it may have children
                os.killpg(process.pid, signal.SIGKILL)
        for process in self.running.values():
            while process.poll() is None:
                time.sleep(KILLED_POLL_S)

    # -- starting ------------------------------------------------------------------------------

    def fork_supervisor(self, options: Sequence[str] = ()) -> None:
        """Start a supervisor with a database on disk, on a free port."""
        self.fork(SUPERVISOR, [SUPERVISOR, *self._place(SUPERVISOR), *options])

    def fork_node(
        self,
        name: NodeId,
        topic: TopicId,
        supervisor: Address | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """Start a node that listens on a free port, joins a topic and stores its data."""
        address = supervisor or self.running[SUPERVISOR].address
        ring = ["--supervisor", address, "--topic", topic, "--name", name]
        self.fork(name, ["node", *ring, *self._place(name), *options])

    def fork(self, name: str, words: Sequence[str]) -> None:
        """Start a skipring command or a program under a name that no running process has."""
        assert name not in self.running
        self._starts += 1
        out = self.directory / f"{name}.{self._starts}.out"
        with _signals_blocked():
            if self._environment is None:
                pid, poll = _fork(words, out, self.log(name))
            else:
                pid, poll = _spawn(words, out, self.log(name), self._environment)
            self.running[name] = Process(words=list(words), out=out, pid=pid, poll=poll)

    def fork_again(self, name: str) -> None:
        """Start an ended process again, with its command, data and name."""
        self.fork(name, self.ended.pop(name).words)

    def _place(self, name: str) -> tuple[str, ...]:
        return "--listen", ANY_PORT, "--data", str(self.data(name)), *self._options

    # -- observations --------------------------------------------------------------------------

    def send_signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process, unless it has ended."""
        process = self.running[name]
        if process.poll() is None:
            with suppress(ProcessLookupError):  # it has ended in the meantime
                os.kill(process.pid, number)

    def status(self, name: str) -> int | None:
        """Return the exit status of a running process, negative for a signal; None while it runs.

        An ended process moves from ``running`` to ``ended``.
        """
        status = self.running[name].poll()
        if status is not None:
            self.ended[name] = self.running.pop(name)
        return status

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
        """Return True once a process has printed ``count`` lines; raise if it ended first."""
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
        """Return the last line with letters that a process has logged."""
        log = self.log(name)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        # The frames of exception groups end with lines without letters.
        lines = (line.strip(" |") for line in text.split("\n")[::-1] if any(map(str.isalpha, line)))
        return next(lines, "its log is empty")

    def events(self, name: str, event: str) -> list[dict[str, Any]]:
        """Return the log entries of a process with this event, since its first start."""
        lines = self.log(name).read_text(encoding="utf-8").split("\n")[:-1]
        logged = [json.loads(line) for line in lines if line.startswith("{")]
        return [line for line in logged if line["event"] == event]

    def metrics_address(self, name: str) -> str:
        """Return the address at which a process serves its metrics."""
        return str(self.events(name, "metrics_started")[-1]["address"])

    def _tails(self) -> str:
        """Return the last log lines of each process."""
        tails = []
        for path in sorted(self.directory.glob("*.err")):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            tails += [f"--- {path.name}", *lines[-TAIL_LINES:]]
        return "\n".join(tails)

    # -- actions that wait ---------------------------------------------------------------------

    def kill(self, *names: str) -> None:
        """Send SIGKILL to all processes at once; return once they have ended."""
        for name in names:
            self.send_signal(name, signal.SIGKILL)
        for name in names:
            assert self.exit_status(name) == -signal.SIGKILL

    def stop(self, *names: str) -> None:
        """Ask processes to stop (SIGTERM); return once they have ended."""
        for name in names:
            self.send_signal(name, signal.SIGTERM)
        for name in names:
            self.exit_status(name)

    def restart(self, *names: str) -> None:
        """Start ended processes again, with the same command, data and names."""
        for name in names:
            self.fork_again(name)
        self.until_listening(*names)

    def pause(self, *names: str) -> None:
        """Pause processes (SIGSTOP): they appear to have crashed."""
        for name in names:
            self.send_signal(name, signal.SIGSTOP)
            self.running[name].is_paused = True

    def resume(self, *names: str) -> None:
        """Let paused processes continue (SIGCONT)."""
        for name in names:
            self.send_signal(name, signal.SIGCONT)
            self.running[name].is_paused = False

    def exit_status(self, name: str) -> int:
        """Wait for a process to end; return its exit status, negative for a signal."""
        self.until(lambda: self.running[name].poll() is not None, lambda: f"{name} still runs")
        status = self.status(name)
        assert status is not None
        return status

    def until_listening(self, *names: str) -> None:
        """Wait until processes have printed their addresses."""
        for name in names:
            self.until(lambda: self.is_listening(name), lambda: f"{name} does not listen")  # noqa: B023

    def until_printed(self, name: str, count: int) -> None:
        """Wait until a process has printed ``count`` lines; raise if it ends first."""
        self.until(lambda: self.has_printed(name, count), lambda: f"{name} is silent")

    def until(
        self,
        holds: Callable[[], object],
        why: Callable[[], str] = str,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Wait for a condition, with a deadline."""
        deadline = time.monotonic() + deadline_s
        while not holds():
            if time.monotonic() > deadline:
                raise SkipringError(f"not in {deadline_s:.0f} s: {why()}")
            self.pass_time()

    def pass_time(self) -> None:
        """Wait between two checks of a condition."""
        time.sleep(POLL_S)


async def until(
    holds: Callable[[], object],
    what: str,
    timeout_s: float = STARTED_S,
    poll_s: float = UNTIL_POLL_S,
) -> None:
    """Wait for a condition in an event loop; raise SkipringError if it stays false."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise SkipringError(f"{what}: not after {timeout_s:.0f} s")
        await asyncio.sleep(poll_s)


def numbered(count: int) -> list[NodeId]:
    """Return the names of ``count`` nodes."""
    return [f"n{number:02d}" for number in range(count)]


# --- start of a process ----------------------------------------------------------------


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block SIGINT and SIGTERM: between fork and registration they would leave an orphan.

    Processes inherit the mask: Ctrl-C must not reach one before it has its own session.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _start_fork_server() -> None:
    """Start the server with signals blocked, and with a short path for its socket."""
    resource_tracker.ensure_running()  # first: it unblocks SIGINT when it starts
    directory = tempfile.tempdir
    if len(tempfile.gettempdir()) > TEMPORARY_PATH_MAX:
        tempfile.tempdir = "/tmp"  # noqa: S108  (the server makes a directory of its own in it)
    try:
        with _signals_blocked():
            forkserver.ensure_running()
    finally:
        tempfile.tempdir = directory


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
    """Run a skipring command, or a program if the first word is a path, in a new session.

    The kernel kills this process when its parent ends. The fork server ends when no process has
    its pipe open, so this process closes all inherited files after that request to the kernel.
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
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in [name for name in os.environ if name.startswith("SKIPRING_")]:
        del os.environ[name]  # these variables are options of the command line
    if words[0].endswith(".py"):
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
    elif os.sep in words[0]:
        os.execv(words[0], words)  # noqa: S606  (programs of a fixed table)
    else:
        sys.argv = ["skipring", *words]
        runpy.run_module("skipring", run_name="__main__")
