"""Publications and their identity (section 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, compress
from struct import Struct as Layout
from typing import Annotated, Final, NamedTuple, Self, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import force_setattr, replace

from skipring.core.peers import NodeId, TopicId

ID_BYTES: Final = 32
ID_BITS: Final = 8 * ID_BYTES  # m in section 4.2
# Limit: nodes ignore larger numbers, so a publisher continues after a smaller one.
SEQ_BELIEVED_MAX: Final = 1 << 62
OVERHEAD_BYTES: Final = 64  # Guess: size in a message besides payload, key and headers.

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
    """Hash input of two numbers of given sizes, in the format of ``_number``."""

    seq_min: int
    seq_max: int
    time_min: int
    time_max: int
    seq_mark: int  # the size, in the bits above the number
    time_mark: int
    prefix: bytes  # the size of an 8-byte ``seq``: one integer has no room for both
    pack: Callable[[int, int, bytes], bytes] | None


# By size in bytes: the layout of a size and its number, as zeroes and one integer.
_SIZED: Final = ("I", "3xH", "2xI", "3xI", "Q", "xQ", "2xQ", "3xQ")
_LONGEST: Final = len(_SIZED)  # bytes of a ``seq`` with an incarnation; ``prefix`` precedes it
_NO_FORM: Final = _Form(1, 0, 1, 0, 0, 0, b"", None)  # for numbers that are longer, or below 0


def _form_of(seq: int, time: int) -> _Form:
    """Return the form of two numbers."""
    seq_size, time_size = (seq.bit_length() + 7) // 8, (time.bit_length() + 7) // 8
    if min(seq, time) < 0 or seq_size > _LONGEST or time_size >= _LONGEST:
        return _NO_FORM
    return _form(seq_size, time_size)


@lru_cache(maxsize=_LONGEST * (_LONGEST + 1))
def _form(seq_size: int, time_size: int) -> _Form:
    """Return the form of two numbers with these sizes in bytes."""
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


@lru_cache(maxsize=256)  # most publications of a publisher have equal headers; some kilobytes each
def _texts(*headers: tuple[str, str]) -> bytes:
    texts = (_text(text) for item in sorted(headers) for text in item)
    return _number(len(headers)) + b"".join(texts)


def _number(value: int) -> bytes:
    size = (value.bit_length() + 7) // 8
    return size.to_bytes(4, "big") + value.to_bytes(size, "big")


def _optional(value: bytes | None) -> bytes:
    """Encode an optional field; None differs from no bytes."""
    if value is None:
        return _NOTHING
    return _PRESENT + len(value).to_bytes(4, "big") + value
