"""Rows: runs in turns, spread, Markdown."""

from functools import partial

from skipring.errors import SkipringError
from skipring.lab.bench.report import in_turns, spread


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


def test_spread_is_median_minimum_and_maximum() -> None:
    assert spread("cpu", [3.0, 1.0, 1.2344]) == {"cpu": 1.234, "cpu_min": 1.0, "cpu_max": 3.0}
