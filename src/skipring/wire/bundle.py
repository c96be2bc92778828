"""Bundles: small messages of many topics to one peer in one frame (decision 0055).

A process collects the small messages to a peer until it writes to the connection. The receiver
decodes a bundle in one call, and handles each message as if it had arrived in a frame of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Final, TypeAlias, get_args

from msgspec import Meta, MsgspecError, Raw, Struct
from msgspec.msgpack import Decoder, Encoder

from skipring.core.messages import (
    ROUTINE_TYPES,
    CheckLabel,
    ConfigurationAck,
    Digest,
    GetConfiguration,
    Introduce,
    IntroduceShortcut,
    Ping,
    Pong,
    RemoveConnections,
    ReportUnresponsive,
    SetConfiguration,
    Subscribe,
    TrieEqual,
    Unsubscribe,
    names_another,
)
from skipring.core.peers import NodeId, TopicId
from skipring.errors import MessageError
from skipring.wire.codec import Envelope, check_nodes, encode, named_nodes, on_one_line
from skipring.wire.framing import BUNDLE, CONTROL_BYTES_MAX, Frame, frame
from skipring.wire.limits import check_topic
from skipring.wire.rpc import Address, WireMessage

# Messages of constant size whose handling takes constant time. No request is among them.
SmallMessage: TypeAlias = (
    Subscribe
    | Unsubscribe
    | GetConfiguration
    | SetConfiguration
    | CheckLabel
    | Introduce
    | IntroduceShortcut
    | RemoveConnections
    | Digest
    | TrieEqual
    | ReportUnresponsive
    | Ping
    | Pong
    | ConfigurationAck
)
SMALL_TYPES: Final[frozenset[type[WireMessage]]] = frozenset(get_args(SmallMessage))
MESSAGES_MAX: Final = 128  # Limit. Measured: a machine handles as many new ones in 0.3 ms.
# Decoded groups to remember, 5,000 for 1,000 topics in rings of four. Measured: 0.7 KiB each.
KNOWN_MAX: Final = 16_384
# Bundles of such groups to remember, 50 for these topics. Limit: 4 MiB, and 22 MiB of their groups.
KNOWN_BUNDLES_MAX: Final = 256
KNOWN_BYTES_MAX: Final = 256
REMEMBERED_MESSAGES_MAX: Final = 4  # Measured: a neighbour at rest sends at most 3 in a topic.

# Messages that name no node but their sender, whose address the receiver knows.
_OWN_TYPES: Final = frozenset(
    {Subscribe, Unsubscribe, CheckLabel, RemoveConnections, Digest, TrieEqual, Ping, Pong}
)
HintsOf: TypeAlias = Callable[[Iterable[NodeId]], Mapping[NodeId, Address]]


class _GroupBody(Struct, frozen=True, array_like=True, gc=False):
    topic: TopicId
    messages: Annotated[tuple[SmallMessage, ...], Meta(min_length=1, max_length=MESSAGES_MAX)]


class TopicMessages(Struct, gc=False):
    """Messages of one topic in a bundle."""

    topic: TopicId
    messages: tuple[SmallMessage, ...]
    is_routine: bool  # True if all are routine messages
    is_remembered: bool = False  # True if equal bytes give this group again
    claimant: NodeId | None = None  # a peer that may send them all

    def is_claimed_by(self, peer: NodeId) -> bool:
        """Return True unless a message names another sender than the peer (decision 0045)."""
        if peer == self.claimant:
            return True
        if any(names_another(message, peer) for message in self.messages):
            return False
        self.claimant = peer
        return True

    def envelopes(self) -> list[Envelope[WireMessage]]:
        """Return each message in an envelope."""
        return [Envelope(message, self.topic) for message in self.messages]


class _Body(Struct, frozen=True, array_like=True, gc=False):
    """Content of a frame of the kind BUNDLE; the hints are about the nodes of all messages."""

    groups: Annotated[tuple[Raw, ...], Meta(min_length=1, max_length=MESSAGES_MAX)]
    hints: dict[NodeId, Address] = {}


_BODIES: Final = Decoder(_Body)
_GROUPS: Final = Decoder(_GroupBody)
_ENCODER: Final = Encoder()


# -- reading ---------------------------------------------------------------------------------


class Unbundled(Struct, frozen=True):
    """Groups of a bundle, and the hints of all of them."""

    groups: list[TopicMessages]
    hints: dict[NodeId, Address]


def unbundle(given: Frame) -> Unbundled:
    """Decode a bundle; raise MessageError for anything that docs/wire.md does not permit.

    The bundles of a peer at rest are the same bytes at every tick.
    """
    known = _KNOWN_BUNDLES.get(given.body)
    if known is not None:
        _KNOWN_BUNDLES.move_to_end(given.body)
        return known
    found = _unbundled(given)
    if not found.hints and all(group.is_remembered for group in found.groups):
        _KNOWN_BUNDLES[given.body] = found
        while len(_KNOWN_BUNDLES) > KNOWN_BUNDLES_MAX:
            _KNOWN_BUNDLES.popitem(last=False)
    return found


def _unbundled(given: Frame) -> Unbundled:
    try:
        body = _BODIES.decode(given.body)
        groups = [_group(bytes(raw)) for raw in body.groups]
    except (MsgspecError, ValueError, RecursionError) as error:  # ValueError: not UTF-8
        raise MessageError(f"a bundle: {on_one_line(error)}") from None
    if sum([len(group.messages) for group in groups]) > MESSAGES_MAX:
        raise MessageError(f"a bundle of more than {MESSAGES_MAX} messages")
    if body.hints:
        _check_hints(body.hints, groups)
    return Unbundled(groups, body.hints)


def _group(data: bytes) -> TopicMessages:
    """Decode and check a group; most are the same bytes at every tick.

    Members choose what they send, so the limits bound the memory of 16,384 hostile groups too
    (``test_distinct_groups_of_a_member_use_little_memory``).
    """
    found = _KNOWN.get(data)
    if found is None:
        found = _decoded(data)
        kinds = frozenset(map(type, found.messages))
        is_usual = found.is_routine or kinds == {SetConfiguration}
        is_short = len(data) <= KNOWN_BYTES_MAX and len(found.messages) <= REMEMBERED_MESSAGES_MAX
        if is_usual and is_short:
            found.is_remembered = True
            _KNOWN[data] = found
            while len(_KNOWN) > KNOWN_MAX:
                _KNOWN.popitem(last=False)
    return found


def _decoded(data: bytes) -> TopicMessages:
    body = _GROUPS.decode(data)
    check_topic(body.topic)
    for message in body.messages:
        check_nodes(message)
    is_routine = ROUTINE_TYPES.issuperset(map(type, body.messages))
    return TopicMessages(body.topic, body.messages, is_routine)


_KNOWN: Final[OrderedDict[bytes, TopicMessages]] = OrderedDict()  # the oldest first
_KNOWN_BUNDLES: Final[OrderedDict[bytes, Unbundled]] = OrderedDict()  # the least recent first


def _check_hints(hints: Mapping[NodeId, Address], groups: Iterable[TopicMessages]) -> None:
    """Check that each hint is about a node that a message names."""
    unnamed = set(hints)
    for group in groups:
        for message in group.messages:
            unnamed.difference_update(named_nodes(message))
        if not unnamed:
            return
    raise MessageError("a hint about a node that no message of the bundle names")


# -- writing ---------------------------------------------------------------------------------

_Groups: TypeAlias = list[tuple[TopicId, list[SmallMessage]]]


class Bundle:
    """Small messages that wait for the next write to one peer."""

    __slots__ = ("_groups", "_last", "_topic", "count")

    def __init__(self) -> None:
        self._groups: _Groups = []
        self._topic: TopicId | None = None  # of the last message
        self._last: list[SmallMessage] = []  # messages of this topic at the end
        self.count = 0  # at most MESSAGES_MAX: the caller begins another bundle

    def add(self, topic: TopicId, message: SmallMessage) -> None:
        """Append a message; consecutive messages of one topic share its name."""
        if topic == self._topic:
            self._last.append(message)
        else:
            self._topic, self._last = topic, [message]
            self._groups.append((topic, self._last))
        self.count += 1

    def frames(self, hints_of: HintsOf) -> Iterator[bytes | None]:
        """Encode the messages, usually as one frame; yield None for one without an encoding."""
        return _frames(self._groups, hints_of)


def _frames(groups: _Groups, hints_of: HintsOf) -> Iterator[bytes | None]:
    """Yield one frame, or the frames of both halves if the messages do not fit."""
    if len(groups) == len(groups[0][1]) == 1:
        topic, (message,) = groups[0]
        names = named_nodes(message)
        try:
            yield encode(topic, message, hints_of(names) if names else None)
        except MessageError:
            yield None
        return
    try:
        body = _ENCODER.encode((groups, _hints(groups, hints_of)))
    except (OverflowError, UnicodeEncodeError):
        body = b""
    if 0 < len(body) <= CONTROL_BYTES_MAX:
        yield frame(body, BUNDLE)
        return
    pairs = [(topic, [message]) for topic, messages in groups for message in messages]
    middle = len(pairs) // 2
    yield from _frames(pairs[:middle], hints_of)
    yield from _frames(pairs[middle:], hints_of)


def _hints(groups: _Groups, hints_of: HintsOf) -> dict[NodeId, Address]:
    """Return the known addresses of the nodes that the messages name."""
    names: dict[NodeId, None] = {}
    for _, messages in groups:
        for message in messages:
            if type(message) not in _OWN_TYPES:
                names.update(dict.fromkeys(named_nodes(message)))
    return dict(hints_of(names))
