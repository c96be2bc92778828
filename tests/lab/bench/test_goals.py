"""What is wanted, beside what was found."""

import pytest

from skipring.lab.bench.goals import at_least, at_most, beside, lines


@pytest.mark.parametrize(("found", "reached"), [(5.0, 2.0), (2.5, 1.0), (1.0, 0.4)])
def test_what_has_to_be_large_is_reached_from_1_on(found: float, reached: float) -> None:
    assert at_least("a", found, 2.5) == {"a": found, "a_at_least": 2.5, "a_reached": reached}


@pytest.mark.parametrize(("found", "reached"), [(15, 2.0), (30, 1.0), (60, 0.5), (0, 1.0)])
def test_what_has_to_be_small_is_reached_from_1_on_too(found: int, reached: float) -> None:
    assert at_most("a", found, 30) == {"a": found, "a_at_most": 30, "a_reached": reached}


def test_if_nothing_is_allowed_anything_misses_it() -> None:
    assert at_most("a", 0.25, 0) == {"a": 0.25, "a_at_most": 0, "a_reached": 0}


def test_what_is_missed_by_a_hair_does_not_look_reached() -> None:
    assert at_most("a", 1001, 1000)["a_reached"] == 0.999
    assert at_least("a", 999, 1000)["a_reached"] == 0.999


def test_where_nothing_is_wanted_the_figure_is_alone() -> None:
    assert beside("a", 1.234, None) == {"a": 1.23}
    assert beside("a", 1.5, 1.0) == at_least("a", 1.5, 1.0)


def test_people_read_what_is_wanted_beside_what_was_found() -> None:
    ratios = {**at_least("a", 1.0, 2.0), "b": 7.0, **at_most("c", 1.0, 2.0), "d": None}
    assert list(lines(ratios)) == [
        "a 1.0  at least 2.0: missed (0.5)",
        "b 7.0",
        "c 1.0  at most 2.0: reached (2.0)",
        "d None",
    ]
