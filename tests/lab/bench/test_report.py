"""Rows and ratios: runs in turns, spread, goals, Markdown."""

from functools import partial

import pytest

from skipring.errors import SkipringError
from skipring.lab.bench.report import (
    against_goal,
    at_least,
    at_most,
    in_turns,
    is_measured,
    ratio_lines,
    spread,
    spreads,
    table_header,
    table_row,
)


def test_actions_run_in_rotation() -> None:
    seen: list[str] = []

    def act(name: str) -> int:
        seen.append(name)
        return len(seen)

    ended: list[str] = []
    found = in_turns(
        {name: partial(act, name) for name in "abc"},
        3,
        lambda name, seconds: ended.append(name) if seconds >= 0 else None,
        fewer={"c": 1},
    )
    assert found == {"a": [1, 4, 6], "b": [2, 5, 7], "c": [3]}
    assert "".join(seen) == "".join(ended) == "abcabab"


def test_failed_action_is_not_repeated_and_others_continue() -> None:
    counts = {"bad": 0, "good": 0}

    def act(name: str) -> int:
        counts[name] += 1
        if name == "bad" and counts[name] == 2:
            raise SkipringError("no room")
        return counts[name]

    found = in_turns({name: partial(act, name) for name in counts}, 3)
    assert found["good"] == [1, 2, 3]
    assert str(found["bad"]) == "no room"
    assert counts["bad"] == 2


def test_programming_error_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        in_turns({"bad": lambda: 1 // len("")}, 1)


def test_skipped_and_failed_rows_are_not_compared() -> None:
    assert is_measured({"cpu": 1.0})
    assert not is_measured({"failed": "6 of 7 publications arrived"})
    assert not is_measured({"skipped": "not installed: ..."})


def test_each_figure_of_the_repeats_has_its_spread() -> None:
    assert spreads([{"a": 1.0, "b": 5.0}, {"a": 3.0, "b": 5.0}]) == {
        "repeats": 2,
        **spread("a", [1.0, 3.0]),
        **spread("b", [5.0, 5.0]),
    }


def test_spread_is_median_minimum_and_maximum() -> None:
    assert spread("cpu", [3.0, 1.0, 1.2344]) == {"cpu": 1.234, "cpu_min": 1.0, "cpu_max": 3.0}


@pytest.mark.parametrize(("found", "reached"), [(5.0, 2.0), (2.5, 1.0), (1.0, 0.4)])
def test_lower_bound_is_reached_from_1_on(found: float, reached: float) -> None:
    assert at_least("a", found, 2.5) == {"a": found, "a_at_least": 2.5, "a_reached": reached}


@pytest.mark.parametrize(("found", "reached"), [(15, 2.0), (30, 1.0), (60, 0.5), (0, 1.0)])
def test_upper_bound_is_reached_from_1_on(found: int, reached: float) -> None:
    assert at_most("a", found, 30) == {"a": found, "a_at_most": 30, "a_reached": reached}


def test_upper_bound_0_is_missed_by_any_positive_value() -> None:
    assert at_most("a", 0.25, 0) == {"a": 0.25, "a_at_most": 0, "a_reached": 0}


def test_narrow_miss_is_not_rounded_to_1() -> None:
    assert at_most("a", 1001, 1000)["a_reached"] == 0.999
    assert at_least("a", 999, 1000)["a_reached"] == 0.999


def test_figure_without_goal_has_no_bound() -> None:
    assert against_goal("a", 1.234, None) == {"a": 1.23}
    assert against_goal("a", 1.5, 1.0) == at_least("a", 1.5, 1.0)


def test_lines_show_figure_goal_and_result() -> None:
    ratios = {**at_least("a", 1.0, 2.0), "b": 7.0, **at_most("c", 1.0, 2.0), "d": None}
    assert list(ratio_lines(ratios)) == [
        "a 1.0  at least 2.0: missed (0.5)",
        "b 7.0",
        "c 1.0  at most 2.0: reached (2.0)",
        "d None",
    ]


def test_table_aligns_text_left_and_figures_right() -> None:
    lines = [*table_header("fault", ["n", "ms"]), table_row("loss", ["4", "1.5"])]
    assert lines == ["| fault | n | ms |", "| --- | ---: | ---: |", "| loss | 4 | 1.5 |"]
