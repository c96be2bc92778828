"""Hashed Patricia trie with one object per node: the oracle of the index of publications."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final, TypeAlias

from skipring.core.publications import ID_BYTES

_ID_BITS: Final = 8 * ID_BYTES


class _Leaf:
    __slots__ = ("digest", "key", "offset")

    def __init__(self, key: int, offset: int) -> None:
        self.key = key
        self.offset = offset
        self.digest: bytes | None = None


class _Inner:
    __slots__ = ("bit", "digest", "one", "zero")

    def __init__(self, bit: int, zero: _Node, one: _Node) -> None:
        self.bit = bit  # where its children diverge, counted from the end of an id
        self.zero = zero
        self.one = one
        self.digest: bytes | None = None


_Node: TypeAlias = _Leaf | _Inner


class ReferenceTrie:
    """Hashed Patricia trie with one object per node (section 4.2).

    It shares only the ids with the index of the core.
    """

    __slots__ = ("_count", "_root")

    def __init__(self) -> None:
        self._root: _Node | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add_many(self, entries: Iterable[tuple[bytes, int]]) -> int:
        """Insert ids with their offsets; return how many are new."""
        return sum(self.add(key, offset) for key, offset in entries)

    def add(self, key: bytes, offset: int) -> bool:
        """Insert one id; return False if it is present."""
        new = _Leaf(int.from_bytes(key, "big"), offset)
        if self._root is None:
            self._root = new
            self._count = 1
            return True
        bit = (new.key ^ _nearest(self._root, new.key).key).bit_length() - 1
        if bit < 0:
            return False
        self._insert(new, bit)
        self._count += 1
        return True

    def _insert(self, new: _Leaf, bit: int) -> None:
        """Insert a leaf at the bit where its id diverges; clear the digests above it."""
        key, above, node = new.key, None, self._root
        while isinstance(node, _Inner) and node.bit > bit:
            node.digest = None
            above, node = node, node.one if key >> node.bit & 1 else node.zero
        assert node is not None
        inner = _Inner(bit, node, new) if key >> bit & 1 else _Inner(bit, new, node)
        if above is None:
            self._root = inner
        elif key >> above.bit & 1:
            above.one = inner
        else:
            above.zero = inner

    def root(self) -> bytes:
        """Return the digest of all ids; a constant if there are none (T2)."""
        if self._root is None:
            return blake2b(digest_size=16, person=b"skipring empty").digest()
        return _digest(self._root)

    def node(self, prefix: str = "") -> tuple[str, bytes] | None:
        """Return prefix, in bits, and digest of the node with all ids under a prefix."""
        node = self._root
        while isinstance(node, _Inner) and _ID_BITS - 1 - node.bit < len(prefix):
            node = node.one if prefix[_ID_BITS - 1 - node.bit] == "1" else node.zero
        if node is None:
            return None
        label = _label(node)
        return (label, _digest(node)) if label.startswith(prefix) else None

    def nodes(self) -> Iterator[tuple[str, bytes]]:
        """Yield all nodes in any order."""
        waiting = [self._root] if self._root is not None else []
        while waiting:
            node = waiting.pop()
            yield _label(node), _digest(node)
            if isinstance(node, _Inner):
                waiting += (node.zero, node.one)


def _nearest(node: _Node, key: int) -> _Leaf:
    """Return a leaf with the longest common prefix."""
    while isinstance(node, _Inner):
        node = node.one if key >> node.bit & 1 else node.zero
    return node


def _label(node: _Node) -> str:
    length = _ID_BITS - 1 - node.bit if isinstance(node, _Inner) else _ID_BITS
    return format(_nearest(node, 0).key, f"0{_ID_BITS}b")[:length]


def _digest(node: _Node) -> bytes:
    """Return the digest of a node, computing it if unknown; an inner one has no label (T1)."""
    if node.digest is None:
        if isinstance(node, _Leaf):
            data, person = node.key.to_bytes(_ID_BITS // 8, "big"), b"skipring leaf"
        else:
            data, person = _digest(node.zero) + _digest(node.one), b"skipring inner"
        node.digest = blake2b(data, digest_size=16, person=person).digest()
    return node.digest
