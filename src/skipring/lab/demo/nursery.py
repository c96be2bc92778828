"""A warm parent, run as a program: it forks processes of the command line in milliseconds.

Starting an interpreter for each of 17 processes takes seconds. Here the imports are done once; a
forked process then runs a command as ``python -m skipring`` would, in a session of its own.

Requests come on stdin and answers go to stdout, one JSON value on a line:
``["start", words, stdout, stderr]`` is answered by a process id, ``["signal", pid, number]`` by
null, ``["status", pid]`` by the exit status (negative: the signal it died of) or null while it
runs. Only asking for the status reaps, so an id is never that of somebody else. At the end of
stdin all processes are killed; if this one is killed itself, the system kills them.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import sys
from contextlib import suppress
from typing import Any, Final

# What the commands import when they are called, and takes time.
WARM: Final = (
    "skipring.cli",
    "skipring.api.connection",
    "skipring.node.process",
    "structlog.stdlib",
    "uvloop",
)
PR_SET_PDEATHSIG: Final = 1  # of Linux


class Nursery:
    """The processes that were forked, and those of them that have ended."""

    def __init__(self) -> None:
        self._running: set[int] = set()
        self._ended: dict[int, int] = {}

    def add(self, pid: int) -> int:
        """A process was forked."""
        self._running.add(pid)
        self._ended.pop(pid, None)
        return pid

    def send_signal(self, pid: int, number: int) -> None:
        """Send a signal to a process that was not seen to end."""
        if pid in self._running:
            os.kill(pid, number)  # not reaped, so it is there

    def status(self, pid: int) -> int | None:
        """The exit status of a process; None while it runs."""
        if pid in self._running:
            reaped, status = os.waitpid(pid, os.WNOHANG)
            if reaped:
                self._note_end(pid, status)
        return self._ended.get(pid)

    def kill_all(self) -> None:
        """Kill and reap everybody."""
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
        for pid in list(self._running):
            self._note_end(pid, os.waitpid(pid, 0)[1])

    def _note_end(self, pid: int, status: int) -> None:
        self._running.discard(pid)
        self._ended[pid] = os.waitstatus_to_exitcode(status)


def serve(answers: int) -> list[str] | None:
    """Serve requests to their end; in a forked process, return the words it is to run."""
    nursery = Nursery()
    try:
        for line in iter(sys.stdin.readline, ""):
            request: Any = json.loads(line)
            answer = None
            match request:
                case ["start", words, stdout, stderr]:
                    parent = os.getpid()
                    pid = os.fork()
                    if pid == 0:
                        nursery = Nursery()  # others' children are not ours
                        os.close(answers)
                        _detach(parent, stdout, stderr)
                        return list(words)
                    answer = nursery.add(pid)
                case ["signal", pid, number]:
                    nursery.send_signal(pid, number)
                case ["status", pid]:
                    answer = nursery.status(pid)
            os.write(answers, json.dumps(answer).encode() + b"\n")
    finally:
        nursery.kill_all()
    return None


def _detach(parent: int, stdout: str, stderr: str) -> None:
    """Be a process of one's own, but die with the parent."""
    os.setsid()
    with suppress(OSError, AttributeError):  # not on every system
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it died before we could ask for the signal
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for number, path, how in (
        (0, os.devnull, os.O_RDONLY),
        (1, stdout, flags),
        (2, stderr, flags),
    ):
        opened = os.open(path, how, 0o600)
        os.dup2(opened, number)
        os.close(opened)


def run(words: list[str]) -> None:
    """Run a command of skipring, or a program if the first word is a file's name."""
    if words[0].endswith(".py"):
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
    else:
        sys.argv = ["skipring", *words]
        runpy.run_module("skipring", run_name="__main__")


def main() -> None:
    """Import, then serve; whoever comes back with words is a forked process."""
    for name in WARM:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # so that the pages stay shared
    words = serve(os.dup(1))
    if words is not None:
        run(words)


if __name__ == "__main__":
    main()
