"""Digests of the hashed Patricia trie: their inputs, and separate hashes for leaves and nodes."""

from hypothesis import given
from hypothesis import strategies as st

from skipring.core.publications import ID_BITS, ID_BYTES
from skipring.core.summaries import (
    DIGEST_BYTES,
    EMPTY,
    EMPTY_ROOT,
    digest_of,
    inner_digest,
    leaf_digest,
)

keys = st.binary(min_size=ID_BYTES, max_size=ID_BYTES)
# Includes ids with long common prefixes: plain hashes differ in their first bits.
near_keys = st.integers(0, 255).map(lambda last: bytes(ID_BYTES - 1) + bytes((last,)))


def digest_by_halves(chosen: list[bytes], bit: int = ID_BITS - 1) -> bytes:
    """Return the digest of the Patricia trie by its definition: an empty side is skipped."""
    if len(chosen) <= 1:
        return leaf_digest(chosen[0]) if chosen else EMPTY
    halves: tuple[list[bytes], list[bytes]] = ([], [])
    for key in chosen:
        halves[int.from_bytes(key, "big") >> bit & 1].append(key)
    zero, one = (digest_by_halves(half, bit - 1) for half in halves)
    return inner_digest(zero, one) if zero and one else zero or one


@given(st.sets(keys | near_keys, max_size=40))
def test_digest_of_sorted_ids_is_that_of_their_patricia_trie(
    chosen: set[bytes],
) -> None:
    assert digest_of(sorted(chosen)) == digest_by_halves(sorted(chosen))


def test_T1_leaves_and_inner_nodes_have_different_hashes() -> None:
    zero, one = leaf_digest(bytes(ID_BYTES)), leaf_digest(b"\1" * ID_BYTES)
    assert len(zero) == len(one) == DIGEST_BYTES
    assert inner_digest(zero, one) != leaf_digest(zero + one)
    assert inner_digest(zero, one) != inner_digest(one, zero)


def test_T2_empty_trie_has_a_digest_and_an_empty_prefix_has_none() -> None:
    assert digest_of([]) == EMPTY
    assert len(EMPTY_ROOT) == DIGEST_BYTES
    assert EMPTY_ROOT not in (leaf_digest(b""), inner_digest(b"", b""))
