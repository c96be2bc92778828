"""The messages of a world file: which fields each has, and of which kind."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final

from msgspec.structs import fields as struct_fields

from skipring.core.messages import (
    CheckLabel,
    Digest,
    GetConfiguration,
    Introduce,
    IntroduceShortcut,
    Message,
    RemoveConnections,
    SetConfiguration,
    Subscribe,
    Unsubscribe,
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
)


class Kind(Enum):
    """What a field of a message holds."""

    NODE = auto()
    NODE_OR_NONE = auto()
    LABEL_OR_NONE = auto()
    PEER = auto()
    PEER_OR_NONE = auto()
    LINK = auto()
    FLAG = auto()
    DIGEST = auto()
    DIGEST_OR_NONE = auto()


MESSAGE_FIELDS: Final[Mapping[type[Message], Mapping[str, Kind]]] = {
    Subscribe: {"node": Kind.NODE_OR_NONE},
    Unsubscribe: {"node": Kind.NODE_OR_NONE},
    GetConfiguration: {"node": Kind.NODE_OR_NONE, "digest": Kind.DIGEST_OR_NONE},
    SetConfiguration: {
        "pred": Kind.PEER_OR_NONE,
        "label": Kind.LABEL_OR_NONE,
        "succ": Kind.PEER_OR_NONE,
    },
    CheckLabel: {"sender": Kind.PEER, "believed": Kind.LABEL_OR_NONE, "link": Kind.LINK},
    Introduce: {"peer": Kind.PEER, "link": Kind.LINK, "first_hand": Kind.FLAG},
    IntroduceShortcut: {"peer": Kind.PEER},
    RemoveConnections: {"node": Kind.NODE},
    Digest: {"node": Kind.NODE, "digest": Kind.DIGEST},
}

_BY_NAME: Final[Mapping[str, type[Message]]] = {kind.__name__: kind for kind in MESSAGE_FIELDS}


def _shape(message_type: type[Message]) -> Shape:
    """A field with a default may be left out."""
    fields = struct_fields(message_type)
    return Shape(
        required=frozenset({"type"} | {field.name for field in fields if field.required}),
        optional=frozenset(field.name for field in fields if not field.required),
    )


_SHAPES: Final[Mapping[type[Message], Shape]] = {kind: _shape(kind) for kind in MESSAGE_FIELDS}


class MessageReader:
    """Parses messages that may name certain nodes."""

    def __init__(self, references: References) -> None:
        self._parsers: Mapping[Kind, Parser] = {
            Kind.NODE: references.node,
            Kind.NODE_OR_NONE: references.node_or_none,
            Kind.LABEL_OR_NONE: label_or_none,
            Kind.PEER: references.peer,
            Kind.PEER_OR_NONE: references.peer_or_none,
            Kind.LINK: link,
            Kind.FLAG: flag,
            Kind.DIGEST: digest,
            Kind.DIGEST_OR_NONE: digest_or_none,
        }

    def parse(self, value: object, place: str) -> Message | None:
        """The message; None if it is about a reference of which nothing is left."""
        message_type = _type_of(mapping(value, place), place)
        kinds = MESSAGE_FIELDS[message_type]
        fields = _SHAPES[message_type].fields(value, place)
        values = {
            name: self._parsers[kind](fields[name], f"{place}.{name}")
            for name, kind in kinds.items()
            if name in fields
        }
        if any(values[name] is None for name, kind in kinds.items() if kind is Kind.PEER):
            return None
        return message_type(**values)


def _type_of(fields: Mapping[str, Any], place: str) -> type[Message]:
    if "type" not in fields:
        raise complaint(place, "missing 'type'")
    name = fields["type"]
    if not isinstance(name, str) or name not in _BY_NAME:
        known = ", ".join(sorted(_BY_NAME))
        raise complaint(f"{place}.type", f"no message {shown(name)}; there are {known}")
    return _BY_NAME[name]


def message_fields(message: Message) -> dict[str, Any]:
    """A message as an object of the world file; a field that may be left out is, if it is none."""
    fields = {name: getattr(message, name) for name in MESSAGE_FIELDS[type(message)]}
    required = _SHAPES[type(message)].required
    return {"type": type(message).__name__} | {
        name: value for name, value in fields.items() if name in required or value is not None
    }
