"""Definitions of the paper that its pseudocode uses: l and r (section 2.1), the trie (section 4.2).

A label is a bit string, ⊥ is ``None``.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

LEFT, RIGHT = "left", "right"


def l(x: int) -> str:  # noqa: E743 - the paper's name
    """Return l(x): the leading bit of x moves to the units place (section 2.1)."""
    bits = f"{x:b}"
    return bits[1:] + bits[0]


def l_inverse(label: str) -> int:
    """Return l⁻¹(label) (section 2.1)."""
    return int(label[-1] + label[:-1], 2)


def r(label: str) -> Fraction:
    """Return r(label), the real value in [0, 1) (section 2.1)."""
    return Fraction(int(label, 2), 2 ** len(label))


def label_at(value: Fraction) -> str:
    """Return the shortest label with this value; the value 1 is the label 0 (section 3.2.2)."""
    value %= 1
    length = max(1, value.denominator.bit_length() - 1)
    return f"{int(value * 2**length):0{length}b}" if value else "0"


class Tied(str):
    """Label with its node, for readings that order equal labels by node (decision 0061)."""

    __slots__ = ("is_ordered", "node")
    node: str
    is_ordered: bool  # among all labels; otherwise only beside a label that is


def less(a: str | None, b: str | None) -> bool:
    """Return r(a) < r(b). Ambiguous: comparisons with ⊥; here they are false."""
    if a is None or b is None:
        return False
    if isinstance(a, Tied) and isinstance(b, Tied) and a == b and a.is_ordered | b.is_ordered:
        return a.node < b.node
    return r(a) < r(b)


def before(a: str | None, b: str | None, side: str) -> bool:
    """Return a < b on the left, a > b on the right: the paper's "analogously"."""
    return less(a, b) if side == LEFT else less(b, a)


def not_after(a: str | None, b: str | None, side: str) -> bool:
    """Return a ≤ b on the left, a ≥ b on the right."""
    return a is not None and b is not None and not before(b, a, side)


def distance(a: str, b: str) -> Fraction:
    """Return |a - b|. Ambiguous: on the line or on the circle; the sections write |r(a) - r(b)|."""
    return abs(r(a) - r(b))


class TrieNode(NamedTuple):
    """Node of a Patricia trie: its label, its hash, and two children or none."""

    label: str
    hash: Any
    children: tuple[TrieNode, ...]


class Trie:
    """Patricia trie of the publications of a subscriber, by their keys (section 4.2)."""

    def __init__(self, h: Callable[[str], Any], h_inner: Callable[[Any, Any], Any]) -> None:
        self.publications: dict[str, Any] = {}
        # Ambiguous: h(h(c1.label) ∘ h(c2.label)), or the hash of the children's hashes, which the
        # same sentence and the example of section 4.2 state; here the latter.
        self._h, self._h_inner = h, h_inner

    def subtrie(self, prefix: str) -> TrieNode | None:
        """Return the node of least depth below ``prefix``, ⊥ if no key has that prefix."""
        keys = sorted(key for key in self.publications if key.startswith(prefix))
        if len(keys) <= 1:
            return TrieNode(keys[0], self._h(keys[0]), ()) if keys else None
        label = keys[0][: next(i for i in range(len(keys[0])) if keys[0][i] != keys[-1][i])]
        children = [self.subtrie(label + bit) for bit in "01"]
        one, two = [child for child in children if child is not None]
        return TrieNode(label, self._h_inner(one.hash, two.hash), (one, two))
