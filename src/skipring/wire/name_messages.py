"""Messages between the ends of a connection about the name that one of them has (decision 48).

They belong to no topic. The tags continue those of ``watching`` and are part of the wire format:
never reuse one.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

NO_TOPIC: Final = "-"  # of an envelope that is about none: it must have one


class AskHolder(Struct, frozen=True, array_like=True, gc=False, tag=91):
    """Ask the other end of a connection which process it is; answered by HolderReply."""


class HolderReply(Struct, frozen=True, array_like=True, gc=False, tag=92):
    """The sender is the process with this incarnation and address."""

    incarnation: int
    address: str


class NameTaken(Struct, frozen=True, array_like=True, gc=False, tag=93):
    """Two live processes have the receiver's name; ``incarnation`` and ``address`` are the other's.

    With ``refused`` the receiver was refused, and its connection ends. Otherwise the other one was.
    """

    incarnation: int
    address: str
    refused: bool


NameMessage: TypeAlias = AskHolder | HolderReply | NameTaken
NAME_TYPES: Final = frozenset((AskHolder, HolderReply, NameTaken))
