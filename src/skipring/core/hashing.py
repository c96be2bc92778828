"""The digests of the hashed Patricia trie (section 4.2): of a leaf, an inner node, sorted ids."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

DIGEST_BYTES: Final = 16

# T1: leaves and inner nodes are hashed apart, so that no id can pass for two digests.
_LEAF: Final = blake2b(digest_size=DIGEST_BYTES, person=b"skipring leaf")
_INNER: Final = blake2b(digest_size=DIGEST_BYTES, person=b"skipring inner")

EMPTY: Final = b""  # the digest of a prefix without ids
# T2: what an empty trie says of itself, so that it asks like all others.
EMPTY_ROOT: Final = blake2b(digest_size=DIGEST_BYTES, person=b"skipring empty").digest()


def leaf_digest(key: bytes) -> bytes:
    """The digest of a single id."""
    state = _LEAF.copy()
    state.update(key)
    return state.digest()


def inner_digest(zero: bytes, one: bytes) -> bytes:
    """The digest of an inner node: over its children's digests, not their labels (T1)."""
    state = _INNER.copy()
    state.update(zero + one)
    return state.digest()


def digest_of(keys: list[bytes]) -> bytes:
    """The digest of the Patricia trie over sorted ids.

    One pass: neighbours part at some bit, and a subtrie is complete once a pair parts earlier.
    """
    if not keys:
        return EMPTY
    digest = leaf_digest(keys[0])
    before = int.from_bytes(keys[0], "big")
    partings: list[int] = []  # of the open subtries, each nearer to the end than the last
    digests: list[bytes] = []
    for key in keys[1:]:
        number = int.from_bytes(key, "big")
        parting = (before ^ number).bit_length()
        while partings and partings[-1] < parting:
            partings.pop()
            digest = inner_digest(digests.pop(), digest)
        partings.append(parting)
        digests.append(digest)
        digest, before = leaf_digest(key), number
    while digests:
        digest = inner_digest(digests.pop(), digest)
    return digest
