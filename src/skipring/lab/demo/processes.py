"""Processes of the command line by name: forked, listened to, signalled and always ended.

Nothing here waits for a process: whoever wants to may ask again, in a loop of its own kind.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from msgspec import Struct

from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.errors import SkipringError
from skipring.wire.rpc import Address

ANY_PORT: Final = "127.0.0.1:0"
LISTENING: Final = "listening "
ANSWER_S: Final = 60.0  # Our guess: a fork takes a millisecond, but the imports go first.
PROGRAM: Final = ("-P", "-m", "skipring.lab.demo.nursery")  # -P: not from the directory


class Process(Struct, kw_only=True):
    """A process that was started, and with what."""

    words: list[str]
    out: Path
    pid: int
    address: Address = ""
    is_paused: bool = False


class WarmParent:
    """The process that forks the others (see ``nursery``); they end with it, and it with us."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        told = {k: v for k, v in os.environ.items() if not k.startswith("SKIPRING_")}
        self._process = subprocess.Popen(  # noqa: S603  (our own program)
            [sys.executable, *PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**told, **(environment or {})},
            start_new_session=True,  # Ctrl-C is for us: we end it
        )

    def start(self, words: Sequence[str], out: Path, err: Path) -> int:
        """Fork a process that runs a command; its id."""
        pid: int = self._ask("start", words, str(out), str(err))
        return pid

    def send_signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a process it has forked."""
        self._ask("signal", pid, int(number))

    def status(self, pid: int) -> int | None:
        """The exit status of a process, negative for a signal; None while it runs."""
        status: int | None = self._ask("status", pid)
        return status

    def close(self) -> None:
        """Let it kill all that it has forked, and end."""
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(ANSWER_S)
            except subprocess.TimeoutExpired:
                process.kill()  # the system kills those it has forked
                raise

    def _ask(self, *request: object) -> Any:  # noqa: ANN401  (JSON is anything)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        with selectors.DefaultSelector() as answers:
            answers.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if answers.select(ANSWER_S) else ""
        if not line:
            raise SkipringError(f"the process that forks the others does not answer {request[0]!r}")
        return json.loads(line)


class Processes:
    """A supervisor, nodes and other commands as processes, inside its block."""

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
        self._directory = directory
        self._starts = 0

    def __enter__(self) -> Self:
        self._parent = WarmParent(self._environment)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._parent.close()

    # -- starting and ending -------------------------------------------------------------------

    def fork_supervisor(self, options: Sequence[str] = ()) -> None:
        """Start a supervisor that keeps its database, at a free port."""
        self.fork(SUPERVISOR, [SUPERVISOR, *self._place(SUPERVISOR), *options])

    def fork_node(
        self,
        name: NodeId,
        topic: TopicId,
        supervisor: Address | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """Start a node that becomes a member of a topic and keeps its data, at a free port."""
        whom = supervisor or self.running[SUPERVISOR].address
        ring = ["--supervisor", whom, "--topic", topic, "--name", name]
        self.fork(name, ["node", *ring, *self._place(name), *options])

    def fork(self, name: str, words: Sequence[str]) -> None:
        """Start a command, or a program of Python, under a name that nobody has now."""
        assert name not in self.running
        self._starts += 1
        out = self._directory / f"{name}.{self._starts}.out"
        pid = self._parent.start(words, out, self.log(name))
        self.running[name] = Process(words=list(words), out=out, pid=pid)

    def fork_again(self, name: str) -> None:
        """Start a process that has ended as it was, with its data, under its name."""
        self.fork(name, self.ended.pop(name).words)

    def send_signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process."""
        self._parent.send_signal(self.running[name].pid, number)

    def status(self, name: str) -> int | None:
        """The exit status of a process that runs, negative for a signal; None as long as it does.

        Once it has ended, it is among those that have.
        """
        status = self._parent.status(self.running[name].pid)
        if status is not None:
            self.ended[name] = self.running.pop(name)
        return status

    def _place(self, name: str) -> tuple[str, ...]:
        return "--listen", ANY_PORT, "--data", str(self.data(name)), *self._options

    # -- what can be seen ----------------------------------------------------------------------

    def is_listening(self, name: str) -> bool:
        """True once a process has said where it listens, which is then known."""
        if not self.has_printed(name, 1):
            return False
        first = self.lines(name)[0]
        assert first.startswith(LISTENING), f"{name} says {first!r}"
        process = self.running[name]
        process.address = first.removeprefix(LISTENING)
        if name == SUPERVISOR:  # others look for it there when it comes back
            process.words[process.words.index("--listen") + 1] = process.address
        return True

    def has_printed(self, name: str, count: int) -> bool:
        """True once a process has printed so many lines; SkipringError if it has ended before."""
        status = self._parent.status(self.running[name].pid)
        if len(self.lines(name)) >= count:  # looked at after the status
            return True
        if status is not None:
            raise SkipringError(f"{name} has ended with status {status}: {self.last_words(name)}")
        return False

    @property
    def nodes(self) -> list[NodeId]:
        """The nodes that run and are not paused."""
        return [
            name
            for name, process in self.running.items()
            if process.words[0] == "node" and not process.is_paused
        ]

    def data(self, name: str) -> Path:
        """The data directory of a process."""
        return self._directory / name

    def log(self, name: str) -> Path:
        """The file to which a process logs."""
        return self._directory / f"{name}.err"

    def lines(self, name: str) -> list[str]:
        """What a process has printed, as far as lines are complete."""
        out = (self.running.get(name) or self.ended[name]).out
        text = out.read_text(encoding="utf-8") if out.exists() else ""
        return text.split("\n")[:-1]

    def last_words(self, name: str) -> str:
        """The last line that a process has logged."""
        log = self.log(name)
        lines = (
            log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        )
        return lines[-1] if lines else "it has logged nothing"


def numbered(count: int) -> list[NodeId]:
    """Names of so many nodes."""
    return [f"n{number:02d}" for number in range(count)]
