"""A live ring of real processes: started, watched, killed, paused and always ended."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from types import TracebackType
from typing import Any, Self

from msgspec import Struct

from skipring.errors import UnreachableError
from skipring.world.file import parse_world
from skipring.world.legitimacy import publication_violations, violations
from skipring.world.snapshot import Snapshot
from tests.live import asking
from tests.live.asking import TOPIC, Place

SUPERVISOR = "supervisor"
ANY_PORT = "127.0.0.1:0"
DEADLINE_S = 120.0  # for what takes seconds: others use the machine too
POLL_S = 0.05
TAIL_LINES = 12
LISTENING = "listening "


class Process(Struct, kw_only=True):
    """A process that was started, and with what."""

    words: list[str]
    out: Path
    pid: int
    address: str = ""
    is_paused: bool = False


class WarmParent:
    """The process that forks the others (see ``forking``); they end with it, and it with us."""

    def __init__(self) -> None:
        told = {k: v for k, v in os.environ.items() if not k.startswith("SKIPRING_")}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("forking.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=told,
            start_new_session=True,  # Ctrl-C is for us: we end it
        )

    def start(self, words: list[str], out: Path, err: Path) -> int:
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
                process.wait(DEADLINE_S)
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
            assert answers.select(DEADLINE_S), f"no answer to {request}"
        return json.loads(self._process.stdout.readline())


class LiveProcesses:
    """A supervisor and nodes as processes of the command line, inside its block."""

    def __init__(self, directory: Path, *, tick_s: float = 0.5, has_metrics: bool = False) -> None:
        self.running: dict[str, Process] = {}
        self._tick_s = tick_s
        self._has_metrics = has_metrics
        self._directory = directory
        self._killed: dict[str, Process] = {}
        self._starts = 0

    def __enter__(self) -> Self:
        self._parent = WarmParent()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note(self._tails())
        self._parent.close()

    # -- starting and ending -------------------------------------------------------------------

    def start_supervisor(self) -> None:
        """Start a supervisor that keeps its database, at a free port."""
        self._fork(SUPERVISOR, [SUPERVISOR, *self._options(SUPERVISOR)])
        self._await_listening(SUPERVISOR)

    def start(self, *names: str, supervisor: str | None = None) -> None:
        """Start nodes that become members of the topic; returns once all listen."""
        whom = supervisor or self.running[SUPERVISOR].address
        for name in names:
            ring = ["--supervisor", whom, "--topic", TOPIC, "--name", name]
            self._fork(name, ["node", *ring, *self._options(name)])
        for name in names:
            self._await_listening(name)

    def run(self, name: str, *words: str) -> None:
        """Start any other command, or a program of Python, that runs until it is killed."""
        self._fork(name, list(words))

    def kill(self, *names: str) -> None:
        """Kill processes, all at once, as kill -9 does; returns once they are dead."""
        for name in names:
            self.send_signal(name, signal.SIGKILL)
        for name in names:
            assert self.exit_status(name) == -signal.SIGKILL

    def restart(self, *names: str) -> None:
        """Start processes that were killed as they were, with their data, under their names."""
        for name in names:
            self._fork(name, self._killed.pop(name).words)
        for name in names:
            self._await_listening(name)

    def delete_data(self, name: str) -> None:
        """Lose the disk of a process that was killed."""
        assert name in self._killed
        rmtree(self.data(name))

    def pause(self, *names: str) -> None:
        """Stop processes (SIGSTOP): they look dead, and are not."""
        for name in names:
            self.send_signal(name, signal.SIGSTOP)
            self.running[name].is_paused = True

    def resume(self, *names: str) -> None:
        """Let paused processes go on (SIGCONT)."""
        for name in names:
            self.send_signal(name, signal.SIGCONT)
            self.running[name].is_paused = False

    def send_signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process."""
        self._parent.send_signal(self.running[name].pid, number)

    def exit_status(self, name: str) -> int:
        """Wait for a process to end; its exit status, negative for a signal."""
        pid = self.running[name].pid
        self.until(lambda: self._parent.status(pid) is not None, lambda: f"{name} still runs")
        self._killed[name] = self.running.pop(name)
        status = self._parent.status(pid)
        assert status is not None
        return status

    def _options(self, name: str) -> list[str]:
        options = [
            "--listen",
            ANY_PORT,
            "--data",
            str(self.data(name)),
            "--tick",
            f"{self._tick_s}",
        ]
        return [*options, "--metrics", ANY_PORT] if self._has_metrics else options

    def _fork(self, name: str, words: list[str]) -> None:
        assert name not in self.running
        self._starts += 1
        out = self._directory / f"{name}.{self._starts}.out"
        pid = self._parent.start(words, out, self._err(name))
        self.running[name] = Process(words=words, out=out, pid=pid)

    def _await_listening(self, name: str) -> None:
        self.until_printed(name, 1)
        first = self.lines(name)[0]
        assert first.startswith(LISTENING), f"{name} says {first!r}"
        process = self.running[name]
        process.address = first.removeprefix(LISTENING)
        if name == SUPERVISOR:  # others look for it there when it comes back
            process.words[process.words.index("--listen") + 1] = process.address

    # -- what can be seen ----------------------------------------------------------------------

    @property
    def nodes(self) -> list[str]:
        """The nodes that run and are not paused."""
        return [
            name
            for name, process in self.running.items()
            if process.words[0] == "node" and not process.is_paused
        ]

    def place(self, name: str) -> Place:
        """A node and where it listens."""
        return name, self.running[name].address

    def data(self, name: str) -> Path:
        """The data directory of a process."""
        return self._directory / name

    def lines(self, name: str) -> list[str]:
        """What a process has printed, as far as lines are complete."""
        out = self.running.get(name, self._killed.get(name))
        assert out is not None
        text = out.out.read_text(encoding="utf-8") if out.out.exists() else ""
        return text.split("\n")[:-1]

    def events(self, name: str, event: str) -> list[dict[str, Any]]:
        """What a process has logged under this name, since it was first started."""
        lines = self._err(name).read_text(encoding="utf-8").split("\n")[:-1]
        logged = [json.loads(line) for line in lines if line.startswith("{")]
        return [line for line in logged if line["event"] == event]

    def evicted(self) -> list[str]:
        """Whom the supervisor has held for dead, in order."""
        return [str(line["node"]) for line in self.events(SUPERVISOR, "evicted")]

    def ticks(self, name: str) -> int:
        """How many ticks a process has had."""
        address = self.events(name, "metrics")[-1]["address"]
        return int(asking.metric(address, "skipring_ticks_total"))

    def _err(self, name: str) -> Path:
        return self._directory / f"{name}.err"

    def _tails(self) -> str:
        """The last lines that each process has logged."""
        tails = []
        for path in sorted(self._directory.glob("*.err")):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            tails += [f"--- {path.name}", *lines[-TAIL_LINES:]]
        return "\n".join(tails)

    # -- the ring ------------------------------------------------------------------------------

    def world(self) -> Snapshot:
        """The state of the topic, asked for as ``skipring ring --json`` does."""
        return asking.look(self.running[SUPERVISOR].address)

    def world_by_command(self) -> Snapshot:
        """The state of the topic, from ``skipring ring --json`` itself."""
        whom = ["--supervisor", self.running[SUPERVISOR].address]
        command = [sys.executable, "-m", "skipring", "ring", TOPIC, "--json", *whom]
        done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return parse_world(done.stdout)

    def publish(self, name: str, *payloads: bytes) -> list[bytes]:
        """Publish through a node; the ids, once it has acknowledged them."""
        return asking.publish_through(self.place(name), payloads)

    def stored(self, name: str) -> set[bytes]:
        """The ids of all that a node has."""
        return asking.stored_at(self.place(name))

    def until_legitimate(
        self, look: Callable[[], Snapshot] | None = None, *, with_publications: bool = True
    ) -> Snapshot:
        """Wait until all running nodes are members of a legitimate ring, and all have all."""
        seen: Snapshot | None = None
        wrong: list[str] = []

        def is_legitimate() -> bool:
            nonlocal seen, wrong
            try:
                seen = (look or self.world)()
            except UnreachableError as error:
                seen, wrong = None, [str(error)]
                return False
            wrong = faults(seen, self.nodes, with_publications=with_publications)
            return not wrong

        self.until(is_legitimate, lambda: "\n".join(wrong[:TAIL_LINES]))
        assert seen is not None
        return seen

    def until_printed(self, name: str, count: int) -> None:
        """Wait until a process has printed so many lines; it must not end before."""
        pid = self.running[name].pid

        def has_printed() -> bool:
            status = self._parent.status(pid)
            is_enough = len(self.lines(name)) >= count  # looked at after the status
            assert is_enough or status is None, f"{name} has ended with {status}"
            return is_enough

        self.until(has_printed, lambda: f"{name} is silent")

    def until(self, holds: Callable[[], bool], why: Callable[[], str] = str) -> None:
        """Wait for a condition, with a deadline."""
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, f"not in {DEADLINE_S:.0f} s: {why()}"
            time.sleep(POLL_S)


def faults(seen: Snapshot, nodes: list[str], *, with_publications: bool = True) -> list[str]:
    """What is wrong with a ring in which these nodes should be, in words."""
    members = {name for name, state in seen.subscribers.items() if state.member}
    missing = [f"{name} is not in the ring" for name in nodes if name not in members]
    judges = (violations, publication_violations) if with_publications else (violations,)
    return missing + [str(fault) for judge in judges for fault in judge(seen)]


def numbered(count: int) -> list[str]:
    """Names of so many nodes."""
    return [f"n{number:02d}" for number in range(count)]
