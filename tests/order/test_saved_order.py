"""State of an order as text: sizes, damage, limits."""

from __future__ import annotations

import doctest
from base64 import urlsafe_b64encode
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from skipring.core.publications import COUNTER_BITS
from skipring.order import gaps as gaps_module
from skipring.order import saved_order as saved_order_module
from skipring.order.gaps import HELD
from skipring.order.publisher_order import SEQUENCES_MAX
from skipring.order.saved_order import TEXT_CHARACTERS_MAX, SavedOrder, runs_of

NAMES = st.from_regex(r"\A[A-Za-z0-9._-]{1,64}\Z")


def text(value: object) -> str:
    return urlsafe_b64encode(msgpack.encode(value)).rstrip(b"=").decode()


def test_docstring_examples_pass() -> None:
    assert doctest.testmod(saved_order_module) == (0, 3)
    assert doctest.testmod(gaps_module).failed == 0


@given(
    st.dictionaries(
        st.tuples(NAMES, st.integers(0, (1 << 40) - 1)), st.integers(0, 1 << COUNTER_BITS)
    ),
    st.sets(st.integers(0, 10_000)),
    st.booleans(),
)
def test_state_of_publishers_is_equal_after_its_text_was_parsed(
    counters: dict[tuple[str, int], int], offsets: set[int], from_start: bool
) -> None:
    following = {key: (key[1] << COUNTER_BITS) + each for key, each in counters.items()}
    saved = SavedOrder(runs_of(offsets), following=following, from_start=from_start)
    assert SavedOrder.parse(str(saved)) == saved
    assert sorted(each for run in saved.pending for each in run) == sorted(offsets)


@given(st.integers(0, 1 << 62), NAMES, st.integers(0, 1 << 62))
def test_state_of_time_is_equal_after_its_text_was_parsed(time: int, name: str, seq: int) -> None:
    saved = SavedOrder(passed=(time, name, seq))
    assert SavedOrder.parse(str(saved)) == saved


def test_text_of_ten_publishers_is_short() -> None:
    following = {
        (f"node{place:02}", 1 << 38): ((1 << 38) << COUNTER_BITS) + 70_000 for place in range(10)
    }
    assert len(str(SavedOrder(following=following))) < 10 * 36


def test_text_of_the_largest_state_is_within_the_limit() -> None:
    following = {(f"{place:064}", (1 << 40) - 1): (1 << 62) - 1 for place in range(SEQUENCES_MAX)}
    saved = SavedOrder(
        runs_of(range(1 << 39, (1 << 39) + 4 * HELD.records_max, 2)),
        following=following,
        from_start=True,
    )
    assert len(str(saved)) < TEXT_CHARACTERS_MAX
    assert SavedOrder.parse(str(saved)) == saved


@pytest.mark.parametrize(
    "value",
    [
        [],
        ["x", [], True, []],
        ["p", [], True],
        ["p", [], True, [], 1],
        ["p", [[0, 0]], True, []],
        ["p", [[-1, 1]], True, []],
        ["p", [[0, 1 << 40]], True, []],
        ["p", [[0, HELD.records_max]] * 3, True, []],
        ["p", [], True, [["a/b", [[0, 0]]]]],
        ["p", [], True, [["", [[0, 0]]]]],
        ["p", [], True, [["a", [[1 << 62, 0]]]]],
        ["p", [], True, [["a", [[0, -1]]]]],
        ["p", [], True, [["a", [[0, 1 << 23]]]]],
        ["p", [], True, [["a", [[place, 0] for place in range(SEQUENCES_MAX + 1)]]]],
        ["t", [], [0, "a"]],
        ["t", [], ["now", "a", 0]],
    ],
)
def test_invalid_state_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        SavedOrder.parse(text(value))


def test_damaged_text_is_refused_or_well_formed() -> None:
    rng = Random(3)
    saved = SavedOrder((range(3, 9),), following={("node1", 9): (9 << COUNTER_BITS) + 5})
    for _ in range(2000):
        characters = list(str(saved))
        characters[rng.randrange(len(characters))] = rng.choice("ABCXYZabcxyz0189-_")
        try:
            found = SavedOrder.parse("".join(characters))
        except ValueError:
            continue
        assert SavedOrder.parse(str(found)) == found


@pytest.mark.parametrize("damaged", ["A", "====", "\u00e9", "A" * (TEXT_CHARACTERS_MAX + 1)])
def test_text_that_is_no_base64_of_a_state_is_refused(damaged: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        SavedOrder.parse(damaged)
