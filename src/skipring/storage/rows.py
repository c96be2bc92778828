"""Publications as they are stored, one by one: in MessagePack, without their ids."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress
from typing import Final, NamedTuple

from msgspec import DecodeError, Struct, ValidationError
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import replace

from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import Publication


class _Numbered(Struct, frozen=True, array_like=True, gc=False):
    """The first fields of a publication: the others are skipped."""

    publisher: NodeId
    seq: int


_ENCODER: Final = Encoder()
_PUBLICATIONS: Final = Decoder(Publication)
_NUMBERS: Final = Decoder(_Numbered)


def encoded(publication: Publication) -> bytes:
    """A publication without its id."""
    p = publication
    return _ENCODER.encode((p.publisher, p.seq, p.payload, p.time, p.key, p.headers))


def encoded_all(publications: Iterable[Publication]) -> list[bytes]:
    """As ``encoded``: this is done for every one that comes."""
    encode = _ENCODER.encode
    return [encode((p.publisher, p.seq, p.payload, p.time, p.key, p.headers)) for p in publications]


def restored(data: bytes, key: bytes, topic: TopicId) -> Publication | None:
    """The publication stored under an id; None if the id does not follow from its fields.

    An opaque one has nothing that its id could follow from.
    """
    try:
        publication = _PUBLICATIONS.decode(data)
    except (DecodeError, ValidationError, ValueError):
        return None
    if publication.payload is None:
        return replace(publication, id=key)
    publication = publication.settled(topic)
    return publication if publication.id == key else None


def number_in(data: bytes) -> tuple[NodeId, int]:
    """Whose publication it is, and which number it has there."""
    numbered = _NUMBERS.decode(data)
    return numbered.publisher, numbered.seq


class Rows(NamedTuple):
    """Publications as they are stored, in order: of each its offset, its id and its data."""

    offsets: list[int]
    ids: list[bytes]
    data: list[bytes]

    def first(self, count: int | None) -> Rows:
        """So many of them; None: all."""
        offsets, ids, data = self
        return Rows(offsets[:count], ids[:count], data[:count])

    def chosen(self, marks: Iterable[object]) -> Rows:
        """Some of them: those with a mark that is true."""
        marks = list(marks)
        offsets, ids, data = self
        return Rows(
            list(compress(offsets, marks)), list(compress(ids, marks)), list(compress(data, marks))
        )


class Stretch(NamedTuple):
    """Publications with consecutive offsets, as they lie in a pack."""

    length: int  # how many they are
    ids: memoryview
    data: memoryview
