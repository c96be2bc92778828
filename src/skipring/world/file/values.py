"""Types of values in a world file: one parser each, from a value and its path.

A parser returns a value of the core or raises a WorldFormatError of one short sentence that names
the path.
"""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from msgspec import Struct

from skipring.core.labels import CIRCLE, Label
from skipring.core.peers import EdgeKind, NodeId, Peer, TopicId
from skipring.errors import WorldFormatError
from skipring.world.file.document import OversizedNumber, RepeatedKey

Parser: TypeAlias = Callable[[object, str], Any]

LABEL_CHARACTERS_MAX: Final = 4096  # Chosen limit: bounds a corrupted label too.
TOPIC_BYTES_MAX: Final = 255  # Chosen limit.
SHOWN_CHARACTERS_MAX: Final = 40  # Guess: enough to recognise a value in a sentence.
SHOWN_KEYS_MAX: Final = 3  # As above.

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")  # a NodeId
_HEX: Final = re.compile(r"[0-9A-Fa-f]*")


# -- sentences -----------------------------------------------------------------------------


def complaint(place: str, what: str) -> WorldFormatError:
    """Return the error that names a place and what is wrong there."""
    return WorldFormatError(f"{place}: {what}")


def expected(kind: str, value: object, place: str) -> WorldFormatError:
    """Return the error that names the expected and the actual value at a place."""
    return complaint(place, f"expected {kind}, got {shown(value)}")


def shown(value: object) -> str:
    """Format a value in few printable characters, on one line."""
    match value:
        case str():
            return _shortened(repr(value[:SHOWN_CHARACTERS_MAX]), cut=len(value))
        case list():
            return f"a list of {len(value)}"
        case dict() | RepeatedKey():
            return "an object"
        case OversizedNumber(digits=digits):
            return f"a number of {digits} digits"
        case _:
            text = json.dumps(value)  # null, true, false or a number
            return _shortened(text, cut=len(text))


def _shortened(text: str, cut: int) -> str:
    if max(len(text), cut) <= SHOWN_CHARACTERS_MAX:
        return text
    return text[: SHOWN_CHARACTERS_MAX - 1] + "..."


def listed(keys: Iterable[str]) -> str:
    """Format the first few keys, sorted, and the number of the others."""
    ordered = sorted(keys)
    names = ", ".join(shown(key) for key in ordered[:SHOWN_KEYS_MAX])
    more = len(ordered) - SHOWN_KEYS_MAX
    return f"{names} and {more} more" if more > 0 else names


# -- lists and objects ---------------------------------------------------------------------


class Shape(Struct, frozen=True):
    """Required and optional keys of an object."""

    required: frozenset[str]
    optional: frozenset[str] = frozenset()

    def fields(self, value: object, place: str) -> dict[str, Any]:
        """Return the object's fields if it has all required keys and no unknown ones."""
        fields = mapping(value, place)
        keys = fields.keys()
        if missing := self.required - keys:
            raise complaint(place, f"missing {listed(missing)}")
        if unknown := keys - self.required - self.optional:
            raise complaint(place, f"unknown {listed(unknown)}")
        return fields


def mapping(value: object, place: str) -> dict[str, Any]:
    """Return an object in which every key appears once."""
    if isinstance(value, RepeatedKey):
        raise complaint(place, f"{shown(value.key)} appears twice")
    if not isinstance(value, dict):
        raise expected("an object", value, place)
    return value


def entries(value: object, place: str) -> list[tuple[str, Any]]:
    """Return an object's entries, sorted: their order in JSON must not reach a simulation."""
    return sorted(mapping(value, place).items())


def sequence(value: object, place: str) -> list[Any]:
    """Return a list."""
    if not isinstance(value, list):
        raise expected("a list", value, place)
    return value


def tuple_of(parse: Parser, value: object, place: str) -> tuple[Any, ...]:
    """Parse every element of a list with one parser."""
    return tuple(parse(v, f"{place}[{i}]") for i, v in enumerate(sequence(value, place)))


# -- leaves --------------------------------------------------------------------------------


def flag(value: object, place: str) -> bool:
    """Return a boolean."""
    if not isinstance(value, bool):
        raise expected("true or false", value, place)
    return value


def integer(value: object, place: str) -> int:
    """Return any integer: a corrupted counter may have any value."""
    if type(value) is not int:  # a bool is an int
        raise expected("an integer", value, place)
    return value


def count(value: object, place: str) -> int:
    """Return an integer of any size, at least 0."""
    if type(value) is not int or value < 0:  # a bool is an int
        raise expected("an integer from 0", value, place)
    return value


def word(value: object, place: str) -> int:
    """Return an integer of 64 bits."""
    if type(value) is not int or not 0 <= value < CIRCLE:
        raise expected("an integer from 0 to 2^64-1", value, place)
    return value


def digest(value: object, place: str) -> int:
    """Return a sum modulo 2^64 (R14)."""
    return word(value, place)


def digest_or_none(value: object, place: str) -> int | None:
    """Return a digest, or None."""
    return None if value is None else digest(value, place)


def link(value: object, place: str) -> EdgeKind:
    """Return the kind of edge that a message is about."""
    try:
        return EdgeKind(value)
    except ValueError:
        raise expected("'LIN' or 'CYC'", value, place) from None


def string(value: object, place: str) -> str:
    """Return a string that UTF-8 can encode; JSON can also escape lone surrogates."""
    if not isinstance(value, str):
        raise expected("a string", value, place)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise expected("a string of whole characters", value, place) from None
    return value


def topic(value: object, place: str) -> TopicId:
    """Return the name of a topic: 1 to 255 bytes of UTF-8 without control characters."""
    name = string(value, place)
    size = len(name.encode())
    if not 1 <= size <= TOPIC_BYTES_MAX:
        raise complaint(place, f"a topic has 1 to {TOPIC_BYTES_MAX} bytes, this one has {size}")
    if any(unicodedata.category(character) == "Cc" for character in name):
        raise complaint(place, f"a topic has no control characters, got {shown(name)}")
    return name


def node_name(value: object, place: str) -> NodeId:
    """Return a well-formed name of a node; the node need not be in the world."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise expected("a node (1 to 64 characters of A-Z a-z 0-9 . _ -)", value, place)
    return value


def base64_bytes(value: object, place: str) -> bytes | None:
    """Return bytes written in base64, or None."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return base64.b64decode(value, validate=True)
    except (Base64Error, ValueError):  # ValueError: not ASCII
        pass
    raise expected("base64", value, place)


def hex_bytes(value: object, place: str, *sizes: int) -> bytes:
    """Return bytes written in hex, of one of the given sizes."""
    digits = [2 * size for size in sizes]
    if not isinstance(value, str) or len(value) not in digits or not _HEX.fullmatch(value):
        raise expected(f"{' or '.join(map(str, digits))} hex digits", value, place)
    return bytes.fromhex(value)


# -- labels and references -----------------------------------------------------------------


def label_text(value: object, place: str) -> str:
    """Return a string of 0 and 1, possibly empty, even if l never produces it."""
    if not isinstance(value, str):
        raise expected("a label", value, place)
    if len(value) > LABEL_CHARACTERS_MAX:
        limit = f"a label has at most {LABEL_CHARACTERS_MAX} characters"
        raise complaint(place, f"{limit}, this one has {len(value)}")
    if value.strip("01"):
        raise expected("a label (a string of 0 and 1)", value, place)
    return value


def label_or_none(value: object, place: str) -> Label | None:
    """Return a label; None also if l never produces it or if it exceeds 64 bits."""
    if value is None:
        return None
    bits = label_text(value, place)
    try:
        return Label.parse(bits)
    except ValueError:
        return None


def pair(value: object, place: str, kind: str = "[label, node]") -> tuple[Any, Any]:
    """Return the two elements of a list."""
    match value:
        case [label, node]:
            return label, node
        case _:
            raise expected(kind, value, place)


class References(Struct, frozen=True):
    """Parsers of references to nodes; a reference must name a known node."""

    known: frozenset[NodeId]

    def node(self, value: object, place: str) -> NodeId:
        """Return a node."""
        if not isinstance(value, str):
            raise expected("a node", value, place)
        if value not in self.known:
            raise complaint(place, f"{shown(value)} is neither in subscribers nor in crashed")
        return value

    def node_or_none(self, value: object, place: str) -> NodeId | None:
        """Return a node, or None."""
        return None if value is None else self.node(value, place)

    def peer(self, value: object, place: str) -> Peer | None:
        """Return a reference, or None if its label or its node is missing (B3)."""
        return self._peer(pair(value, place), place)

    def peer_or_none(self, value: object, place: str) -> Peer | None:
        """Return a reference, or None."""
        if value is None:
            return None
        return self._peer(pair(value, place, "null or [label, node]"), place)

    def _peer(self, halves: tuple[Any, Any], place: str) -> Peer | None:
        label = label_or_none(halves[0], f"{place}[0]")
        node = self.node_or_none(halves[1], f"{place}[1]")
        return Peer(label, node) if label is not None and node is not None else None
