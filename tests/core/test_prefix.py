"""Prefixes of ids: their ranges and their encoding (section 4.2)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from skipring.core.prefix import ALL, PACKED_BYTES_MAX, Prefix, apart, are_disjoint, complement
from skipring.core.publications import ID_BITS, ID_BYTES
from tests.support.machines import unhurried

SHORT = 6  # few enough bits to enumerate all strings


def prefixes(length_max: int = ID_BITS) -> SearchStrategy[Prefix]:
    """Draw prefixes up to a maximum length."""
    return st.text("01", max_size=min(length_max, SHORT)).map(Prefix.parse) | st.integers(
        0, length_max
    ).flatmap(lambda length: st.builds(Prefix, st.just(length), st.integers(0, (1 << length) - 1)))


short_prefixes = st.text("01", max_size=SHORT).map(Prefix.parse)


def below(prefix: Prefix) -> set[int]:
    """Return the strings of ``SHORT`` bits that start with a prefix."""
    extra = SHORT - prefix.length
    return set(range(prefix.value << extra, (prefix.value + 1) << extra))


@pytest.mark.parametrize("bits", ["", "0", "1", "00", "01", "1" * ID_BITS, "0" * ID_BITS])
def test_parsing_and_writing_bits_are_inverse(bits: str) -> None:
    assert Prefix.parse(bits).bits == bits


@pytest.mark.parametrize("bits", ["2", "0x", " 1", "-1", "0 1", "1_0"])
def test_text_other_than_0_and_1_is_not_a_prefix(bits: str) -> None:
    with pytest.raises(ValueError, match="not a prefix"):
        Prefix.parse(bits)


@pytest.mark.parametrize(
    ("length", "value"), [(0, 1), (1, 2), (1, -1), (-1, 0), (ID_BITS + 1, 0), (8, 256)]
)
def test_T9_length_or_value_out_of_range_is_not_a_prefix(length: int, value: int) -> None:
    with pytest.raises(ValueError, match="not a prefix of an id"):
        Prefix(length, value)


def test_empty_prefix_has_a_readable_form() -> None:
    assert (str(ALL), ALL.bits, str(Prefix.parse("01"))) == ("(all)", "", "01")


@unhurried
@given(st.binary(min_size=ID_BYTES, max_size=ID_BYTES), st.integers(0, ID_BITS))
def test_prefix_of_an_id_is_its_first_bits(key: bytes, length: int) -> None:
    bits = format(int.from_bytes(key, "big"), f"0{ID_BITS}b")
    assert Prefix.of_id(key, length).bits == bits[:length]
    assert Prefix.of_id(key).bits == bits


@unhurried
@given(prefixes(), prefixes())
def test_prefix_covers_the_ids_that_start_with_it(one: Prefix, other: Prefix) -> None:
    assert one.covers(other) is other.bits.startswith(one.bits)
    assert one.covers(one)
    assert ALL.covers(one)


@unhurried
@given(prefixes(ID_BITS - 1), st.sampled_from([0, 1]))
def test_child_has_one_more_bit(prefix: Prefix, bit: int) -> None:
    child = prefix.child(bit)
    assert child.bits == f"{prefix.bits}{bit}"
    assert prefix.covers(child)
    assert child.sibling == prefix.child(1 - bit)
    assert child.sibling.sibling == child


def test_T9_full_id_has_no_children() -> None:
    with pytest.raises(ValueError, match="not a prefix of an id"):
        Prefix.parse("1" * ID_BITS).child(0)


@unhurried
@given(prefixes(ID_BITS // 2), prefixes(ID_BITS // 2))
def test_extension_of_a_prefix_is_recovered_by_beyond(one: Prefix, more: Prefix) -> None:
    longer = one.extended(more)
    assert longer.bits == one.bits + more.bits
    assert one.beyond(longer) == more


def test_T9_prefix_cannot_be_extended_beyond_an_id() -> None:
    half = Prefix(ID_BITS // 2, 0)
    with pytest.raises(ValueError, match="not a prefix of an id"):
        half.extended(half.child(0))


# -- on the wire -------------------------------------------------------------------------------


def test_prefix_of_any_length_survives_an_encoding_round_trip() -> None:
    for length in range(ID_BITS + 1):
        for value in {0, (1 << length) - 1, (1 << length) // 3}:
            packed = Prefix(length, value).pack()
            assert Prefix.unpack(packed) == Prefix(length, value)
            assert len(packed) == length // 8 + 1


@unhurried
@given(prefixes(), prefixes())
def test_different_prefixes_have_different_encodings(one: Prefix, other: Prefix) -> None:
    assert (one.pack() == other.pack()) is (one == other)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"\0", "without the bit that ends it"),
        (b"\x80\0", "that bit is not in the last byte"),
        (bytes(ID_BYTES + 1), "without that bit"),
        (bytes(ID_BYTES) + b"\x40", "257 bits"),
        (bytes(ID_BYTES) + b"\x01", "263 bits"),
        (bytes(ID_BYTES + 1) + b"\x80", "264 bits"),
        (b"\xff" * 1000, "far too long"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_T9_invalid_packed_prefix_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match="not a prefix of an id"):
        Prefix.unpack(data)


@unhurried
@given(st.binary(max_size=PACKED_BYTES_MAX + 1))
def test_bytes_are_refused_or_are_the_encoding_of_the_prefix(data: bytes) -> None:
    try:
        prefix = Prefix.unpack(data)
    except ValueError:
        return
    assert prefix.pack() == data


# -- complements -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cover", "labels", "expected"),
    [
        ("", [], [""]),
        ("", [""], []),
        ("", ["0"], ["1"]),
        ("", ["01"], ["00", "1"]),
        ("", ["00", "11"], ["01", "10"]),
        ("01", ["0100", "0111"], ["0101", "0110"]),
        ("01", ["1"], ["01"]),
        ("01", ["0"], []),
        ("0", ["00", "0011"], ["01"]),
    ],
)
def test_complement_is_the_range_outside_the_labels(
    cover: str, labels: list[str], expected: list[str]
) -> None:
    left = complement(Prefix.parse(cover), map(Prefix.parse, labels))
    assert [prefix.bits for prefix in left] == expected


@unhurried
@given(short_prefixes, st.lists(short_prefixes, max_size=6))
def test_cover_and_complement_are_a_partition(cover: Prefix, labels: list[Prefix]) -> None:
    left = list(complement(cover, labels))
    strings = [string for prefix in left for string in sorted(below(prefix))]
    taken = set().union(*map(below, labels))
    assert strings == sorted(below(cover) - taken), "in order, and none twice"


@unhurried
@given(short_prefixes, st.lists(short_prefixes, max_size=6))
def test_complement_has_the_largest_possible_prefixes(cover: Prefix, labels: list[Prefix]) -> None:
    taken = set().union(*map(below, labels))
    for prefix in complement(cover, labels):
        parent = Prefix(prefix.length - 1, prefix.value >> 1) if prefix != cover else cover
        assert prefix == cover or below(parent) & taken


@unhurried
@given(prefixes(ID_BITS - 9), st.lists(st.text("01", max_size=8).map(Prefix.parse), max_size=6))
def test_complement_does_not_depend_on_the_place_of_the_cover(
    cover: Prefix, labels: list[Prefix]
) -> None:
    moved = complement(cover, [cover.extended(label) for label in labels])
    assert [cover.beyond(prefix) for prefix in moved] == list(complement(ALL, labels))


# -- order -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("0", "1", True),
        ("1", "0", False),
        ("0", "01", False),
        ("01", "0", False),
        ("001", "01", True),
    ],
)
def test_prefix_precedes_another_if_all_its_ids_do(one: str, other: str, expected: bool) -> None:
    assert Prefix.parse(one).is_before(Prefix.parse(other)) is expected


@unhurried
@given(st.lists(st.text("01", max_size=5).map(Prefix.parse), max_size=8))
def test_apart_returns_disjoint_prefixes_that_overlap_every_label(labels: list[Prefix]) -> None:
    found = apart(labels)
    assert are_disjoint(found)
    assert all(any(kept.covers(x) or x.covers(kept) for kept in found) for x in labels)
    assert are_disjoint(labels) is (len(found) == len(labels))


def test_complement_descends_only_where_ids_exist() -> None:
    """One id beside a label of 256 bits: without narrowing the result has as many prefixes."""
    label = Prefix.parse("0" * ID_BITS)
    held = Prefix.parse("0" * (ID_BITS - 1) + "1")
    assert len(list(complement(ALL, [label]))) == ID_BITS
    narrowed = complement(ALL, [label], lambda prefix: held if prefix.covers(held) else None)
    assert list(narrowed) == [held]
