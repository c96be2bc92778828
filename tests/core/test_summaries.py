"""Range summaries, the content of CheckTrie messages (Algorithm 5), and the digests of the trie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from skipring.core.messages import CheckAndPublish, CheckTrie, Message
from skipring.core.prefix import ALL, Prefix, apart
from skipring.core.publications import ID_BITS, ID_BYTES
from skipring.core.summaries import (
    DIGEST_BYTES,
    EMPTY,
    EMPTY_ROOT,
    SHORT_BYTES,
    RangeSummary,
    Summary,
    Truncation,
    digest_of,
    inner_digest,
    leaf_digest,
)
from tests.support.machines import unhurried

KEY = bytes(range(ID_BYTES))


DIGEST = bytes(range(100, 100 + DIGEST_BYTES))


COVER = Prefix.parse("01")


PACKED = COVER.pack()


HALF = ID_BITS // 2


decoder = msgspec.msgpack.Decoder(Message)


def exactly(size: int) -> SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


def prefixes(length_max: int) -> SearchStrategy[Prefix]:
    return st.text("01", max_size=9).map(Prefix.parse) | st.integers(0, length_max).flatmap(
        lambda length: st.integers(0, (1 << length) - 1).map(lambda value: Prefix(length, value))
    )


@st.composite
def contents(draw: st.DrawFn) -> tuple[Prefix, list[Summary], list[bytes]]:
    """Draw the content of a range summary: a prefix, nodes below it and leaves."""
    cover = draw(prefixes(HALF))
    digest = exactly(draw(st.sampled_from([SHORT_BYTES, DIGEST_BYTES])))
    labels = apart(map(cover.extended, draw(st.lists(prefixes(HALF), max_size=20))))
    summaries = [Summary(label, draw(digest)) for label in labels]
    return cover, summaries, draw(st.lists(exactly(SHORT_BYTES), max_size=5))


# -- packing -----------------------------------------------------------------------------------


@unhurried
@given(contents())
def test_range_summary_contains_its_input(
    drawn: tuple[Prefix, list[Summary], list[bytes]],
) -> None:
    cover, summaries, leaves = drawn
    claim = RangeSummary.make(cover, summaries, leaves)
    assert (claim.prefix, claim.summaries(), claim.short_ids()) == drawn


@unhurried
@given(st.lists(contents(), max_size=4), st.lists(contents(), max_size=2))
def test_range_summaries_survive_an_encoding_round_trip(
    drawn: list[tuple[Prefix, list[Summary], list[bytes]]],
    asked: list[tuple[Prefix, list[Summary], list[bytes]]],
) -> None:
    claims = tuple(RangeSummary.make(*parts) for parts in drawn)
    wanted = tuple(RangeSummary.make(*parts) for parts in asked)
    for message in (CheckTrie("a", claims, 3), CheckAndPublish("a", claims, 3, wanted)):
        assert decoder.decode(msgspec.msgpack.encode(message)) == message


def test_label_is_sent_relative_to_the_prefix_of_the_range() -> None:
    deep = Prefix(200, 5)
    near = RangeSummary.make(deep, [Summary(deep.extended(Prefix.parse("1101")), DIGEST)])
    assert len(near.labels) == 1
    far = RangeSummary.make(ALL, [Summary(deep, DIGEST)])
    assert len(far.labels) == 2 + 200 // 8 + 1


@pytest.mark.parametrize(("bits", "size"), [(0, 1), (7, 1), (8, 4), (15, 4), (16, 5), (254, 34)])
def test_label_of_up_to_seven_bits_is_one_byte(bits: int, size: int) -> None:
    claim = RangeSummary.make(COVER, [Summary(COVER.extended(Prefix(bits, 0)), DIGEST)])
    assert len(claim.labels) == size
    assert [node.prefix.length for node in claim.summaries()] == [2 + bits]


def test_T6_leaves_carry_no_digest() -> None:
    claim = RangeSummary.make(COVER, leaves=[b"12345678", b"87654321"])
    assert (claim.labels, claim.digests) == (b"", b"")
    assert claim.summaries() == []
    assert claim.short_ids() == [b"12345678", b"87654321"]


def test_empty_range_summary_takes_few_bytes() -> None:
    claim = RangeSummary.make(COVER)
    assert (claim.summaries(), claim.short_ids()) == ([], [])
    assert len(msgspec.msgpack.encode(claim)) <= 12


# -- invalid summaries ---------------------------------------------------------------------------


REFUSED: dict[str, tuple[Any, ...]] = {
    "no cover": (b"",),
    "a cover that does not end": (b"\0",),
    "a cover of 257 bits": (bytes(ID_BYTES) + b"\x40",),
    "a cover that is too long": (b"\xff" * (ID_BYTES + 2),),
    "a label of 257 bits": (PACKED, bytes((0, 32)) + b"\xff" * 32, DIGEST),
    "a label under an id": (Prefix(ID_BITS, 0).pack(), b"\xc0", DIGEST),
    "a label without a size": (PACKED, b"\0", DIGEST),
    "a label of no bytes": (PACKED, b"\0\0", DIGEST),
    "a label of 34 bytes": (PACKED, bytes((0, 34)) + b"\xff" * 34, DIGEST),
    "a label that ends too early": (PACKED, bytes((0, 4)) + b"\xff\xff", DIGEST),
    "a second label that ends too early": (PACKED, b"\xc0\0\x02\xff", DIGEST * 2),
    "a label that does not end": (PACKED, bytes((0, 2)) + b"\xff\0", DIGEST),
    "a label without a digest": (PACKED, b"\xc0", b""),
    "a digest without a label": (PACKED, b"", DIGEST),
    "a digest of 7 bytes": (PACKED, b"\xc0", DIGEST[:7]),
    "a digest of 9 bytes": (PACKED, b"\xc0", DIGEST[:9]),
    "a digest of 32 bytes": (PACKED, b"\xc0", DIGEST * 2),
    "two labels, one and a half digests": (PACKED, b"\x40\xc0", DIGEST + DIGEST[:8]),
    "half a leaf": (PACKED, b"", b"", b"1234"),
    "a leaf and a half": (PACKED, b"", b"", b"123456781234"),
    "a digest among leaves": (PACKED, b"", DIGEST[:8], b"12345678"),
}


@pytest.mark.parametrize("fields", REFUSED.values(), ids=REFUSED)
def test_T9_invalid_range_summary_is_refused(fields: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"."):
        RangeSummary(*fields)


def in_check(fields: list[bytes]) -> list[object]:
    return [10, "a", [fields], 0, False]


def in_check_and_publish(fields: list[bytes]) -> list[object]:
    return [11, "a", [], 0, [fields]]


@pytest.mark.parametrize("wire", [in_check, in_check_and_publish])
@pytest.mark.parametrize("fields", REFUSED.values(), ids=REFUSED)
def test_T9_message_with_an_invalid_range_summary_is_refused(
    fields: tuple[Any, ...], wire: Callable[[list[bytes]], list[object]]
) -> None:
    forged = msgspec.msgpack.encode(wire(list(fields)))
    with pytest.raises(msgspec.ValidationError):
        decoder.decode(forged)


@unhurried
@given(
    exactly(1) | st.binary(max_size=ID_BYTES + 3),
    st.binary(max_size=50),
    st.integers(0, 5).flatmap(lambda count: exactly(count * SHORT_BYTES)) | st.binary(max_size=40),
    st.integers(0, 3).flatmap(lambda count: exactly(count * SHORT_BYTES)) | st.binary(max_size=40),
)
def test_T9_forged_bytes_are_a_valid_range_summary_or_are_refused(
    cover: bytes, labels: bytes, digests: bytes, leaves: bytes
) -> None:
    forged = msgspec.msgpack.encode(in_check([cover, labels, digests, leaves]))
    try:
        message = decoder.decode(forged)
    except msgspec.ValidationError:
        return
    assert isinstance(message, CheckTrie)
    (claim,) = message.claims
    for summary in claim.summaries():
        assert claim.prefix.covers(summary.prefix)
        assert len(summary.digest) in (SHORT_BYTES, DIGEST_BYTES)
    assert all(len(short) == SHORT_BYTES for short in claim.short_ids())


@unhurried
@given(contents(), st.data())
def test_T9_message_with_a_wrong_byte_is_valid_or_refused(
    drawn: tuple[Prefix, list[Summary], list[bytes]], data: st.DataObject
) -> None:
    wire = bytearray(msgspec.msgpack.encode(CheckTrie("a", (RangeSummary.make(*drawn),), 3)))
    wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    try:
        message = decoder.decode(bytes(wire))
    except (msgspec.DecodeError, UnicodeDecodeError):  # also invalid msgpack, or invalid text
        return
    for claim in message.claims if isinstance(message, CheckTrie) else ():
        assert len(claim.summaries()) * SHORT_BYTES <= len(claim.digests)


# -- truncations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("session", [*range(12), 255, 65535])
def test_truncation_shows_eight_bytes_of_an_id(session: int) -> None:
    truncation = Truncation(session)
    assert len(truncation.short_id(KEY)) == len(truncation.short_digest(DIGEST)) == SHORT_BYTES
    assert truncation.short_id(KEY) in KEY
    assert truncation.short_digest(DIGEST) in DIGEST


def test_sessions_compare_different_bytes() -> None:
    truncations = [Truncation(session) for session in range(8)]
    parts = {KEY[:8], KEY[8:16], KEY[16:24], KEY[24:]}
    assert {truncation.short_id(KEY) for truncation in truncations} == parts
    assert {truncation.short_digest(DIGEST) for truncation in truncations} == {
        DIGEST[:8],
        DIGEST[8:],
    }


def test_ids_that_look_equal_in_one_session_differ_in_another() -> None:
    """One session out of four compares the bytes in which two ids differ."""
    for part in range(4):
        start = part * SHORT_BYTES
        other = KEY[:start] + bytes(SHORT_BYTES) + KEY[start + SHORT_BYTES :]
        alike = [Truncation(s).short_id(other) == Truncation(s).short_id(KEY) for s in range(4)]
        assert alike == [session != part for session in range(4)]


@pytest.mark.parametrize("labels", [("1", "0"), ("0", "0"), ("0", "01"), ("01", "0")])
def test_T9_unordered_or_repeated_labels_are_refused(labels: tuple[str, str]) -> None:
    nodes = [Summary(Prefix.parse(bits), DIGEST) for bits in labels]
    with pytest.raises(ValueError, match="out of order"):
        RangeSummary.make(ALL, nodes)


@pytest.mark.parametrize("session", range(4))
def test_digest_is_compared_in_the_length_in_which_it_was_sent(session: int) -> None:
    lens, other = Truncation(session), bytes(DIGEST_BYTES)
    assert lens.is_equal(DIGEST, DIGEST)
    assert lens.is_equal(DIGEST, lens.short_digest(DIGEST))
    assert not lens.is_equal(DIGEST, other)
    assert not lens.is_equal(DIGEST, lens.short_digest(other))
    assert not lens.is_equal(DIGEST, Truncation(session + 1).short_digest(DIGEST))


# -- digests -----------------------------------------------------------------------------------


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
def test_digest_of_sorted_ids_equals_that_of_their_patricia_trie(
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
