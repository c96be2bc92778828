"""Codec of frames and messages.

A frame contains an envelope: an array of the message, its topic, and address hints for the nodes
that the message names. A reader ignores fields that a later revision appends. The message comes
first and starts with its tag, so the third byte of a body is the type of the message. The codec
checks it before anything else, which bounds the cost of decoding. ``decode`` validates a message
once; ``encode`` validates only its size, because a process makes only valid messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from msgspec import MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import FieldInfo, fields

from skipring.core.batches import RecordBatch
from skipring.core.limits import (
    NUMBER_MAX,
    PUBLICATIONS_MAX,
    SHOWN_CHARACTERS_MAX,
    check_node,
    match_node,
)
from skipring.core.log_messages import LogPage
from skipring.core.messages import (
    CheckAndPublish,
    CheckHeld,
    CheckTrie,
    Held,
    Publications,
    PublishMany,
    PublishNew,
    Terms,
)
from skipring.core.peers import NodeId, Peer, TopicId
from skipring.core.publications import ID_BYTES
from skipring.errors import MessageError
from skipring.wire.chaos import Forge, Isolate, Overwrite, OverwriteDatabase
from skipring.wire.framing import (
    CONTROL,
    CONTROL_BYTES_MAX,
    DATA,
    DATA_BYTES_MAX,
    Frame,
    FrameKind,
    frame,
)
from skipring.wire.limits import RingVariables, check_topic
from skipring.wire.rpc import (
    WIRE_TYPES,
    Address,
    ArrivalPage,
    ChangePage,
    DatabasePage,
    DeliveryPage,
    MemberList,
    NodeStatus,
    Publish,
    SupervisorStatus,
    WireMessage,
    tag_of,
)

AnyMessage = TypeVar("AnyMessage")
Finder: TypeAlias = Callable[[Any], Iterable[NodeId]]  # lists the nodes in a value
Check: TypeAlias = Callable[[Any], None]  # raises MessageError

# Chosen limit: a byte of a claim takes at most 1 microsecond to read, and the core ignores claims
# that cost more than 64 KiB (twice its ``claims_bytes``).
CLAIMS_BYTES_MAX: Final = 80 * 1024
# Chosen limit: the longest page or status, with a hint for every node that it names.
PAGE_BYTES_MAX: Final = 256 * 1024

_TAG_AT: Final = 2  # after the first bytes of two short arrays: the envelope and the message
_SHORT_ARRAYS: Final = b"\x93\x93"  # of length 3: an envelope and new publications
_SHORT_MAX: Final = 127  # the largest number that takes one byte
_REASON_CHARACTERS_MAX: Final = 3 * SHOWN_CHARACTERS_MAX


class Envelope(Struct, Generic[AnyMessage], frozen=True, array_like=True, gc=False):
    """Content of a frame.

    A hint is the address of a node as far as the sender knows it. It is not part of the protocol's
    state, and the address in a node's own greeting takes precedence.
    """

    message: AnyMessage
    topic: TopicId
    hints: dict[NodeId, Address] = {}


class MessageFormat(Struct, frozen=True):
    """Format of one type of message."""

    name: str
    frame_kind: FrameKind
    body_bytes_max: int
    named: Sequence[Finder]  # of the nodes that a message names as peers
    check_sent: Check | None  # of a message that contains batches


# Format, decoder, getters of the fields with one node, and the other checks. A tuple, because
# unpacking it takes less time than reading attributes.
_Reader: TypeAlias = tuple[
    MessageFormat,
    Callable[[bytes], Envelope[Any]],
    Sequence[Callable[[Any], NodeId]],
    Sequence[Check],
]


# -- nodes in messages -----------------------------------------------------------------------

# Fields whose nodes get no address hints: the message does not make the receiver dial them.
_NO_PEERS: Final = frozenset(
    {
        (MemberList, "members"),
        (DatabasePage, "conflicts"),
        (NodeStatus, "health"),
        (ChangePage, "entries"),
        (ArrivalPage, "arrivals"),
        (OverwriteDatabase, "queue"),
        (Isolate, "nodes"),
    }
)


def _finder(kind: Any) -> Finder | None:  # noqa: ANN401  (a type)
    """Return a function that lists the nodes in a value of a type; None if it contains none."""
    origin, args = get_origin(kind), get_args(kind)
    if kind == NodeId or kind is Peer:
        return (lambda peer: (peer.node,)) if kind is Peer else (lambda node: (node,))
    if origin is Annotated:
        return _finder(args[0])
    if origin in (Union, UnionType):
        present = _finder(args[0])
        return present and (lambda value: () if value is None else present(value))
    if origin is dict or (origin is tuple and args[-1] is Ellipsis):  # the nodes of a map are keys
        each = _finder(args[0])
        return each and (lambda values: [node for value in values for node in each(value)])
    if origin is tuple:  # a label and a node
        last = _finder(args[-1])
        return last and (lambda values: last(values[-1]))
    parts: list[Finder] = []
    if isinstance(kind, type) and issubclass(kind, Struct) and kind is not RecordBatch:
        parts = [find for _, find in _found_in(kind)]
    return (lambda value: [node for find in parts for node in find(value)]) if parts else None


def _getter(field: FieldInfo) -> Callable[[Any], Any] | None:
    """Return a function that returns the node of a field; None unless it has exactly one."""
    if field.type is Peer:
        return attrgetter(f"{field.name}.node")
    return attrgetter(field.name) if field.type == NodeId else None


def _found_in(kind: type[Struct]) -> list[tuple[FieldInfo, Finder]]:
    """Return the fields of a struct that contain nodes, and a function that lists them."""

    def within(name: str, find: Finder) -> Finder:
        get = attrgetter(name)
        return lambda value: find(get(value))

    return [
        (field, within(field.name, find))
        for field in fields(kind)
        if (find := _finder(field.type)) is not None
    ]


def named_nodes(message: WireMessage) -> tuple[NodeId, ...]:
    """Return the nodes that a message names and that may have hints."""
    named = FORMATS[type(message)].named
    return tuple([node for find in named for node in find(message)]) if named else ()


# -- checks of values --------------------------------------------------------------------------


def _check_of(field: FieldInfo, find: Finder) -> Check:
    """Return a function that checks the node names in a field of a message."""
    get = attrgetter(field.name)

    def check(message: object) -> None:
        for node in find(message):
            check_node(node)

    def check_optional(message: object) -> None:
        node = get(message)
        if node is not None:
            check_node(node)

    return check_optional if field.type == NodeId | None else check


def _check_listed(batch: RecordBatch) -> None:
    """Check the publisher and that the batch has an id; the machine verifies the id (T10)."""
    if match_node(batch.publisher) is None:
        check_node(batch.publisher)
    if len(batch.id) != ID_BYTES:  # the decoder accepts a batch that ends before its id
        raise MessageError(f"an id of {len(batch.id)} bytes instead of {ID_BYTES}")


def _check_batch(batch: RecordBatch) -> None:
    _check_listed(batch)
    if not batch.body:
        raise MessageError("a batch without a body")


def _check_new(message: PublishNew) -> None:
    """Check one new batch, as ``_check_batch`` does, in one call: this is the hot path."""
    batch = message.publication
    if match_node(batch.publisher) is None or len(batch.id) != ID_BYTES or not batch.body:
        _check_batch(batch)


def _check_publish(message: Publish) -> None:
    _check_batch(message.batch)


def _check_several(message: Publications | PublishMany) -> None:
    count = len(message.publications)
    if count > PUBLICATIONS_MAX:
        raise MessageError(f"{count} batches exceed the limit of {PUBLICATIONS_MAX}")
    for batch in message.publications:
        _check_batch(batch)


def _check_charters(message: Terms) -> None:
    for batch in message.charters:
        _check_batch(batch)


def _check_page(message: LogPage) -> None:
    for batch in message.batches:
        _check_listed(batch)


def _check_watches(message: RingVariables) -> None:
    for state in message.silence.values():
        if max(abs(state.ticks), abs(state.threshold)) > NUMBER_MAX:
            raise MessageError("a silence counter above 2^63-1")


def _check_topics(message: SupervisorStatus) -> None:
    for each in message.topics:
        check_topic(each.topic)


# -- formats -----------------------------------------------------------------------------------

# Checked on both sides: a damaged disk can contain a batch without a body.
_BATCH_CHECKS: Final[Mapping[type[WireMessage], Check]] = {
    PublishNew: _check_new,
    Publish: _check_publish,
    PublishMany: _check_several,
    Publications: _check_several,
    Terms: _check_charters,
}
_CHECKS: Final[Mapping[type[WireMessage], Check]] = {
    **_BATCH_CHECKS,
    LogPage: _check_page,
    NodeStatus: _check_watches,
    Overwrite: _check_watches,
    SupervisorStatus: _check_topics,
}
# Messages in data frames, and the largest body of each; all other messages are control frames.
_DATA_BYTES_MAX: Final[Mapping[type[WireMessage], int]] = {
    **dict.fromkeys((PublishNew, PublishMany, Publications, Publish), DATA_BYTES_MAX),
    **dict.fromkeys((LogPage, DeliveryPage), DATA_BYTES_MAX),
    **dict.fromkeys((OverwriteDatabase, Forge, Isolate), DATA_BYTES_MAX),
    **dict.fromkeys((CheckTrie, CheckAndPublish, CheckHeld, Held), CLAIMS_BYTES_MAX),
    **dict.fromkeys((DatabasePage, NodeStatus, ChangePage), PAGE_BYTES_MAX),
    **dict.fromkeys((SupervisorStatus, ArrivalPage, Overwrite), PAGE_BYTES_MAX),
}


def _format_of(kind: type[WireMessage]) -> MessageFormat:
    return MessageFormat(
        name=kind.__name__,
        frame_kind=DATA if kind in _DATA_BYTES_MAX else CONTROL,
        body_bytes_max=_DATA_BYTES_MAX.get(kind, CONTROL_BYTES_MAX),
        named=[find for each, find in _found_in(kind) if (kind, each.name) not in _NO_PEERS],
        check_sent=_BATCH_CHECKS.get(kind),
    )


def _reader_of(kind: type[WireMessage]) -> _Reader:
    getters = {field.name: get for field in fields(kind) if (get := _getter(field)) is not None}
    checks = [_check_of(each, find) for each, find in _found_in(kind) if each.name not in getters]
    if kind in _CHECKS:
        checks.append(_CHECKS[kind])
    read = Decoder(Envelope[kind]).decode  # type: ignore[valid-type]
    return FORMATS[kind], read, tuple(getters.values()), checks


FORMATS: Final[Mapping[type[WireMessage], MessageFormat]] = {
    kind: _format_of(kind) for kind in WIRE_TYPES
}
_READERS_BY_TYPE: Final[Mapping[type[WireMessage], _Reader]] = {
    kind: _reader_of(kind) for kind in WIRE_TYPES
}
_READERS: Final[Mapping[int, _Reader]] = {
    tag_of(kind): reader for kind, reader in _READERS_BY_TYPE.items()
}
_ENCODER: Final = Encoder()


# -- reading ---------------------------------------------------------------------------------


def decode(given: Frame) -> Envelope[WireMessage]:
    """Decode a frame; raise MessageError for anything that docs/wire.md does not permit."""
    body = given.body
    reader = _READERS.get(body[_TAG_AT]) if len(body) > _TAG_AT else None
    if reader is None:
        raise MessageError("a frame does not start with the tag of a message")
    form, read, getters, checks = reader
    if given.kind is not form.frame_kind:
        raise MessageError(f"{form.name} in a {given.kind.name.lower()} frame")
    if len(body) > form.body_bytes_max:
        raise MessageError(_too_long(form, len(body)))
    try:
        envelope = read(body)
    except (MsgspecError, ValueError, RecursionError) as error:  # ValueError: not UTF-8
        raise MessageError(f"{form.name}: {on_one_line(error)}") from None
    message, hints = envelope.message, envelope.hints
    check_topic(envelope.topic)
    _check(message, getters, checks)
    if hints and not hints.keys() <= set(named_nodes(message)):
        raise MessageError("a hint about a node that the message does not name")
    return envelope


def check_nodes(message: WireMessage) -> None:
    """Check the nodes that a decoded message names; raise MessageError for an invalid name."""
    _, _, getters, checks = _READERS_BY_TYPE[type(message)]
    _check(message, getters, checks)


def _check(
    message: WireMessage,
    getters: Sequence[Callable[[WireMessage], NodeId]],
    checks: Sequence[Check],
) -> None:
    for get in getters:
        if match_node(get(message)) is None:
            check_node(get(message))
    for check in checks:
        check(message)


def on_one_line(error: Exception) -> str:
    """Return the decoder's message, short and printable, because it quotes received values."""
    text = ascii(str(error)[:_REASON_CHARACTERS_MAX])
    return text[1:-1]


def _too_long(form: MessageFormat, size: int) -> str:
    return f"{form.name} of {size} bytes exceeds the limit of {form.body_bytes_max}"


# -- writing ---------------------------------------------------------------------------------


def encode(
    topic: TopicId, message: WireMessage, hints: Mapping[NodeId, Address] | None = None
) -> bytes:
    """Encode a message as a frame; raise MessageError if it is too long or has no encoding."""
    form = FORMATS[type(message)]
    if form.check_sent is not None:
        form.check_sent(message)
    try:
        body = _ENCODER.encode((message, topic, dict(hints) if hints else {}))
    except (OverflowError, UnicodeEncodeError) as error:
        raise MessageError(f"{form.name}: {on_one_line(error)}") from None
    if len(body) > form.body_bytes_max:
        raise MessageError(_too_long(form, len(body)))
    return frame(body, form.frame_kind)


def forwarded(given: Frame, topic: TopicId, hops: int) -> bytes | None:
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
