"""Publications and their identity (section 4.2)."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Annotated, Final, Self

from msgspec import Meta, Struct
from msgspec.structs import replace

from skipring.core.peers import NodeId, TopicId

ID_BYTES: Final = 32
ID_BITS: Final = 8 * ID_BYTES  # m in section 4.2
# Limit of ours: a publisher goes on counting after what is known of it, if it is below.
SEQ_BELIEVED_MAX: Final = 1 << 62
OVERHEAD_BYTES: Final = 64  # Our guess: what a publication takes in a message besides its bytes.

# The paper's second hash function: ids, digests of leaves and of inner nodes never meet (T1).
_ID: Final = blake2b(digest_size=ID_BYTES, person=b"skipring id")


Count = Annotated[int, Meta(ge=0)]


class Publication(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
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
        fields = [
            topic.encode(),
            self.publisher.encode(),
            _number(self.seq),
            _number(self.time),
            *_optional(self.key),
            _number(len(self.headers)),
            *(text.encode() for item in sorted(self.headers.items()) for text in item),
            *_optional(self.payload),
        ]
        state = _ID.copy()
        state.update(b"".join(_length_prefixed(fields)))
        return state.digest()

    def is_genuine(self, topic: TopicId) -> bool:
        """True if the id is right, as far as one can tell: an opaque one only has its id."""
        if self.payload is None:
            return len(self.id) == ID_BYTES
        return self.id == self.id_in(topic)

    def settled(self, topic: TopicId) -> Self:
        """The publication under the id that its fields give; an opaque one keeps its own."""
        if self.payload is None and len(self.id) == ID_BYTES:
            return self
        return replace(self, id=self.id_in(topic))

    @property
    def size_bytes(self) -> int:
        """About how much room it takes in a message."""
        texts = sum(len(text.encode()) for item in self.headers.items() for text in item)
        return OVERHEAD_BYTES + len(self.payload or b"") + len(self.key or b"") + texts


def _number(value: int) -> bytes:
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


def _optional(value: bytes | None) -> tuple[bytes, ...]:
    """Nothing is not the same as no bytes."""
    return (b"",) if value is None else (b"\1", value)


def _length_prefixed(fields: Iterable[bytes]) -> Iterable[bytes]:
    for field in fields:
        yield len(field).to_bytes(4, "big")
        yield field
