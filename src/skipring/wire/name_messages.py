"""Messages between the ends of a connection about the name of one of them (decision 48).

The messages belong to no topic. The tags continue those of ``monitor_rpc`` and are part of the wire
format: never reuse one.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from skipring.core.messages import Number
from skipring.wire.limits import Incarnation

NO_TOPIC: Final = "-"  # every envelope needs a topic; these messages have none


class AskHolder(Struct, frozen=True, array_like=True, gc=False, tag=91):
    """Question to the process that holds a name: whether it has greeted with a nonce as well.

    ``connection`` is the sender's number of the connection with the nonce, which the answer
    repeats. Without certificates ``address`` is the other end of that connection, as the sender
    sees it; else None. The answer is HolderReply.
    """

    connection: Number
    nonce: Number
    address: str | None


class HolderReply(Struct, frozen=True, array_like=True, gc=False, tag=92):
    """Answer to AskHolder: whether the sender has an open connection with that nonce."""

    connection: Number
    is_own: bool


class NameTaken(Struct, frozen=True, array_like=True, gc=False, tag=93):
    """Report that another live process claims the receiver's name; the fields identify it.

    With ``refused`` the receiver was refused, and its connection ends. Otherwise the other process
    was refused.
    """

    incarnation: Incarnation
    address: str
    refused: bool


NameMessage: TypeAlias = AskHolder | HolderReply | NameTaken
NAME_TYPES: Final = frozenset((AskHolder, HolderReply, NameTaken))
