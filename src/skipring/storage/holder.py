"""Processes that hold a resource we need, described for an error message."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

COMMAND_CHARACTERS_MAX: Final = 60  # Guess: enough to recognise a command.


def process_text(pid: int) -> str | None:
    """Return "process 123 (python -m skipring node)"; None if no such process runs.

    The command is left out where /proc does not show it.
    """
    if not _is_running(pid):
        return None
    try:
        given = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        given = b""
    words = given.decode(errors="replace").rstrip("\0").split("\0")
    program = words[0].rpartition("/")[2]
    command = "".join(
        each if each.isprintable() else "?" for each in " ".join([program, *words[1:]])
    )
    if len(command) > COMMAND_CHARACTERS_MAX:
        command = f"{command[:COMMAND_CHARACTERS_MAX]}..."
    return f"process {pid} ({command})" if command else f"process {pid}"


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:  # another user's
        return True
    except (OSError, OverflowError):
        return False
    return True
