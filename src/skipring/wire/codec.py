"""Codec of frames and messages.

A frame contains an envelope: an array of the message, its topic, and address hints for the nodes
that the message names. A reader ignores fields that a later revision appends. The message comes
first and starts with its tag, so the third byte of a body is the type of the message. The codec
checks it before anything else, which bounds the cost of decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

from msgspec import MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import replace

from skipring.core.messages import Publications, PublishMany, PublishNew
from skipring.core.peers import NodeId, TopicId
from skipring.errors import MessageError
from skipring.wire.formats import FORMATS, MessageFormat, tag_of
from skipring.wire.framing import DATA, Frame, frame
from skipring.wire.limits import SHOWN_CHARACTERS_MAX, check_address, check_topic
from skipring.wire.rpc import WIRE_TYPES, Address, Publish, WireMessage

AnyMessage = TypeVar("AnyMessage")

_TAG_AT: Final = 2  # after the first bytes of two short arrays: the envelope and the message
_SHORT_ARRAYS: Final = b"\x93\x93"  # of length 3: an envelope and new publications
_SHORT_MAX: Final = 127  # the largest number that takes one byte
_REASON_CHARACTERS_MAX: Final = 3 * SHOWN_CHARACTERS_MAX


class Envelope(Struct, Generic[AnyMessage], frozen=True, array_like=True, gc=False):
    """Content of a frame.

    A hint is the address of a node as far as the sender knows it. It is no part of the protocol's
    state, and the address in a node's own greeting is newer.
    """

    message: AnyMessage
    topic: TopicId
    hints: dict[NodeId, Address] = {}


class _Reader(Struct, frozen=True):
    """Decoder and format of the messages of one type."""

    name: str
    format: MessageFormat
    decoder: Decoder[Envelope[Any]]


_READERS: Final[Mapping[int, _Reader]] = {
    tag_of(kind): _Reader(
        kind.__name__,
        FORMATS[kind],
        Decoder(Envelope[kind]),  # type: ignore[valid-type]
    )
    for kind in WIRE_TYPES
}
_ENCODER: Final = Encoder()


# -- reading ---------------------------------------------------------------------------------


def decode(given: Frame) -> Envelope[WireMessage]:
    """Decode a frame; raise MessageError for anything that docs/wire.md does not permit."""
    body = given.body
    reader = _READERS.get(body[_TAG_AT]) if len(body) > _TAG_AT else None
    if reader is None:
        raise MessageError("a frame does not start with the tag of a message")
    if given.kind is not reader.format.frame_kind:
        raise MessageError(f"{reader.name} in a {given.kind.name.lower()} frame")
    if len(body) > reader.format.body_bytes_max:
        raise MessageError(_too_long(reader.name, len(body), reader.format))
    try:
        envelope = reader.decoder.decode(body)
    except (MsgspecError, ValueError, RecursionError) as error:  # ValueError: not UTF-8
        raise MessageError(f"{reader.name}: {_on_one_line(error)}") from None
    _check(envelope, reader.format)
    return envelope


def _check(envelope: Envelope[Any], form: MessageFormat) -> None:
    check_topic(envelope.topic)
    form.check(envelope.message)
    if envelope.hints:
        named = form.nodes(envelope.message)
        for node, address in envelope.hints.items():
            if node not in named:
                raise MessageError("a hint about a node that the message does not name")
            check_address(address)


def _on_one_line(error: Exception) -> str:
    """Return the decoder's message, short and printable, because it quotes received values."""
    text = ascii(str(error)[:_REASON_CHARACTERS_MAX])
    return text[1:-1]


def _too_long(name: str, size: int, form: MessageFormat) -> str:
    return f"{name} of {size} bytes, and {form.body_bytes_max} is the limit"


# -- writing ---------------------------------------------------------------------------------


def named_nodes(message: WireMessage) -> tuple[NodeId, ...]:
    """Return the nodes that a message names and that may have hints."""
    return FORMATS[type(message)].nodes(message)


def encode(
    topic: TopicId, message: WireMessage, hints: Mapping[NodeId, Address] | None = None
) -> bytes:
    """Encode a message as a frame; raise MessageError for anything that receivers would refuse."""
    form = FORMATS[type(message)]
    strip = _WITHOUT_IDS.get(type(message))
    sent = message if strip is None else strip(message)
    envelope = Envelope(sent, topic, dict(hints) if hints else {})
    _check(envelope, form)
    try:
        body = _ENCODER.encode(envelope)
    except (OverflowError, UnicodeEncodeError) as error:  # no bytes for the value
        raise MessageError(f"{type(message).__name__}: {_on_one_line(error)}") from None
    if len(body) > form.body_bytes_max:
        raise MessageError(_too_long(type(message).__name__, len(body), form))
    return frame(body, form.frame_kind)


def passed_on(given: Frame, topic: TopicId, hops: int) -> bytes | None:
    """Return a received frame of publications with other hops, without encoding it again.

    Return None if it has to be encoded again.
    """
    body, end = given.body, _end_of(topic)
    at = len(body) - len(end) - 1  # the place of the hops, which nearly always take one byte
    if hops > _SHORT_MAX or body[:_TAG_AT] != _SHORT_ARRAYS or body[at] > _SHORT_MAX:
        return None
    return frame(b"%b%c%b" % (body[:at], hops, end), DATA) if body.endswith(end) else None


@lru_cache(maxsize=256)
def _end_of(topic: TopicId) -> bytes:
    """Return the bytes after the message in an envelope without hints."""
    return _ENCODER.encode(topic) + _ENCODER.encode({})


def _one_without_id(message: PublishNew | Publish) -> PublishNew | Publish:
    return replace(message, publication=replace(message.publication, id=b""))


def _all_without_ids(message: Publications | PublishMany) -> Publications | PublishMany:
    nameless = tuple(replace(publication, id=b"") for publication in message.publications)
    return replace(message, publications=nameless)


# The receiver of a publication computes its id (T10), so it is not sent.
_WITHOUT_IDS: Final[Mapping[type[WireMessage], Callable[[Any], WireMessage]]] = {
    PublishNew: _one_without_id,
    Publish: _one_without_id,
    PublishMany: _all_without_ids,
    Publications: _all_without_ids,
}
