"""The errors skipring raises, as one tree.

SkipringError
├── InputError              something the user gave us is not of the form we accept
│   ├── WorldFormatError    a world file
│   ├── ScenarioError       a scenario file
│   ├── IdentityError       the name of a node, given or kept
│   └── CursorError         a place to read on from
├── StorageError            a data directory cannot be used
│   ├── StoreFullError      there is no room left
│   └── StoreBusyError      another process uses it
├── DataLossError           what a query was to read on from is not there any more
├── UnreachableError        no supervisor or member that could do it answers
│   └── VolatileMembersError  members answer, and all of them store in memory only
├── ReplicationError        fewer members than wanted have stored a publication
└── WireError               bytes from a link, or meant for one, are not of the form we speak
    ├── FramingError        they are no frames
    ├── HandshakeError      the first frame is no handshake, or one of another version
    └── MessageError        a frame does not hold a message, or one with values we do not accept
"""

from __future__ import annotations


class SkipringError(Exception):
    """Root of every error that skipring raises on purpose."""


class InputError(SkipringError):
    """Input that cannot be used; the message states where and why.

    ``parameter`` names the argument at fault. The command line shows its flag instead.
    """

    def __init__(self, message: str = "", *, parameter: str | None = None) -> None:
        super().__init__(message if parameter is None else f"{parameter}: {message}")
        self.message = message
        self.parameter = parameter


class WorldFormatError(InputError):
    """A world file is not of the form ``skipring-world/1``."""


class ScenarioError(InputError):
    """A scenario names something we do not know, or gives it a value we cannot use."""


class IdentityError(InputError):
    """A node cannot have this name, or already has another one."""


class CursorError(InputError):
    """A cursor does not point into what is read here; the message says where to start instead."""


class StorageError(SkipringError):
    """Something cannot be kept or read back; the message says what to do. Never for damage."""


class StoreFullError(StorageError):
    """There is no room on the disk; nothing is lost, and it can be tried again."""


class StoreBusyError(StorageError):
    """Another process uses the same data directory."""


class DataLossError(SkipringError):
    """A store that a query has read from is gone; the message says how to go on."""


class UnreachableError(SkipringError):
    """A supervisor or a member is needed, and none answers; the message says what to look at."""


class VolatileMembersError(UnreachableError):
    """A durable publication was requested, and all members store in memory only."""


class ReplicationError(SkipringError):
    """Fewer other members than wanted have stored a publication; it is stored here.

    ``id`` is that of the publication, ``confirmed`` the number of members that have stored it.
    """

    def __init__(self, message: str, *, id: bytes, confirmed: int) -> None:  # noqa: A002
        super().__init__(message)
        self.id = id
        self.confirmed = confirmed


class UnconfirmedWarning(UserWarning):
    """Publications of a connection that is closed, and that no other member has confirmed."""


class WireError(SkipringError):
    """What came over a link, or was to go over it, is not of the form of docs/wire.md."""


class FramingError(WireError):
    """A frame is too long or of no known kind; nothing behind it can be read."""


class HandshakeError(WireError):
    """Whoever is at the other end of a link does not speak our version of our language."""


class MessageError(WireError):
    """A message cannot be read, or a value in it is outside of what we accept."""
