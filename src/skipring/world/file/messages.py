"""Messages in a world file: the fields of each, and their types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from enum import Enum, auto
from typing import Any, Final

from msgspec.structs import fields as struct_fields

from skipring.core.messages import (
    CheckAndPublish,
    CheckHeld,
    CheckLabel,
    CheckTrie,
    Digest,
    Draining,
    GetConfiguration,
    HandoverDone,
    Held,
    IHave,
    Introduce,
    IntroduceShortcut,
    Message,
    Publications,
    PublishMany,
    PublishNew,
    RemoveConnections,
    RequestHandover,
    SetConfiguration,
    Subscribe,
    TrieEqual,
    Unsubscribe,
    Want,
    ids_in,
)
from skipring.world.file.publications import (
    PublicationReader,
    claims,
    hops_of_each,
    packed_ids,
    short_ids,
    short_ids_list,
    trie_digest,
)
from skipring.world.file.values import (
    Parser,
    References,
    Shape,
    complaint,
    digest,
    digest_or_none,
    flag,
    label_or_none,
    link,
    mapping,
    shown,
    tuple_of,
    word,
)


class MessageKind(Enum):
    """Type of a field of a message."""

    NODE = auto()
    NODE_OR_NONE = auto()
    NODES = auto()
    LABEL_OR_NONE = auto()
    PEER = auto()
    PEER_OR_NONE = auto()
    LINK = auto()
    FLAG = auto()
    DIGEST = auto()
    DIGEST_OR_NONE = auto()
    WORD = auto()
    PUBLICATION = auto()
    PUBLICATIONS = auto()
    CLAIMS = auto()
    TRIE_DIGEST = auto()
    SHORT_IDS = auto()
    HOPS_OF_EACH = auto()
    IDS = auto()


MESSAGE_FIELDS: Final[Mapping[type[Message], Mapping[str, MessageKind]]] = {
    Subscribe: {"node": MessageKind.NODE_OR_NONE},
    Unsubscribe: {"node": MessageKind.NODE_OR_NONE},
    GetConfiguration: {"node": MessageKind.NODE_OR_NONE, "digest": MessageKind.DIGEST_OR_NONE},
    SetConfiguration: {
        "pred": MessageKind.PEER_OR_NONE,
        "label": MessageKind.LABEL_OR_NONE,
        "succ": MessageKind.PEER_OR_NONE,
    },
    CheckLabel: {
        "sender": MessageKind.PEER,
        "believed": MessageKind.LABEL_OR_NONE,
        "link": MessageKind.LINK,
    },
    Introduce: {"peer": MessageKind.PEER, "link": MessageKind.LINK, "first_hand": MessageKind.FLAG},
    IntroduceShortcut: {"peer": MessageKind.PEER},
    RemoveConnections: {"node": MessageKind.NODE},
    Digest: {"node": MessageKind.NODE, "digest": MessageKind.DIGEST},
    CheckTrie: {
        "sender": MessageKind.NODE,
        "claims": MessageKind.CLAIMS,
        "session": MessageKind.WORD,
        "confirm": MessageKind.FLAG,
    },
    CheckAndPublish: {
        "sender": MessageKind.NODE,
        "claims": MessageKind.CLAIMS,
        "session": MessageKind.WORD,
        "wanted": MessageKind.CLAIMS,
    },
    Publications: {"publications": MessageKind.PUBLICATIONS, "session": MessageKind.WORD},
    TrieEqual: {"sender": MessageKind.NODE, "root": MessageKind.TRIE_DIGEST},
    PublishNew: {"publication": MessageKind.PUBLICATION, "hops": MessageKind.WORD},
    PublishMany: {"publications": MessageKind.PUBLICATIONS, "hops": MessageKind.WORD},
    IHave: {
        "sender": MessageKind.NODE,
        "ids": MessageKind.SHORT_IDS,
        "hops": MessageKind.HOPS_OF_EACH,
    },
    Want: {
        "sender": MessageKind.NODE,
        "ids": MessageKind.SHORT_IDS,
        "hops": MessageKind.HOPS_OF_EACH,
    },
    CheckHeld: {
        "sender": MessageKind.NODE,
        "session": MessageKind.WORD,
        "claims": MessageKind.CLAIMS,
        "ids": MessageKind.IDS,
    },
    Held: {
        "sender": MessageKind.NODE,
        "session": MessageKind.WORD,
        "durable": MessageKind.FLAG,
        "claims": MessageKind.CLAIMS,
        "held": MessageKind.IDS,
        "missing": MessageKind.IDS,
    },
    Draining: {"sender": MessageKind.NODE, "remaining": MessageKind.NODES},
    RequestHandover: {"sender": MessageKind.NODE, "session": MessageKind.WORD},
    HandoverDone: {
        "sender": MessageKind.NODE,
        "session": MessageKind.WORD,
        "complete": MessageKind.FLAG,
    },
}

# Writers of packed bytes; JSON or ``writing`` covers the other kinds.
_WRITERS: Final[Mapping[MessageKind, Callable[[bytes], object]]] = {
    MessageKind.TRIE_DIGEST: bytes.hex,
    MessageKind.SHORT_IDS: short_ids_list,
    MessageKind.HOPS_OF_EACH: list,
    MessageKind.IDS: lambda ids: [each.hex() for each in ids_in(ids)],
}

_BY_NAME: Final[Mapping[str, type[Message]]] = {kind.__name__: kind for kind in MESSAGE_FIELDS}


def _shape(message_type: type[Message]) -> Shape:
    """Return the keys of a message; a field with a default is optional."""
    fields = struct_fields(message_type)
    return Shape(
        required=frozenset({"type"} | {field.name for field in fields if field.required}),
        optional=frozenset(field.name for field in fields if not field.required),
    )


_SHAPES: Final[Mapping[type[Message], Shape]] = {kind: _shape(kind) for kind in MESSAGE_FIELDS}


_DEFAULTS: Final[Mapping[type[Message], Mapping[str, object]]] = {
    kind: {field.name: field.default for field in struct_fields(kind) if not field.required}
    for kind in MESSAGE_FIELDS
}


class MessageReader:
    """Parser of messages that may name certain nodes."""

    def __init__(self, references: References, publications: PublicationReader) -> None:
        self._parsers: Mapping[MessageKind, Parser] = {
            MessageKind.NODE: references.node,
            MessageKind.NODE_OR_NONE: references.node_or_none,
            MessageKind.NODES: lambda value, place: tuple_of(references.node, value, place),
            MessageKind.LABEL_OR_NONE: label_or_none,
            MessageKind.PEER: references.peer,
            MessageKind.PEER_OR_NONE: references.peer_or_none,
            MessageKind.LINK: link,
            MessageKind.FLAG: flag,
            MessageKind.DIGEST: digest,
            MessageKind.DIGEST_OR_NONE: digest_or_none,
            MessageKind.WORD: word,
            MessageKind.PUBLICATION: publications.publication,
            MessageKind.PUBLICATIONS: publications.publications,
            MessageKind.CLAIMS: claims,
            MessageKind.TRIE_DIGEST: trie_digest,
            MessageKind.SHORT_IDS: short_ids,
            MessageKind.HOPS_OF_EACH: hops_of_each,
            MessageKind.IDS: packed_ids,
        }

    def parse(self, value: object, place: str) -> Message | None:
        """Return the message, or None if it carries a reference without a usable label or node."""
        message_type = _type_of(mapping(value, place), place)
        kinds = MESSAGE_FIELDS[message_type]
        fields = _SHAPES[message_type].fields(value, place)
        values = {
            name: self._parsers[kind](fields[name], f"{place}.{name}")
            for name, kind in kinds.items()
            if name in fields
        }
        if any(values[name] is None for name, kind in kinds.items() if kind is MessageKind.PEER):
            return None
        try:
            return message_type(**values)
        except ValueError as error:  # each field is valid, the combination is not
            raise complaint(place, str(error)) from None


def _type_of(fields: Mapping[str, Any], place: str) -> type[Message]:
    if "type" not in fields:
        raise complaint(place, "missing 'type'")
    name = fields["type"]
    if not isinstance(name, str) or name not in _BY_NAME:
        near = get_close_matches(name, _BY_NAME) if isinstance(name, str) else []
        hint = f"did you mean {' or '.join(near)}?" if near else "docs/wire.md lists them"
        raise complaint(f"{place}.type", f"no message {shown(name)}; {hint}")
    return _BY_NAME[name]


def message_fields(message: Message) -> dict[str, Any]:
    """Return a message as an object of the world file, without fields that have their default."""
    written: dict[str, Any] = {"type": type(message).__name__}
    defaults = _DEFAULTS[type(message)]
    for name, kind in MESSAGE_FIELDS[type(message)].items():
        value = getattr(message, name)
        if name not in defaults or value != defaults[name]:
            written[name] = _WRITERS[kind](value) if kind in _WRITERS else value
    return written
