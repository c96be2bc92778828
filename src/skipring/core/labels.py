"""Labels and their positions on the ring (section 2.1).

A label is a value of the paper's function l: "0", or a bit string that ends in 1. It is stored
as r(label) * 2^64, an integer on a circle of 2^64 positions. The order of labels is the order of
integers, and the wrap from 1 to 0 needs no special case.
"""

from __future__ import annotations

from typing import Annotated, Final, Self, TypeAlias

from msgspec import Meta, Struct

LABEL_BITS: Final = 64  # Limit: 2^63 subscribers of one topic; the paper has none.
CIRCLE: Final = 1 << LABEL_BITS
HALF_CIRCLE: Final = CIRCLE >> 1
# MessagePack has no larger integer, and msgspec no bound beyond 2^63-1.
Word: TypeAlias = Annotated[int, Meta(ge=0, description="0 to 2^64-1")]


def position_of(index: int) -> int:
    """Return the position of l(index): the leading bit of the index moved to its end."""
    if index == 0:
        return 0
    width = index.bit_length()
    return (2 * (index - (1 << (width - 1))) + 1) << (LABEL_BITS - width)


class Label(Struct, frozen=True, order=True, array_like=True, gc=False):
    """Value of l (section 2.1), stored as r(label) * 2^64."""

    position: int

    def __post_init__(self) -> None:
        """Raise ValueError for a position outside the circle; each position is one label."""
        if not 0 <= self.position < CIRCLE:
            message = f"not a label: position {self.position}"
            raise ValueError(message)

    @classmethod
    def nth(cls, index: int) -> Self:
        """Return l(index)."""
        return cls(position_of(index))

    @classmethod
    def at(cls, position: int) -> Self:
        """Return the label at a position, modulo the size of the circle."""
        return cls(position % CIRCLE)

    @classmethod
    def parse(cls, bits: str) -> Self:
        """Return the label written as ``bits``; raise ValueError if l never produces it."""
        canonical = bits == "0" or bits.endswith("1")
        if not canonical or len(bits) > LABEL_BITS or bits.strip("01"):
            message = f"not a label: {bits[:LABEL_BITS]!r}"
            raise ValueError(message)
        return cls(int(bits, 2) << (LABEL_BITS - len(bits)))

    @property
    def length(self) -> int:
        """Return the number of bits of the label, |label|."""
        lowest = self.position & -self.position
        return LABEL_BITS + 1 - lowest.bit_length() if lowest else 1

    @property
    def index(self) -> int:
        """Return the x with l(x) = label."""
        if self.position == 0:
            return 0
        width = self.length
        return (1 << (width - 1)) + (self.position >> (LABEL_BITS - width + 1))

    @property
    def bits(self) -> str:
        """Return the label as a bit string."""
        width = self.length
        return format(self.position >> (LABEL_BITS - width), f"0{width}b")

    def __str__(self) -> str:
        """Return the label in the notation of the paper."""
        return self.bits
