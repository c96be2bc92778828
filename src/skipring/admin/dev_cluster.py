"""Cluster for development: a supervisor and nodes, forked into one process group.

The interpreter starts once and forks, so the cluster is ready in a second. The children end when
the parent ends in any way: each of them watches a pipe that only the parent holds open.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any, Final, Self

from msgspec import Struct

from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.errors import InputError, SkipringError
from skipring.node.process import Announce, ProcessPaths, Stop, run, serve_node, serve_supervisor
from skipring.node.settings import ANSWER_S, NodeSettings
from skipring.observability.logs import configure_logs
from skipring.wire.rpc import Address

START_S: Final = 30.0  # Guess: a loaded machine starts a forked process in a second.
STOP_S: Final = 5.0  # Guess: an operator waits no longer; then the remaining processes are killed.
POLL_S: Final = 0.02
ANY_PORT: Final = "127.0.0.1:0"
LISTENING: Final = "listening "
LINE_BYTES_MAX: Final = 4096

Process = Coroutine[Any, Any, signal.Signals | Stop]


class DevSettings(Struct, frozen=True, kw_only=True):
    """Size, place and speed of a development cluster."""

    listen: Address
    data: Path
    topics: tuple[TopicId, ...]
    nodes: int = 3
    tick_s: float = 0.25
    is_chaotic: bool = False
    log_level: str = "warning"


class Child(Struct, frozen=True, kw_only=True):
    """Process of the cluster."""

    name: NodeId
    pid: int
    address: Address
    data: Path


class DevCluster:
    """Processes of a development cluster, inside its ``with`` block."""

    def __init__(self, settings: DevSettings) -> None:
        self.settings = settings
        self.children: dict[int, Child] = {}  # running children by process id
        self._alive, self._parent_end = os.pipe()

    def __enter__(self) -> Self:
        try:
            supervisor = self._start(SUPERVISOR, self.settings.listen, ())
            for number in range(1, self.settings.nodes + 1):
                self._start(f"node-{number}", ANY_PORT, (supervisor.address,))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def supervisor(self) -> Address:
        """Return the address of the supervisor; raise SkipringError if it has ended."""
        found = [each.address for each in self.children.values() if each.name == SUPERVISOR]
        if not found:
            raise SkipringError("the supervisor has ended")
        return found[0]

    def reap(self) -> list[tuple[Child, int]]:
        """Return the children that have ended since the last call, with their exit status."""
        ended = []
        for pid, child in list(self.children.items()):
            reaped, status = os.waitpid(pid, os.WNOHANG)
            if reaped:
                del self.children[pid]
                ended.append((child, os.waitstatus_to_exitcode(status)))
        return ended

    def stop(self) -> None:
        """End all processes: SIGTERM to all at once, SIGKILL to processes that remain."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.children:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            deadline = monotonic() + STOP_S
            while self.children and monotonic() < deadline:
                if not self.reap():
                    sleep(POLL_S)
        for descriptor in (self._alive, self._parent_end):
            with suppress(OSError):
                os.close(descriptor)

    # -- starting ------------------------------------------------------------------------------

    def _start(self, name: NodeId, listen: Address, supervisors: Sequence[Address]) -> Child:
        """Fork a process and wait until it listens; raise InputError if it does not."""
        lines, child_end = os.pipe()
        data = self.settings.data / name
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.close(lines)
            os.close(self._parent_end)
            self._run_child(name, ProcessPaths(listen=listen, data=data), supervisors, child_end)
        os.close(child_end)
        self.children[pid] = Child(name=name, pid=pid, address="", data=data)
        try:
            line = _first_line(lines)
        finally:
            os.close(lines)
        if not line.startswith(LISTENING):
            if line.startswith("listen: "):
                raise InputError(line.removeprefix("listen: "), parameter="listen")
            raise InputError(line or f"{name} did not start within {START_S:g} s")
        child = Child(name=name, pid=pid, address=line.removeprefix(LISTENING), data=data)
        self.children[pid] = child
        return child

    def _run_child(
        self, name: NodeId, place: ProcessPaths, supervisors: Sequence[Address], child_end: int
    ) -> None:
        """Run a supervisor or a node; never return."""
        status = 1

        def announce(line: str) -> None:
            os.write(child_end, f"{line}\n".encode())
            os.close(child_end)

        try:
            Thread(target=_end_with_parent, args=[self._alive], daemon=True).start()
            configure_logs(self.settings.log_level)
            stop = run(self._process(name, place, supervisors, announce))
            status = int(isinstance(stop, Stop) and stop.not_handed_over > 0)
        except (SkipringError, OSError) as error:
            with suppress(OSError):  # it has announced itself before
                announce(str(error))
        except KeyboardInterrupt:
            status = 130
        finally:
            os._exit(status)

    def _process(
        self, name: NodeId, place: ProcessPaths, supervisors: Sequence[Address], announce: Announce
    ) -> Process:
        settings = NodeSettings(
            supervisors=tuple(supervisors),
            tick_s=self.settings.tick_s,
            answer_s=ANSWER_S,
            is_chaotic=self.settings.is_chaotic,
        )
        if name == SUPERVISOR:
            return serve_supervisor(settings, place, announce)
        return serve_node(settings, place, self.settings.topics, name=name, announce=announce)


def _first_line(descriptor: int) -> str:
    """Read one line from a pipe; empty if none arrives in time."""
    deadline = monotonic() + START_S
    data = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while b"\n" not in data and len(data) < LINE_BYTES_MAX:
            if not selector.select(max(deadline - monotonic(), 0)):
                return ""
            chunk = os.read(descriptor, LINE_BYTES_MAX)
            if not chunk:
                break
            data += chunk
    return data.decode(errors="replace").partition("\n")[0]


def _end_with_parent(alive: int) -> None:
    """Wait until the parent has ended, then end this process as SIGTERM does."""
    with suppress(OSError):
        os.read(alive, 1)  # the pipe stays empty: the read returns when the parent has ended
    os.kill(os.getpid(), signal.SIGTERM)
