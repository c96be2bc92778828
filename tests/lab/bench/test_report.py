"""Rows and ratios: runs in turns, spread, goals, Markdown."""

from functools import partial

import pytest

from skipring.errors import SkipringError
from skipring.lab.bench.report import (
    against_goal,
    at_least,
    at_most,
    check_count,
    in_turns,
    is_measured,
    ratio_lines,
    spread,
    table_header,
    table_row,
)


def test_actions_run_in_rotation() -> None:
    seen: list[tuple[str, int]] = []

    def act(name: str, number: int) -> int:
        seen.append((name, number))
        return 10 * number

    found = in_turns({name: partial(act, name) for name in "ab"}, 3)
    assert found == {"a": [0, 10, 20], "b": [0, 10, 20]}
    assert seen == [(name, number) for number in range(3) for name in "ab"]


def test_failed_action_is_not_repeated_and_others_continue() -> None:
    asked: list[int] = []

    def fail(number: int) -> int:
        asked.append(number)
        if number == 1:
            raise SkipringError("no room")
        return number

    found = in_turns({"bad": fail, "good": lambda number: number}, 3)
    assert found["good"] == [0, 1, 2]
    assert str(found["bad"]) == "no room"
    assert asked == [0, 1]


def test_programming_error_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        in_turns({"bad": lambda number: 1 // number}, 1)


@pytest.mark.parametrize("count", [6, 8])
def test_wrong_count_marks_row_as_failed(count: int) -> None:
    row = check_count([7, count], 7)
    assert row["failed"] == f"in 1 of 2 runs {count} of 7 arrived"
    assert not is_measured(row)
    assert check_count([7, 7], 7) == {"delivered": 7, "expected": 7}
    assert is_measured(check_count([7, 7], 7))


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
