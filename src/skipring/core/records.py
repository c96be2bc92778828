"""Record: a publication as it is stored, in MessagePack, without its id."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress
from typing import Final, NamedTuple

from msgspec import DecodeError, MsgspecError, Raw, Struct, ValidationError
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import replace

from skipring.core.limits import RECORD_BYTES_MAX, check_publications
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import ID_BYTES, Encoded, Publication
from skipring.errors import MessageError


class _Numbered(Struct, frozen=True, array_like=True, gc=False):
    """First fields of a record; the decoder skips the others."""

    publisher: NodeId
    seq: int


_ENCODER: Final = Encoder()
_PUBLICATIONS: Final = Decoder(Publication)
_NUMBERS: Final = Decoder(_Numbered)
_PAGE: Final = Decoder(list[Publication])
_RAW_PAGE: Final = Decoder(list[Raw])
# Placeholder of a row that no member accepts. It has no payload and no id: no reader keeps it.
UNREADABLE: Final = Publication(publisher="", seq=0)


def encoded(publication: Publication) -> bytes:
    """Encode a publication without its id."""
    p = publication
    return _ENCODER.encode((p.publisher, p.seq, p.payload, p.time, p.key, p.headers))


def encoded_all(publications: Iterable[Publication]) -> list[bytes]:
    """Encode publications as ``encoded`` does, inlined because it is on the hot path."""
    encode = _ENCODER.encode
    return [encode((p.publisher, p.seq, p.payload, p.time, p.key, p.headers)) for p in publications]


def restored(data: bytes, key: bytes, topic: TopicId) -> Publication | None:
    """Return the publication stored under an id; None if the id does not follow from its fields.

    Return None also for a row that no member accepts: too long, or with unknown fields. The id of
    an opaque publication (without payload) cannot be verified.
    """
    publication = _row(data)
    if publication is UNREADABLE:
        return None
    if publication.payload is None:
        return replace(publication, id=key)
    publication = publication.with_id(topic)
    return publication if publication.id == key else None


def _row(data: bytes | Raw) -> Publication:
    """Decode one row; return UNREADABLE if no member accepts it."""
    if len(data) > RECORD_BYTES_MAX:
        return UNREADABLE
    try:
        return _PUBLICATIONS.decode(data)
    except (DecodeError, ValidationError, ValueError):
        return UNREADABLE


def decoded_page(data: bytes) -> list[Publication]:
    """Decode the publications of a page, with UNREADABLE for each row that no member accepts.

    Raise MessageError if the page is not an array.
    """
    try:
        return _PAGE.decode(data)
    except (MsgspecError, ValueError, RecursionError):
        return [_row(row) for row in rows_of_page(data)]


def rows_of_page(data: bytes) -> list[Raw]:
    """Split a page into its rows; raise MessageError if it is not an array."""
    try:
        return _RAW_PAGE.decode(data)
    except (MsgspecError, ValueError, RecursionError) as error:
        raise MessageError(f"unreadable page: {error}") from None


def number_in(data: bytes) -> tuple[NodeId, int]:
    """Return the publisher and the sequence number of a record."""
    numbered = _NUMBERS.decode(data)
    return numbered.publisher, numbered.seq


class EncodedRecords(NamedTuple):
    """Encoded publications in order: offset, id and data of each."""

    offsets: list[int]
    ids: list[bytes]
    data: list[bytes]

    def first(self, count: int | None) -> EncodedRecords:
        """Return the first ``count`` records; None: all."""
        offsets, ids, data = self
        return EncodedRecords(offsets[:count], ids[:count], data[:count])

    def chosen(self, marks: Iterable[object]) -> EncodedRecords:
        """Return the records whose mark is true."""
        marks = list(marks)
        offsets, ids, data = self
        return EncodedRecords(
            list(compress(offsets, marks)), list(compress(ids, marks)), list(compress(data, marks))
        )


class RecordRun(NamedTuple):
    """Encoded publications with consecutive offsets, contiguous in a segment."""

    length: int  # number of publications
    ids: memoryview
    data: memoryview


class HistoryPage(Struct, frozen=True, gc=False):
    """Publications of a page in a neighbour's log, with the ids that the neighbour stores.

    A publication that has another id is corrupt. ``encoded`` is the stored form.
    """

    publications: tuple[Publication, ...]
    ids: bytes = b""  # concatenated
    encoded: Encoded | None = None


def decode_page(data: bytes, ids: bytes) -> HistoryPage | None:
    """Return the publications of a page with their stored ids, or None for an invalid page.

    Rows that no member accepts are omitted.
    """
    try:
        publications = decoded_page(data)
        # A second pass over the same bytes is the only reliable way to find the end of each row.
        sizes = list(map(len, rows_of_page(data)))
        rows = memoryview(data)[len(data) - sum(sizes) :]
        page = HistoryPage(tuple(publications), ids, Encoded(rows, sizes))
        if len(ids) != ID_BYTES * len(publications):
            return None
        if not _is_acceptable(page.publications, sizes):
            page = _readable(page, sizes)
            check_publications(page.publications)
    except MessageError:
        return None
    return page


def _is_acceptable(publications: tuple[Publication, ...], sizes: list[int]) -> bool:
    """Return True if a member accepts all rows of a page, which is the usual case."""
    try:
        check_publications(publications)
    except MessageError:
        return False
    return max(sizes, default=0) <= RECORD_BYTES_MAX


def _readable(page: HistoryPage, sizes: list[int]) -> HistoryPage:
    """Return the page without rows that are unreadable or too long."""
    assert page.encoded is not None, "a page has rows"
    pairs = zip(page.publications, sizes, strict=True)
    chosen = [each is not UNREADABLE and size <= RECORD_BYTES_MAX for each, size in pairs]
    ids = (page.ids[at : at + ID_BYTES] for at in range(0, len(page.ids), ID_BYTES))
    return HistoryPage(
        tuple(compress(page.publications, chosen)),
        b"".join(compress(ids, chosen)),
        page.encoded.chosen(chosen),
    )
