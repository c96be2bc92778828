"""Summaries of tries: the tuples of CheckTrie (Algorithm 5), and their digests.

A range summary claims that all ids under a prefix, its cover, are below the listed trie nodes and
leaves. A node has a label and a digest; a leaf has a part of its id and no digest (T6). On the
wire, the label of a node contains only the bits beyond the cover.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import pairwise
from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from skipring.core.prefix import Prefix
from skipring.core.publications import ID_BITS, ID_BYTES

DIGEST_BYTES: Final = 16

# T1: leaves and inner nodes have separate hash domains, so no id can pass for two digests.
_LEAF: Final = blake2b(digest_size=DIGEST_BYTES, person=b"skipring leaf")
_INNER: Final = blake2b(digest_size=DIGEST_BYTES, person=b"skipring inner")

EMPTY: Final = b""  # the digest of a prefix without ids
# T2: the root of an empty trie, so that an empty trie starts sessions like any other.
EMPTY_ROOT: Final = blake2b(digest_size=DIGEST_BYTES, person=b"skipring empty").digest()


def leaf_digest(key: bytes) -> bytes:
    """Return the digest of a single id."""
    state = _LEAF.copy()
    state.update(key)
    return state.digest()


def inner_digest(zero: bytes, one: bytes) -> bytes:
    """Return the digest of an inner node: over its children's digests, not their labels (T1)."""
    state = _INNER.copy()
    state.update(zero + one)
    return state.digest()


def digest_of(keys: list[bytes]) -> bytes:
    """Return the digest of the Patricia trie over sorted ids, in one pass.

    Two consecutive ids differ from some bit on. A subtrie is complete once the next pair differs
    from an earlier bit on.
    """
    if not keys:
        return EMPTY
    numbers = [int.from_bytes(key, "big") for key in keys]
    partings: list[int] = []  # of the open subtries, each at a later bit than the last
    digests: list[bytes] = []
    # Sentinel: a difference before the first bit of an id completes all subtries.
    following = [*((one ^ other).bit_length() for one, other in pairwise(numbers)), ID_BITS + 1]
    for key, parting in zip(keys, following, strict=True):
        state = _LEAF.copy()  # leaf_digest and inner_digest, inlined: this is the hot path
        state.update(key)
        digest = state.digest()
        while partings and partings[-1] < parting:
            partings.pop()
            state = _INNER.copy()
            state.update(digests.pop() + digest)
            digest = state.digest()
        partings.append(parting)
        digests.append(digest)
    return digests[-1]


OVERHEAD_BYTES: Final = 9  # of a claim, besides its four fields
SHORT_BYTES: Final = 8  # of an id, or of a digest below the root: see ``Truncation``
# Measured: a reply takes 3 microseconds for an id and 43 for a digest that differs. With this
# factor the longest reply at 10^5 publications takes 45 ms instead of 147 ms.
DIGEST_COST: Final = 4
ShortId: TypeAlias = Annotated[bytes, Meta(min_length=SHORT_BYTES, max_length=SHORT_BYTES)]
TrieDigest: TypeAlias = Annotated[
    bytes,
    Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES, description=f"{DIGEST_BYTES} bytes"),
]
_LONG_LABEL: Final = 0  # a packed label of one byte is never 0: it has an end bit


class Summary(Struct, frozen=True, gc=False):
    """Prefix of a trie node and its digest, possibly truncated: the paper's (l, h)."""

    prefix: Prefix
    digest: bytes


class Truncation(Struct, frozen=True, gc=False):
    """Choice of the 8 bytes of ids and digests that a session compares.

    The choice depends on the session: two ids that are equal in these bytes in one session differ
    in another, so half a digest and a quarter of an id are enough.
    """

    session: int

    def short_id(self, key: bytes) -> bytes:
        """Return the 8 bytes of an id that the session compares: one of four parts."""
        start = SHORT_BYTES * (self.session % 4)
        return key[start : start + SHORT_BYTES]

    def short_digest(self, digest: bytes) -> bytes:
        """Return the 8 bytes of a digest that the session compares: one of two halves."""
        start = SHORT_BYTES * (self.session & 1)
        return digest[start : start + SHORT_BYTES]

    def is_equal(self, own: bytes, theirs: bytes) -> bool:
        """Return True if this node's digest equals a received one, which may be truncated."""
        return (own if len(theirs) == DIGEST_BYTES else self.short_digest(own)) == theirs


class RangeSummary(Struct, frozen=True, array_like=True, gc=False):
    """Claim that all the sender holds under ``cover`` is under these nodes and leaves (T4)."""

    cover: bytes
    labels: bytes = b""
    digests: bytes = b""
    leaves: bytes = b""

    def __post_init__(self) -> None:
        """Raise ValueError if the claim is malformed or has a label longer than an id (T9).

        Labels are in order and disjoint: a repeated label would be answered twice.
        """
        labels = list(_unpack_labels(Prefix.unpack(self.cover), self.labels))
        count = len(labels)
        if not all(earlier.is_before(later) for earlier, later in pairwise(labels)):
            message = "labels out of order"
            raise ValueError(message)
        if count and len(self.digests) not in (count * SHORT_BYTES, count * DIGEST_BYTES):
            message = f"{count} labels with {len(self.digests)} bytes of digests"
            raise ValueError(message)
        if len(self.leaves) % SHORT_BYTES or (not count and self.digests):
            message = f"{len(self.leaves)} bytes of leaves, {len(self.digests)} of digests"
            raise ValueError(message)

    @classmethod
    def make(
        cls, cover: Prefix, summaries: Iterable[Summary] = (), leaves: Iterable[bytes] = ()
    ) -> RangeSummary:
        """Pack a claim."""
        nodes = list(summaries)
        return cls(
            cover.pack(),
            b"".join(_pack_label(cover.beyond(node.prefix)) for node in nodes),
            b"".join(node.digest for node in nodes),
            b"".join(leaves),
        )

    @property
    def prefix(self) -> Prefix:
        """Return the cover."""
        return Prefix.unpack(self.cover)

    @property
    def size_bytes(self) -> int:
        """Return the approximate size in a message."""
        parts = (self.cover, self.labels, self.digests, self.leaves)
        return OVERHEAD_BYTES + sum(len(part) for part in parts)

    @property
    def cost_bytes(self) -> int:
        """Return the size of the leaves that cost the same work: a digest costs more than an id."""
        return self.size_bytes + (DIGEST_COST - 1) * len(self.digests)

    def summaries(self) -> list[Summary]:
        """Return the nodes, in order."""
        labels = list(_unpack_labels(self.prefix, self.labels))
        size = len(self.digests) // len(labels) if labels else 0
        return [
            Summary(label, self.digests[place * size : (place + 1) * size])
            for place, label in enumerate(labels)
        ]

    def short_ids(self) -> list[bytes]:
        """Return the leaves, in order."""
        return [
            self.leaves[at : at + SHORT_BYTES] for at in range(0, len(self.leaves), SHORT_BYTES)
        ]


def _pack_label(more: Prefix) -> bytes:
    """Pack a label: one byte for up to 7 bits, else 0, the size and the bytes."""
    packed = more.pack()
    return packed if len(packed) == 1 else bytes((_LONG_LABEL, len(packed))) + packed


def _unpack_labels(cover: Prefix, data: bytes) -> Iterator[Prefix]:
    at = 0
    while at < len(data):
        size, at = (1, at) if data[at] != _LONG_LABEL else (_size_at(data, at + 1), at + 2)
        if at + size > len(data):
            message = "a truncated label"
            raise ValueError(message)
        yield cover.extended(Prefix.unpack(data[at : at + size]))
        at += size


def _size_at(data: bytes, at: int) -> int:
    size = data[at] if at < len(data) else 0
    if not 1 < size <= ID_BYTES + 1:  # a label of one byte has no size
        message = f"a label of {size} bytes"
        raise ValueError(message)
    return size
