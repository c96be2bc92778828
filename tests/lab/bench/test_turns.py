"""Systems that take turns."""

from functools import partial

import pytest

from skipring.errors import SkipringError
from skipring.lab.bench.peers.catalogue import System
from skipring.lab.bench.turns import counted, in_turns, is_measured, skipped, spread


def test_all_take_turns_as_often_as_wanted() -> None:
    seen: list[tuple[str, int]] = []

    def act(name: str, number: int) -> int:
        seen.append((name, number))
        return 10 * number

    found = in_turns({name: partial(act, name) for name in "ab"}, 3)
    assert found == {"a": [0, 10, 20], "b": [0, 10, 20]}
    assert seen == [(name, number) for number in range(3) for name in "ab"]


def test_who_fails_once_is_not_asked_again_and_the_others_go_on() -> None:
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


def test_a_mistake_of_ours_is_no_failure_of_a_system() -> None:
    with pytest.raises(ZeroDivisionError):
        in_turns({"bad": lambda number: 1 // number}, 1)


@pytest.mark.parametrize("count", [6, 8])
def test_less_or_more_than_all_has_failed(count: int) -> None:
    row = counted([7, count], 7)
    assert row["failed"] == f"in 1 of 2 runs {count} came of 7"
    assert not is_measured(row)
    assert counted([7, 7], 7) == {"delivered": 7, "expected": 7}
    assert is_measured(counted([7, 7], 7))


def test_what_is_not_installed_is_not_measured() -> None:
    assert skipped(System(module="ring")) is None
    reason = skipped(System(module="none", packages=("no_such_package",), install="get it"))
    assert reason == {"skipped": "not installed: get it"}
    assert not is_measured(reason)


def test_a_spread_is_the_median_the_least_and_the_most() -> None:
    assert spread("cpu", [3.0, 1.0, 1.2344]) == {"cpu": 1.234, "cpu_min": 1.0, "cpu_max": 3.0}
