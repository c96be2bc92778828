"""Publications: identity (section 4.2), sequence numbers and stored form.

A sequence number is ``incarnation << 22 | counter``. A process takes a new incarnation at every
start, so a process that has lost its disk, was restored from a backup or was cloned never gives one
number to two publications (decision 46). The numbers of one incarnation are a *sequence*; they only
rise. Incarnation 0 continues the stored numbers; simulated worlds use it.

A record is a publication as it is stored: in MessagePack, without its id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, compress
from struct import Struct as Layout
from typing import Annotated, Final, NamedTuple, Self, TypeAlias

from msgspec import DecodeError, Meta, MsgspecError, Raw, Struct, ValidationError
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import force_setattr, replace

from skipring.core.peers import NodeId, TopicId
from skipring.errors import MessageError

ID_BYTES: Final = 32
ID_BITS: Final = 8 * ID_BYTES  # m in section 4.2
# Limit: nodes ignore larger numbers, so a publisher continues after a smaller one.
SEQ_BELIEVED_MAX: Final = 1 << 62
OVERHEAD_BYTES: Final = 64  # Guess: size in a message besides payload, key and headers.
# Limit of one record. The largest accepted publication is shorter: 512 KiB of payload, key and
# headers (``limits``), a name, two numbers and the sizes of 133 fields.
RECORD_BYTES_MAX: Final = 528 * 1024

# The paper's second hash function. Ids, leaf digests and inner digests have separate domains (T1).
_ID: Final = blake2b(digest_size=ID_BYTES, person=b"skipring id")


Count = Annotated[int, Meta(ge=0)]
PublicationId: TypeAlias = Annotated[
    bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES, description=f"{ID_BYTES} bytes")
]


class Publication(
    Struct, frozen=True, kw_only=True, array_like=True, gc=False, forbid_unknown_fields=True
):
    """Publication of an application; without a payload only its id is known (opaque).

    The ``id`` is a cache: it follows from the topic and all other fields (T10).
    """

    publisher: NodeId
    seq: Count  # distinguishes equal payloads of one publisher
    payload: bytes | None = None
    time: Count = 0  # microseconds since the epoch at the publisher; 0 if unknown
    key: bytes | None = None  # belongs to the user
    headers: dict[str, str] = {}
    id: bytes = b""

    def id_in(self, topic: TopicId) -> bytes:
        """Return the id in a topic: 256 bits over all fields (section 4.2)."""
        state = _begun(topic, self.publisher).copy()
        seq, time, payload = self.seq, self.time, self.payload
        seq_size, time_size = (seq.bit_length() + 7) // 8, (time.bit_length() + 7) // 8
        # ``_number`` twice, inlined: this runs for every publication.
        numbers = ((seq_size << (8 * seq_size)) | seq).to_bytes(seq_size + 4, "big") + (
            (time_size << (8 * time_size)) | time
        ).to_bytes(time_size + 4, "big")
        if payload is None or self.key is not None or self.headers:
            headers = _texts(*self.headers.items()) if self.headers else _NOTHING
            state.update(numbers + _optional(self.key) + headers + _optional(payload))
        else:
            state.update(numbers + _plain(len(payload)) + payload)
        return state.digest()

    def is_genuine(self, topic: TopicId) -> bool:
        """Return True if the id is the hash of the fields; if opaque, only check its length."""
        if self.payload is None:
            return len(self.id) == ID_BYTES
        return self.id == self.id_in(topic)

    def with_id(self, topic: TopicId) -> Self:
        """Return the publication with the id of its fields; an opaque one keeps its id."""
        if self.payload is None and len(self.id) == ID_BYTES:
            return self
        return replace(self, id=self.id_in(topic))

    @property
    def size_bytes(self) -> int:
        """Return the approximate size in a message."""
        size = OVERHEAD_BYTES + len(self.payload or b"") + len(self.key or b"")
        if self.headers:
            size += sum(len(text.encode()) for item in self.headers.items() for text in item)
        return size


class Encoded(Struct, frozen=True, gc=False):
    """Concatenated publications in their stored form, without their ids."""

    data: bytes | memoryview
    sizes: list[int]  # of each publication

    @classmethod
    def of(cls, rows: Sequence[bytes]) -> Self:
        """Concatenate stored publications."""
        return cls(b"".join(rows), list(map(len, rows)))

    def chosen(self, marks: Iterable[object]) -> Self:
        """Return the publications whose flag is True."""
        spans = compress(zip(accumulate(self.sizes), self.sizes, strict=True), marks)
        return self.of([bytes(self.data[end - size : end]) for end, size in spans])


def with_payload(publications: tuple[Publication, ...], *, opaque: bool) -> tuple[Publication, ...]:
    """Return the publications with a payload; all of them if opaque ones are accepted."""
    if opaque:
        return publications
    return tuple([each for each in publications if each.payload is not None])


def in_chunks(publications: Iterable[Publication], size: int) -> Iterator[tuple[Publication, ...]]:
    """Yield publications in groups of at most ``size`` bytes; a larger one is alone (T14)."""
    chunk: list[Publication] = []
    chunk_bytes = 0
    for each in publications:
        size_bytes = each.size_bytes
        if chunk and chunk_bytes + size_bytes > size:
            yield tuple(chunk)
            chunk, chunk_bytes = [], 0
        chunk.append(each)
        chunk_bytes += size_bytes
    if chunk:
        yield tuple(chunk)


def with_id(publications: Iterable[Publication], topic: TopicId) -> tuple[Publication, ...]:
    """Return publications with the ids of their fields (``Publication.with_id``)."""
    return tuple([publication.with_id(topic) for publication in publications])


def ids_of(publications: Iterable[Publication], topic: TopicId) -> tuple[bytes, ...]:
    """Return the id of each publication in a topic (``Publication.id_in``); empty if it has none.

    Fast path: most publications share publisher, length and the sizes of their numbers with the
    previous one.
    """
    ids: list[bytes] = []
    publisher, size, plain, begun = None, -1, b"", _ID
    seq_min, seq_max, time_min, time_max, seq_mark, time_mark, prefix, pack = _NO_FORM
    for each in publications:
        seq, time, payload = each.seq, each.time, each.payload
        if not (seq_min <= seq <= seq_max and time_min <= time <= time_max):
            form = _form_of(seq, time)
            seq_min, seq_max, time_min, time_max, seq_mark, time_mark, prefix, pack = form
            publisher = None
        if payload is None or pack is None or each.key is not None or each.headers:
            ids.append(each.id_in(topic) if payload is not None and seq | time >= 0 else b"")
            continue
        if each.publisher != publisher:
            publisher = each.publisher
            begun = _begun(topic, publisher, prefix)
        if len(payload) != size:
            size = len(payload)
            plain = _plain(size)
        state = begun.copy()
        state.update(pack(seq_mark | seq, time_mark | time, plain))
        state.update(payload)
        ids.append(state.digest())
    return tuple(ids)


def assign_ids(publications: Iterable[Publication], ids: Iterable[bytes]) -> None:
    """Set the ids of publications in place; this is valid because an id is a cache."""
    for publication, key in zip(publications, ids, strict=True):
        force_setattr(publication, "id", key)


_NOTHING: Final = b"\0\0\0\0"
_PRESENT: Final = b"\0\0\0\1\1"

# Each field is hashed after its length, so that different fields never give the same input.


@lru_cache(maxsize=1024)  # most publications of a topic come from few publishers
def _begun(topic: TopicId, publisher: NodeId, prefix: bytes = b"") -> blake2b:
    """Return the hash state that a publisher's publications in a topic share; callers copy it."""
    state = _ID.copy()
    state.update(_text(topic) + _text(publisher) + prefix)
    return state


@lru_cache(maxsize=1024)  # the payloads of a topic have few lengths
def _plain(payload_bytes: int) -> bytes:
    """Return the bytes between the numbers and the payload if there is no key and no header."""
    return _NOTHING + _NOTHING + _PRESENT + payload_bytes.to_bytes(4, "big")


class _Form(NamedTuple):
    """Byte layout of two numbers of given sizes as hash input, in the format of ``_number``."""

    seq_min: int
    seq_max: int
    time_min: int
    time_max: int
    seq_mark: int  # the size, in the bits above the number
    time_mark: int
    prefix: bytes  # the size of an 8-byte ``seq``: one integer has no room for both
    pack: Callable[[int, int, bytes], bytes] | None


# Struct format of a size and its number (padding and one integer), by size in bytes.
_SIZED: Final = ("I", "3xH", "2xI", "3xI", "Q", "xQ", "2xQ", "3xQ")
_LONGEST: Final = len(_SIZED)  # bytes of a ``seq`` with an incarnation; ``prefix`` precedes it
_NO_FORM: Final = _Form(1, 0, 1, 0, 0, 0, b"", None)  # for numbers that are longer, or below 0


def _form_of(seq: int, time: int) -> _Form:
    """Return the byte layout for two numbers."""
    seq_size, time_size = (seq.bit_length() + 7) // 8, (time.bit_length() + 7) // 8
    if min(seq, time) < 0 or seq_size > _LONGEST or time_size >= _LONGEST:
        return _NO_FORM
    return _form(seq_size, time_size)


@lru_cache(maxsize=_LONGEST * (_LONGEST + 1))
def _form(seq_size: int, time_size: int) -> _Form:
    """Return the byte layout for two numbers of these sizes in bytes."""
    is_long = seq_size == _LONGEST
    seq_layout = "Q" if is_long else _SIZED[seq_size]
    layout = Layout(f">{seq_layout}{_SIZED[time_size]}{len(_plain(0))}s")
    seq_max, time_max = (1 << 8 * seq_size) - 1, (1 << 8 * time_size) - 1
    return _Form(
        (seq_max >> 8) + bool(seq_size),
        seq_max,
        (time_max >> 8) + bool(time_size),
        time_max,
        0 if is_long else seq_size << 8 * seq_size,
        time_size << 8 * time_size,
        seq_size.to_bytes(4, "big") if is_long else b"",
        layout.pack,
    )


def _text(value: str) -> bytes:
    data = value.encode()
    return len(data).to_bytes(4, "big") + data


@lru_cache(maxsize=256)  # most publications of a publisher have equal headers, of a few KiB
def _texts(*headers: tuple[str, str]) -> bytes:
    texts = (_text(text) for item in sorted(headers) for text in item)
    return _number(len(headers)) + b"".join(texts)


def _number(value: int) -> bytes:
    size = (value.bit_length() + 7) // 8
    return size.to_bytes(4, "big") + value.to_bytes(size, "big")


def _optional(value: bytes | None) -> bytes:
    """Encode an optional field; None and empty bytes have different encodings."""
    if value is None:
        return _NOTHING
    return _PRESENT + len(value).to_bytes(4, "big") + value


# -- sequence numbers --------------------------------------------------------------------------

COUNTER_BITS: Final = 22
COUNTERS: Final = 1 << COUNTER_BITS
RANDOM_BITS: Final = 14  # two starts within 16 s collide with probability 1/16,384
_CHANCE: Final = (1 << RANDOM_BITS) - 1
TIME_BITS: Final = 26  # 34 years in units of 16 s
START_US: Final = 1_704_067_200_000_000  # 2024-01-01, microseconds since the epoch
UNIT_US: Final = 16_000_000
TOLERANCE_US: Final = 60_000_000  # Guess: clocks of a cluster differ by less.

SequenceId = tuple[NodeId, int]  # publisher and incarnation


def incarnation_at(time_us: int, chance: int = (1 << RANDOM_BITS) - 1) -> int:
    """Return the incarnation of a process that starts at a time, with 14 random bits."""
    units = max(time_us - START_US, 0) // UNIT_US
    return min(units, (1 << TIME_BITS) - 1) << RANDOM_BITS | chance


def newest_of(numbers: Iterable[tuple[NodeId, int]]) -> dict[SequenceId, int]:
    """Return the largest number of each sequence; ignore numbers from 2^62 on."""
    newest: dict[SequenceId, int] = {}
    for publisher, seq in numbers:
        sequence = publisher, seq >> COUNTER_BITS
        if newest.get(sequence, -1) < seq < SEQ_BELIEVED_MAX:
            newest[sequence] = seq
    return newest


class OwnSequence:
    """Issuer of one node's numbers in a topic; it never issues a number twice."""

    __slots__ = ("_is_challenged", "_issued", "ahead", "incarnation", "node")

    def __init__(self, node: NodeId, incarnation: int) -> None:
        self.incarnation = incarnation
        self.ahead = 0  # incarnations of this name that are ahead of the clock
        self.node = node
        self._issued = -1  # the last number of this incarnation
        self._is_challenged = True  # compare stored numbers before the first is issued

    def on_seen(self, seq: int) -> None:
        """Compare stored numbers again if another process has issued a number under this name."""
        if seq > self._issued:
            self._is_challenged = True

    def next(self, newest: dict[SequenceId, int], time_us: int) -> int:
        """Issue the next number, given the newest of each sequence and the clock."""
        last = newest.get((self.node, self.incarnation), -1)
        if self._is_challenged or last != self._issued or self._is_full:
            self._renew(newest, time_us)
        self._issued = max(self._issued + 1, self.incarnation << COUNTER_BITS)
        newest[self.node, self.incarnation] = self._issued
        return self._issued

    @property
    def _is_full(self) -> bool:
        return self._issued + 1 >= (self.incarnation + 1) << COUNTER_BITS

    def _renew(self, newest: dict[SequenceId, int], time_us: int) -> None:
        """Choose an incarnation above all known ones of this name that are not ahead of the clock.

        The step contains random bits: another process of this name may know the same numbers.
        """
        limit = incarnation_at(time_us + TOLERANCE_US)
        own = {i: last for (node, i), last in newest.items() if node == self.node}
        self.ahead = sum(i > limit for i in own)
        self._is_challenged = False
        if self.incarnation == 0:
            self._issued = own.get(0, -1)
            return
        self.incarnation = min(self.incarnation, limit)  # it is below unless it is corrupt
        others = [i for i, last in own.items() if i <= limit and last > self._issued]
        highest = max(others, default=-1)
        if highest >= self.incarnation or self._is_full:
            chance = self.incarnation & _CHANCE
            renewed = max(highest, self.incarnation) + 1 + chance
            if renewed > limit:
                renewed = limit - _CHANCE + chance
            while renewed in own:
                renewed += 1
            self.incarnation = renewed
            self._issued = -1


# -- records -----------------------------------------------------------------------------------


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
    return replace(publication, id=key) if publication.id_in(topic) == key else None


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
