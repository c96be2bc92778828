"""The chain value of a log: changes that it reveals, and its dependence on ids only."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skipring.core.limits import CHAIN_BYTES
from skipring.core.publications import ID_BYTES
from skipring.storage.chain import BLOCK_IDS, LogChain

# Computed with the formula from the ids 0 to 129.
VERSION_1 = {
    0: "944254273d89e85a",
    1: "ad89c352ee331747",
    63: "d9552ce122ec9c2c",
    64: "8f93df24f9d15d15",
    65: "342e58f5087fa765",
    128: "540594f7b0d7cbb7",
    130: "4422234ccf9afac8",
}
A, B, C, D, E = (bytes([letter]) * ID_BYTES for letter in b"ABCDE")


def ids(*numbers: int) -> list[bytes]:
    return [number.to_bytes(ID_BYTES, "big") for number in numbers]


def values(log: list[bytes]) -> list[bytes]:
    """Return the value at every offset of a log."""
    chain = LogChain()
    chain.extend(b"".join(log))
    return [
        chain.at(offset, lambda start, end: b"".join(log[start:end]))
        for offset in range(len(log) + 1)
    ]


def logs(max_size: int = 3 * BLOCK_IDS) -> st.SearchStrategy[list[bytes]]:
    return st.integers(0, max_size).map(lambda count: ids(*range(count)))


def test_refill_in_another_order_changes_the_value_despite_an_equal_last_id() -> None:
    before, after = values([A, B, C, D, E]), values([A, D, C, B, E])
    assert before[:2] == after[:2]
    assert all(before[offset] != after[offset] for offset in (2, 3, 4, 5))


def test_value_has_eight_bytes_even_for_an_empty_log() -> None:
    assert {len(value) for value in values([A, B])} == {CHAIN_BYTES}
    assert values([])[0] == values([A])[0]


def test_values_equal_those_of_the_first_version() -> None:
    """Compare with stored values: positions refer to them, so never change these, only add."""
    found = values(ids(*range(130)))
    assert {offset: found[offset].hex() for offset in VERSION_1} == VERSION_1


@given(st.data())
def test_any_other_order_before_an_offset_changes_its_value(data: st.DataObject) -> None:
    log = data.draw(logs())
    other = data.draw(st.permutations(log))
    differing = [place for place, key in enumerate(log) if key != other[place]]
    first = differing[0] if differing else len(log)
    pairs = list(zip(values(log), values(other), strict=True))
    assert [one == two for one, two in pairs] == [offset <= first for offset in range(len(log) + 1)]


@given(st.data())
def test_any_other_id_before_an_offset_changes_its_value(data: st.DataObject) -> None:
    log = data.draw(logs().filter(bool))
    place = data.draw(st.integers(0, len(log) - 1))
    other = [*log[:place], data.draw(st.sampled_from([A, B])), *log[place + 1 :]]
    pairs = list(zip(values(log), values(other), strict=True))
    assert [one == two for one, two in pairs] == [offset <= place for offset in range(len(log) + 1)]


@given(logs(), st.lists(st.integers(0, 2 * BLOCK_IDS), max_size=6))
def test_values_do_not_depend_on_the_batches_of_ids(log: list[bytes], sizes: list[int]) -> None:
    chain, start = LogChain(), 0
    for size in [*sizes, len(log)]:
        chain.extend(b"".join(log[start : start + size]))
        start += size
        assert chain.end == min(start, len(log))
    end = len(log)
    assert chain.at(end, lambda start, end: b"".join(log[start:end])) == values(log)[end]


def test_memory_is_half_a_byte_per_publication() -> None:
    chain = LogChain()
    chain.extend(b"".join(ids(*range(100_000))))
    assert chain.size_bytes <= 0.5 * 100_000 + BLOCK_IDS * ID_BYTES
