"""Prefixes of publication ids: the nodes of a Patricia trie (section 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Self

from msgspec import Struct

from skipring.core.publications import ID_BITS

PACKED_BYTES_MAX: Final = ID_BITS // 8 + 1


class Prefix(Struct, frozen=True, order=True, gc=False):
    """First bits of an id: their number and their value."""

    length: int
    value: int

    def __post_init__(self) -> None:
        """Raise ValueError if no id can begin with this prefix (T9)."""
        if not 0 <= self.length <= ID_BITS or self.value >> self.length:
            message = f"not a prefix of an id: {self.length} bits"
            raise ValueError(message)

    @classmethod
    def of_id(cls, key: bytes, length: int = ID_BITS) -> Self:
        """Return the first bits of an id."""
        return cls(length, int.from_bytes(key, "big") >> (ID_BITS - length))

    @classmethod
    def parse(cls, bits: str) -> Self:
        """Read a prefix written as 0 and 1; raise ValueError for other characters."""
        if bits.strip("01"):
            message = f"not a prefix: {bits[:40]!r}"
            raise ValueError(message)
        return cls(len(bits), int(bits or "0", 2))

    @property
    def bits(self) -> str:
        """Return the prefix written as 0 and 1."""
        return format(self.value, f"0{self.length}b") if self.length else ""

    def covers(self, other: Prefix) -> bool:
        """Return True if the other prefix begins with this one."""
        extra = other.length - self.length
        return extra >= 0 and other.value >> extra == self.value

    def child(self, bit: int) -> Prefix:
        """Return this prefix with one more bit."""
        return Prefix(self.length + 1, self.value << 1 | bit)

    @property
    def sibling(self) -> Prefix:
        """Return the prefix that differs in the last bit only."""
        return Prefix(self.length, self.value ^ 1)

    def is_before(self, other: Prefix) -> bool:
        """Return True if every id under this prefix precedes every id under the other."""
        bits = min(self.length, other.length)
        return self.value >> (self.length - bits) < other.value >> (other.length - bits)

    def beyond(self, other: Prefix) -> Prefix:
        """Return the bits that the other prefix adds to this one."""
        extra = other.length - self.length
        return Prefix(extra, other.value & ((1 << extra) - 1))

    def extended(self, more: Prefix) -> Prefix:
        """Return this prefix followed by more bits."""
        return Prefix(self.length + more.length, self.value << more.length | more.value)

    def __str__(self) -> str:
        """Return the prefix for display."""
        return self.bits or "(all)"

    # Wire format: the bits, a 1 that marks their end, and zeros up to a whole byte.

    def pack(self) -> bytes:
        """Return the prefix in wire format."""
        size = self.length // 8 + 1
        return (((self.value << 1) | 1) << (8 * size - self.length - 1)).to_bytes(size, "big")

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Read a prefix; raise ValueError if the bytes are malformed or too long."""
        if not data or not data[-1] or len(data) > PACKED_BYTES_MAX:
            message = f"not a prefix of an id: {len(data)} bytes"
            raise ValueError(message)
        number = int.from_bytes(data, "big")
        padding = (number & -number).bit_length() - 1
        return cls(8 * len(data) - padding - 1, number >> (padding + 1))


ALL: Final = Prefix(0, 0)


def are_disjoint(prefixes: Sequence[Prefix]) -> bool:
    """Return True if no id begins with two of the prefixes."""
    return len(apart(prefixes)) == len(prefixes)


def apart(prefixes: Iterable[Prefix]) -> list[Prefix]:
    """Return the prefixes in order, without any that overlaps an earlier one."""
    found: list[Prefix] = []
    for prefix in sorted(prefixes, key=_first_id):
        if not found or found[-1].is_before(prefix):
            found.append(prefix)
    return found


def complement(
    cover: Prefix,
    labels: Iterable[Prefix],
    narrow: Callable[[Prefix], Prefix | None] = lambda prefix: prefix,
) -> Iterator[Prefix]:
    """Yield the largest prefixes under the cover that overlap none of the labels, in order.

    ``narrow`` returns the part of a prefix that contains ids, or None. It bounds the descent, even
    if the labels are long.
    """
    waiting = [(cover, _overlapping(cover, labels))]
    while waiting:
        whole, inside = waiting.pop()
        prefix = narrow(whole)
        if prefix is None:
            continue
        inside = _overlapping(prefix, inside)
        if not inside:
            yield prefix
        elif not any(label.covers(prefix) for label in inside):
            waiting += [(prefix.child(bit), inside) for bit in (1, 0)]


def _first_id(prefix: Prefix) -> int:
    """Return the first id under a prefix, as a number."""
    return prefix.value << (ID_BITS - prefix.length)


def _overlapping(prefix: Prefix, labels: Iterable[Prefix]) -> list[Prefix]:
    return [label for label in labels if prefix.covers(label) or label.covers(prefix)]
