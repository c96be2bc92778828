"""Publications and their identity (section 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, compress
from struct import Struct as Layout
from typing import Annotated, Final, NamedTuple, Self

from msgspec import Meta, Struct
from msgspec.structs import force_setattr, replace

from skipring.core.peers import NodeId, TopicId

ID_BYTES: Final = 32
ID_BITS: Final = 8 * ID_BYTES  # m in section 4.2
# Limit of ours: a publisher goes on counting after what is known of it, if it is below.
SEQ_BELIEVED_MAX: Final = 1 << 62
OVERHEAD_BYTES: Final = 64  # Our guess: what a publication takes in a message besides its bytes.

# The paper's second hash function: ids, digests of leaves and of inner nodes never meet (T1).
_ID: Final = blake2b(digest_size=ID_BYTES, person=b"skipring id")


Count = Annotated[int, Meta(ge=0)]


class Publication(
    Struct, frozen=True, kw_only=True, array_like=True, gc=False, forbid_unknown_fields=True
):
    """What somebody has published; without a payload only its id is known.

    The ``id`` is a cache: it follows from the topic and all other fields (T10).
    """

    publisher: NodeId
    seq: Count  # keeps two equal payloads of one publisher apart
    payload: bytes | None = None
    time: Count = 0  # microseconds since the epoch at the publisher; 0 if not known
    key: bytes | None = None  # the user's own
    headers: dict[str, str] = {}
    id: bytes = b""

    def id_in(self, topic: TopicId) -> bytes:
        """The id that the fields give in a topic: 256 bits over all of them (section 4.2)."""
        state = _begun(topic, self.publisher).copy()
        seq, time, payload = self.seq, self.time, self.payload
        seq_size, time_size = (seq.bit_length() + 7) // 8, (time.bit_length() + 7) // 8
        # As ``_number`` twice: this is done for every publication, so each step counts.
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
        """True if the id is right, as far as one can tell: an opaque one only has its id."""
        if self.payload is None:
            return len(self.id) == ID_BYTES
        return self.id == self.id_in(topic)

    def with_id(self, topic: TopicId) -> Self:
        """The publication under the id that its fields give; an opaque one keeps its own."""
        if self.payload is None and len(self.id) == ID_BYTES:
            return self
        return replace(self, id=self.id_in(topic))

    @property
    def size_bytes(self) -> int:
        """About how much room it takes in a message."""
        size = OVERHEAD_BYTES + len(self.payload or b"") + len(self.key or b"")
        if self.headers:
            size += sum(len(text.encode()) for item in self.headers.items() for text in item)
        return size


class Encoded(Struct, frozen=True, gc=False):
    """Publications as they are stored, without their ids: one behind the other."""

    data: bytes | memoryview
    sizes: list[int]  # of each

    @classmethod
    def of(cls, rows: Sequence[bytes]) -> Self:
        """Put some together."""
        return cls(b"".join(rows), list(map(len, rows)))

    def chosen(self, marks: Iterable[object]) -> Self:
        """Some of them: those with a mark that is true."""
        spans = compress(zip(accumulate(self.sizes), self.sizes, strict=True), marks)
        return self.of([bytes(self.data[end - size : end]) for end, size in spans])


def with_payload(publications: tuple[Publication, ...], *, opaque: bool) -> tuple[Publication, ...]:
    """Those of which more than the id is said; all, if opaque ones are taken too."""
    if opaque:
        return publications
    return tuple([each for each in publications if each.payload is not None])


def with_id(publications: Iterable[Publication], topic: TopicId) -> tuple[Publication, ...]:
    """Publications under the ids that their fields give (``Publication.settled``)."""
    return tuple([publication.with_id(topic) for publication in publications])


def ids_of(publications: Iterable[Publication], topic: TopicId) -> tuple[bytes, ...]:
    """The id that the fields of each give in a topic (``Publication.id_in``); none, if they cannot.

    For many at once: mostly one has publisher, length and the sizes of its numbers in common with
    the one before.
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
    """Give publications their ids; they stay what they are, as an id is a cache."""
    for publication, key in zip(publications, ids, strict=True):
        force_setattr(publication, "id", key)


_NOTHING: Final = b"\0\0\0\0"
_PRESENT: Final = b"\0\0\0\1\1"

# Each field is hashed behind its length: fields that are put together differently never look alike.


@lru_cache(maxsize=1024)  # most publications of a topic come from few publishers
def _begun(topic: TopicId, publisher: NodeId, prefix: bytes = b"") -> blake2b:
    """Return the hash of what publications of one publisher in a topic share; to be copied."""
    state = _ID.copy()
    state.update(_text(topic) + _text(publisher) + prefix)
    return state


@lru_cache(maxsize=1024)  # as most payloads of a topic, these are of few lengths
def _plain(payload_bytes: int) -> bytes:
    """What stands between the numbers and the payload where there is neither key nor headers."""
    return _NOTHING + _NOTHING + _PRESENT + payload_bytes.to_bytes(4, "big")


class _Form(NamedTuple):
    """How numbers of two sizes are hashed, with what follows them: as ``_number`` writes them."""

    seq_min: int
    seq_max: int
    time_min: int
    time_max: int
    seq_mark: int  # the size, above the number
    time_mark: int
    prefix: bytes  # the size of a ``seq`` of 8 bytes: one integer has no room for both
    pack: Callable[[int, int, bytes], bytes] | None


# A number of so many bytes, behind its size, as zeroes and one integer.
_SIZED: Final = ("I", "3xH", "2xI", "3xI", "Q", "xQ", "2xQ", "3xQ")
_LONGEST: Final = len(_SIZED)  # bytes of a ``seq`` that has an incarnation; behind ``prefix``
_NO_FORM: Final = _Form(1, 0, 1, 0, 0, 0, b"", None)  # of numbers that are longer, or below 0


def _form_of(seq: int, time: int) -> _Form:
    """The form of two numbers."""
    seq_size, time_size = (seq.bit_length() + 7) // 8, (time.bit_length() + 7) // 8
    if min(seq, time) < 0 or seq_size > _LONGEST or time_size >= _LONGEST:
        return _NO_FORM
    return _form(seq_size, time_size)


@lru_cache(maxsize=_LONGEST * (_LONGEST + 1))
def _form(seq_size: int, time_size: int) -> _Form:
    """The form of two numbers, of so many bytes each."""
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


@lru_cache(maxsize=256)  # most publications of a publisher have the same; some kilobytes each
def _texts(*headers: tuple[str, str]) -> bytes:
    texts = (_text(text) for item in sorted(headers) for text in item)
    return _number(len(headers)) + b"".join(texts)


def _number(value: int) -> bytes:
    size = (value.bit_length() + 7) // 8
    return size.to_bytes(4, "big") + value.to_bytes(size, "big")


def _optional(value: bytes | None) -> bytes:
    """Nothing is not the same as no bytes."""
    if value is None:
        return _NOTHING
    return _PRESENT + len(value).to_bytes(4, "big") + value
