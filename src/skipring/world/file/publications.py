"""Publications and trie summaries in a world file.

A publication is an object, a prefix of ids a string of 0 and 1, a digest or a part of an id hex.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from skipring.core.messages import HOPS_MAX
from skipring.core.peers import TopicId
from skipring.core.prefix import Prefix
from skipring.core.publications import ID_BITS, ID_BYTES, Publication
from skipring.core.summaries import DIGEST_BYTES, SHORT_BYTES, RangeSummary, Summary
from skipring.world.file.values import (
    Parser,
    Shape,
    base64_bytes,
    complaint,
    count,
    entries,
    expected,
    hex_bytes,
    node_name,
    pair,
    sequence,
    shown,
    string,
    tuple_of,
)

_PUBLICATION: Final = Shape(
    required=frozenset({"publisher", "seq"}),
    optional=frozenset({"payload", "time", "key", "headers", "id"}),
)
_CLAIM: Final = Shape(required=frozenset({"cover"}), optional=frozenset({"nodes", "leaves"}))


# -- publications --------------------------------------------------------------------------


class PublicationReader(Struct, frozen=True):
    """Parser of the publications of a topic."""

    topic: TopicId

    def publication(self, value: object, place: str) -> Publication:
        """Return a publication; a missing id is computed from the other fields."""
        fields = _PUBLICATION.fields(value, place)
        values = {
            name: parse(fields[name], f"{place}.{name}")
            for name, parse in _PUBLICATION_FIELDS.items()
            if name in fields
        }
        is_named = values.get("id") is not None  # a corrupted row keeps its wrong id (T12)
        publication = Publication(**values | {"id": values.get("id") or b""})
        return publication if is_named else publication.with_id(self.topic)

    def publications(self, value: object, place: str) -> tuple[Publication, ...]:
        """Return a list of publications."""
        return tuple_of(self.publication, value, place)


def _headers(value: object, place: str) -> dict[str, str]:
    return {
        string(name, place): string(content, f"{place}[{shown(name)}]")
        for name, content in entries(value, place)
    }


def _id_or_none(value: object, place: str) -> bytes | None:
    return None if value is None else hex_bytes(value, place, ID_BYTES)


_PUBLICATION_FIELDS: Final[Mapping[str, Parser]] = {
    "publisher": node_name,  # need not be in the world: a publisher may have left long ago
    "seq": count,
    "payload": base64_bytes,
    "time": count,
    "key": base64_bytes,
    "headers": _headers,
    "id": _id_or_none,
}


def publication_fields(publication: Publication) -> dict[str, Any]:
    """Return a publication as an object of the world file."""
    fields: dict[str, Any] = {"publisher": publication.publisher, "seq": publication.seq}
    if publication.payload is not None:  # an empty payload is a payload
        fields["payload"] = publication.payload
    if publication.key is not None:
        fields["key"] = publication.key
    maybe = {
        "time": publication.time,
        "headers": publication.headers,
        "id": publication.id.hex(),
    }
    return fields | {name: value for name, value in maybe.items() if value}


# -- tries ---------------------------------------------------------------------------------


def prefix(value: object, place: str) -> Prefix:
    """Return the first bits of ids, written as 0 and 1."""
    if not isinstance(value, str) or value.strip("01"):
        raise expected("a prefix (a string of 0 and 1)", value, place)
    if len(value) > ID_BITS:
        raise complaint(place, f"a prefix has at most {ID_BITS} bits, this one has {len(value)}")
    return Prefix.parse(value)


def trie_digest(value: object, place: str) -> bytes:
    """Return the digest of a trie node."""
    return hex_bytes(value, place, DIGEST_BYTES)


def hashes(value: object, place: str) -> dict[Prefix, bytes]:
    """Return digests by prefix."""
    return {
        prefix(bits, place): trie_digest(digest, f"{place}[{shown(bits)}]")
        for bits, digest in entries(value, place)
    }


def hashes_fields(digests: Mapping[Prefix, bytes]) -> dict[str, str]:
    """Return digests by prefix as an object of the world file."""
    return {label.bits: digest.hex() for label, digest in digests.items()}


def claims(value: object, place: str) -> tuple[RangeSummary, ...]:
    """Return a list of claims."""
    return tuple_of(_claim, value, place)


def _claim(value: object, place: str) -> RangeSummary:
    """Return a claim; its labels are written in full, so each must begin with the cover."""
    fields = _CLAIM.fields(value, place)
    cover = prefix(fields["cover"], f"{place}.cover")
    nodes: tuple[Summary, ...] = tuple_of(_summary, fields.get("nodes", []), f"{place}.nodes")
    for number, node in enumerate(nodes):
        here = f"{place}.nodes[{number}]"
        if not cover.covers(node.prefix):
            raise complaint(f"{here}[0]", "the label does not begin with the cover")
        if len(node.digest) != len(nodes[0].digest):
            raise complaint(f"{here}[1]", "the digest is not as long as the one before")
    return RangeSummary.make(cover, nodes, _short_ids(fields.get("leaves", []), f"{place}.leaves"))


def _summary(value: object, place: str) -> Summary:
    label, digest = pair(value, place, "[label, digest]")
    return Summary(
        prefix(label, f"{place}[0]"),
        hex_bytes(digest, f"{place}[1]", SHORT_BYTES, DIGEST_BYTES),
    )


def claim_fields(claim: RangeSummary) -> dict[str, Any]:
    """Return a claim as an object of the world file."""
    fields: dict[str, Any] = {"cover": claim.prefix.bits}
    if claim.labels:
        fields["nodes"] = [[node.prefix.bits, node.digest.hex()] for node in claim.summaries()]
    if claim.leaves:
        fields["leaves"] = short_ids_list(claim.leaves)
    return fields


# -- short ids -----------------------------------------------------------------------------


def short_ids(value: object, place: str) -> bytes:
    """Return concatenated short ids."""
    return b"".join(_short_ids(value, place))


def _short_ids(value: object, place: str) -> tuple[bytes, ...]:
    return tuple_of(lambda short, here: hex_bytes(short, here, SHORT_BYTES), value, place)


def short_ids_list(ids: bytes) -> list[str]:
    """Return short ids as a list of the world file."""
    return [ids[at : at + SHORT_BYTES].hex() for at in range(0, len(ids), SHORT_BYTES)]


def packed_ids(value: object, place: str) -> bytes:
    """Return concatenated ids."""
    return b"".join(tuple_of(lambda key, here: hex_bytes(key, here, ID_BYTES), value, place))


def hops_of_each(value: object, place: str) -> bytes:
    """Return the hop counts of some publications, one byte each."""
    for number, hops in enumerate(sequence(value, place)):
        if type(hops) is not int or not 0 <= hops <= HOPS_MAX:
            raise expected(f"an integer from 0 to {HOPS_MAX}", hops, f"{place}[{number}]")
    return bytes(sequence(value, place))
