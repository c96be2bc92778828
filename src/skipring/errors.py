"""Exceptions that skipring raises, as one tree.

SkipringError
├── InputError                input from the user is invalid
│   ├── WorldFormatError      a world file
│   ├── ScenarioError         a scenario
│   ├── IdentityError         the name of a node, given or stored
│   └── CursorError           a cursor
├── StorageError              a data directory cannot be used
│   ├── StoreFullError        the disk is full
│   └── StoreBusyError        another process uses the directory
├── DataLossError             the store that a query reads from is gone
├── UnreachableError          no supervisor or member that can serve the request answers
│   └── VolatileMembersError  members answer, but all of them store in memory only
├── PolicyError               the policy of the topic refuses a publication
├── ReplicationError          too few members have stored a publication
└── WireError                 bytes on a connection do not follow the wire format
    ├── FramingError          the bytes are not frames
    ├── HandshakeError        the first frame is not a handshake of this version
    └── MessageError          a frame contains no valid message
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

COMMAND_CHARACTERS_MAX: Final = 60  # Guess: enough to recognise a command.


class SkipringError(Exception):
    """Root of every error that skipring raises on purpose."""


class InputError(SkipringError):
    """Invalid input; the message states where and why.

    ``parameter`` names the argument at fault. The command line shows its flag instead.
    """

    def __init__(self, message: str = "", *, parameter: str | None = None) -> None:
        super().__init__(message if parameter is None else f"{parameter}: {message}")
        self.message = message
        self.parameter = parameter


class WorldFormatError(InputError):
    """World file that does not follow the format ``skipring-world/1``."""


class ScenarioError(InputError):
    """Scenario that cannot be read, or has an unknown key or an invalid value."""


class IdentityError(InputError):
    """Name that is invalid, or differs from the node's stored name or certificate."""


class CursorError(InputError):
    """Cursor that is not a position in this log; the message states where to start instead."""


class StorageError(SkipringError):
    """Data directory that cannot be read or written; the message states what to do.

    Damaged data alone does not raise it: the store recovers the intact batches. If ``publish``
    raises it, ``ids`` names the publications that were sent to neighbours and are not durable here;
    ``Subscription.retry`` sends the same publications again.
    """

    def __init__(self, message: str, *, ids: tuple[bytes, ...] = ()) -> None:
        super().__init__(message)
        self.ids = ids

    @property
    def may_be_published(self) -> bool:
        """Return True if other members may have publications of the failed call."""
        return bool(self.ids)


class StoreFullError(StorageError):
    """Full disk; no data is lost, and the caller can try again."""


class StoreBusyError(StorageError):
    """Data directory that is already in use, usually by another process."""


class DataLossError(SkipringError):
    """Loss of the store that a query reads from; the message states how to continue."""


class UnreachableError(SkipringError):
    """Request that no supervisor or member answers; the message states what to check."""


class VolatileMembersError(UnreachableError):
    """Request for a durable publication while all members store in memory only."""


class PolicyError(SkipringError):
    """Publication that the policy of its topic refuses; the message states why."""


class ReplicationError(SkipringError):
    """Publication that too few other members have stored durably; this node has stored it.

    ``id`` identifies the publication; ``confirmed`` counts the other members that have stored it.
    """

    def __init__(self, message: str, *, id: bytes, confirmed: int) -> None:  # noqa: A002
        super().__init__(message)
        self.id = id
        self.confirmed = confirmed


class UnconfirmedWarning(UserWarning):
    """Closed connection with publications that no other member has confirmed."""


class WireError(SkipringError):
    """Received or outgoing bytes that do not follow the format in docs/wire.md."""


class FramingError(WireError):
    """Frame of an invalid length or unknown kind; the bytes after it cannot be read."""


class HandshakeError(WireError):
    """First frame that is not a valid handshake of this protocol version."""


class MessageError(WireError):
    """Message that cannot be read, or has a value outside its limits."""


def process_text(pid: int) -> str | None:
    """Return "process 123 (python -m skipring node)"; None if no such process runs.

    The command is omitted if /proc does not show it.
    """
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass  # a process of another user
    except (OSError, OverflowError):
        return None
    given = b""
    with suppress(OSError):
        given = Path(f"/proc/{pid}/cmdline").read_bytes()
    words = given.decode(errors="replace").rstrip("\0").split("\0")
    command = " ".join([words[0].rpartition("/")[2], *words[1:]])
    command = "".join([each if each.isprintable() else "?" for each in command])
    if len(command) > COMMAND_CHARACTERS_MAX:
        command = f"{command[:COMMAND_CHARACTERS_MAX]}..."
    return f"process {pid} ({command})" if command else f"process {pid}"
