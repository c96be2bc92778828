"""Processes by a mark in their environment, which all that they start inherits."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

MARK = "SKIPRING_TEST_MARK"
ENDED_WITHIN_S = 30.0


def marked(mark: str) -> list[str]:
    """The processes, except this one, that carry a mark: number and command."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is not ours
            variables = (path / "environ").read_bytes().split(b"\0")
            if f"{MARK}={mark}".encode() in variables and path.name != str(os.getpid()):
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ")
                found.append(f"{path.name} {command.decode(errors='replace'):.200}")
    return found


def left_of(mark: str) -> list[str]:
    """The processes with a mark that have not ended in time; none, if all is well."""
    deadline = time.monotonic() + ENDED_WITHIN_S
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left
