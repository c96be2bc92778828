"""Cluster for development: a supervisor and nodes, forked from one process.

The interpreter starts once and forks, so the cluster is ready in a second. The children end when
the parent ends, for whatever reason: each of them watches a pipe that only the parent holds open.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from time import monotonic
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
ANY_PORT: Final = "127.0.0.1:0"
LISTENING: Final = "listening "

Served = Coroutine[Any, Any, signal.Signals | Stop]

_FORK: Final = get_context("fork")


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
    process: BaseProcess
    address: Address
    data: Path


class DevCluster:
    """Processes of a development cluster, inside its ``with`` block."""

    def __init__(self, settings: DevSettings) -> None:
        self.settings = settings
        self.children: dict[NodeId, Child] = {}  # the running ones
        self._alive, self._parent_end = os.pipe()

    def __enter__(self) -> Self:
        try:
            self._start(SUPERVISOR, self.settings.listen, ())
            for number in range(1, self.settings.nodes + 1):
                self._start(f"node-{number}", ANY_PORT, (self.supervisor,))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def supervisor(self) -> Address:
        """Return the address of the supervisor; raise SkipringError if it has ended."""
        if SUPERVISOR not in self.children:
            raise SkipringError("the supervisor has ended")
        return self.children[SUPERVISOR].address

    def reap(self) -> list[Child]:
        """Return the children that have ended since the last call."""
        ended = [each for each in self.children.values() if each.process.exitcode is not None]
        for each in ended:
            del self.children[each.name]
        return ended

    def stop(self) -> None:
        """End all processes: SIGTERM to all at once, SIGKILL to processes that remain."""
        for end in (BaseProcess.terminate, BaseProcess.kill):
            for each in self.children.values():
                end(each.process)
            deadline = monotonic() + STOP_S
            for each in self.children.values():
                each.process.join(max(deadline - monotonic(), 0))
            self.reap()
        for descriptor in (self._alive, self._parent_end):
            with suppress(OSError):
                os.close(descriptor)

    # -- starting ------------------------------------------------------------------------------

    def _start(self, name: NodeId, listen: Address, supervisors: Sequence[Address]) -> None:
        """Fork a process and wait until it listens; raise InputError if it does not."""
        lines, child_end = _FORK.Pipe(duplex=False)
        place = ProcessPaths(listen=listen, data=self.settings.data / name)
        given = (name, place, supervisors, child_end)
        process = _FORK.Process(target=self._run_child, args=given, daemon=True)
        process.start()
        child_end.close()
        data = self.settings.data / name
        self.children[name] = Child(name=name, process=process, address="", data=data)
        line = ""
        with lines, suppress(EOFError):
            line = lines.recv() if lines.poll(START_S) else ""
        if not line.startswith(LISTENING):
            if line.startswith("listen: "):
                raise InputError(line.removeprefix("listen: "), parameter="listen")
            raise InputError(line or f"{name} did not start within {START_S:g} s")
        address = line.removeprefix(LISTENING)
        self.children[name] = Child(name=name, process=process, address=address, data=data)

    def _run_child(
        self, name: NodeId, place: ProcessPaths, supervisors: Sequence[Address], lines: Connection
    ) -> None:
        """Run a supervisor or a node; exit with its status."""
        status = 1

        def announce(line: str) -> None:
            lines.send(line)
            lines.close()

        try:
            os.close(self._parent_end)
            Thread(target=_end_with_parent, args=[self._alive], daemon=True).start()
            configure_logs(self.settings.log_level)
            stop = run(self._served(name, place, supervisors, announce))
            status = int(isinstance(stop, Stop) and stop.not_handed_over > 0)
        except (SkipringError, OSError) as error:
            with suppress(OSError):  # it has announced itself before
                announce(str(error))
        except KeyboardInterrupt:
            status = 130
        sys.exit(status)

    def _served(
        self, name: NodeId, place: ProcessPaths, supervisors: Sequence[Address], announce: Announce
    ) -> Served:
        settings = NodeSettings(
            supervisors=tuple(supervisors),
            tick_s=self.settings.tick_s,
            answer_s=ANSWER_S,
            is_chaotic=self.settings.is_chaotic,
        )
        if name == SUPERVISOR:
            return serve_supervisor(settings, place, announce)
        return serve_node(settings, place, self.settings.topics, name=name, announce=announce)


def _end_with_parent(alive: int) -> None:
    """Wait until the parent has ended, then end this process as SIGTERM does."""
    with suppress(OSError):
        os.read(alive, 1)  # the pipe stays empty: the read returns when the parent has ended
    os.kill(os.getpid(), signal.SIGTERM)
