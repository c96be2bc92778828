"""Handshake: the first frame that each side sends on a connection.

Magic and version come first in every version, so two sides of different versions can report the
reason. A reader ignores fields that a later revision appends.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, TypeAlias, get_args

from msgspec import Meta, MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import astuple

from skipring.core.limits import check_node
from skipring.core.log_messages import Number
from skipring.core.name_registry import Incarnation
from skipring.core.peers import Address, NodeId
from skipring.errors import FramingError, HandshakeError, MessageError
from skipring.wire.framing import CONTROL, Frame, FrameReader, frame
from skipring.wire.limits import check_address

MAGIC: Final = "skipring"
VERSION: Final = 5
# Last field of a greeting that opens a connection: a server of a line protocol, such as HTTP,
# answers it at once and is recognised. Readers ignore it, like every field after the known ones.
BLANK_LINE: Final = "\r\n\r\n"
NONCE_END: Final = 1 << 62  # nonces are below it


class Role(StrEnum):
    """Role of a process in the system."""

    SUPERVISOR = "supervisor"
    NODE = "node"  # may be a member of topics
    CLIENT = "client"  # reads or writes through a member


class Hello(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Identity and address of one end of a connection; a client need not listen."""

    magic: str = MAGIC
    version: int = VERSION
    node: NodeId
    address: str  # an Address; empty only for a client
    role: Role
    incarnation: Incarnation = 0  # of a node's process (decision 46)
    nonce: Annotated[int, Meta(ge=0, lt=NONCE_END)] = 0  # of this connection (decision 48)


class _Opening(Struct, frozen=True, array_like=True, gc=False):
    """Fields at the start of the greetings of all versions."""

    magic: str
    version: int


_OPENING: Final = Decoder(_Opening)
_GREETING: Final = Decoder(Hello)
_ENCODER: Final = Encoder()


def encode_greeting(greeting: Hello, *, is_opening: bool = False) -> bytes:
    """Encode a greeting as a frame; an opening greeting ends with a blank line."""
    _check_values(greeting)
    fields = (*astuple(greeting), BLANK_LINE) if is_opening else greeting
    return frame(_ENCODER.encode(fields), CONTROL)


def check_greeting(given: Frame) -> Hello:
    """Decode the first frame of a connection; raise HandshakeError for another version."""
    if given.kind is not CONTROL:
        raise HandshakeError(
            f"the first frame is a {given.kind.name.lower()} frame, not a greeting"
        )
    try:
        opening = _OPENING.decode(given.body)
    except (MsgspecError, ValueError, RecursionError):  # ValueError: not UTF-8
        raise HandshakeError("the first frame is not a skipring greeting") from None
    if opening.magic != MAGIC:
        raise HandshakeError("the first frame is a greeting of another protocol")
    if opening.version != VERSION:
        theirs = f"the peer speaks version {opening.version}"
        raise HandshakeError(f"{theirs} of the protocol, this process version {VERSION}")
    try:
        greeting = _GREETING.decode(given.body)
    except (MsgspecError, ValueError, RecursionError):
        raise HandshakeError(f"an unreadable greeting of version {VERSION}") from None
    _check_values(greeting)
    return greeting


def version_in(data: bytes) -> int | None:
    """Return the version of the greeting at the start of the bytes; None if there is none."""
    size = 4 + int.from_bytes(data[:4])  # later bytes may have another format
    try:
        frames = FrameReader().feed(data[:size])
        opening = _OPENING.decode(frames[0].body) if frames else None
    except (FramingError, MsgspecError, ValueError, RecursionError):
        return None
    return opening.version if opening is not None and opening.magic == MAGIC else None


def _check_values(greeting: Hello) -> None:
    try:
        check_node(greeting.node)
        if greeting.address or greeting.role is not Role.CLIENT:
            check_address(greeting.address)
    except MessageError as error:
        raise HandshakeError(f"in a greeting, {error}") from None


# -- names of the two ends (decision 48) -------------------------------------------------------

NO_TOPIC: Final = "-"  # every envelope needs a topic; the following messages have none


class AskHolder(Struct, frozen=True, array_like=True, gc=False, tag=91):
    """Question to the process that holds a name: whether it also sent a greeting with a nonce.

    ``connection`` is the sender's number of the connection with the nonce, which the answer
    repeats. Without certificates ``address`` is the other end of that connection, as the sender
    sees it; else None. The answer is HolderReply.
    """

    connection: Number
    nonce: Number
    address: Address | None


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
    address: Address
    refused: bool


NameMessage: TypeAlias = AskHolder | HolderReply | NameTaken
NAME_TYPES: Final = frozenset(get_args(NameMessage))
