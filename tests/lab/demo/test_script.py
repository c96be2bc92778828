"""Script of the demo: its steps, and the faults of their results."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipring.lab.demo.script import SPARK_STEP, STEPS, DemoPlan, Scoreboard, SparkResult, Step
from skipring.lab.demo.state import NodeState

ALL = (*STEPS, SPARK_STEP)


def test_steps_are_numbered_in_order() -> None:
    assert [step.number for step in ALL] == list(range(1, 8))


@pytest.mark.parametrize("step", ALL, ids=lambda step: str(step.number))
def test_sentences_of_a_step_have_the_numbers_of_the_plan(step: Step) -> None:
    filled = step.filled(DemoPlan(n=9))
    for text in (filled.title, filled.action, filled.observe):
        assert text
        assert "{" not in text


def board(*roots: str) -> Scoreboard:
    nodes = (NodeState(f"n{i:02d}", "0", 5, root) for i, root in enumerate(roots))
    return Scoreboard((), tuple(nodes), {})


def test_scoreboard_is_good_if_all_root_hashes_are_equal() -> None:
    assert board("aa", "aa", "aa").fault is None
    assert board("aa", "bb", "aa").fault == "the nodes have 2 different root hashes"
    assert board().fault == "the nodes have 0 different root hashes"


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (SparkResult(report=Path("r"), rows={"silver": 7}, published=7), None),
        (SparkResult(rows={"silver": 7}, published=7), "Spark has written no report"),
        (
            SparkResult(report=Path("r"), rows={"silver": 6}, published=7),
            "Spark has found 6 of 7 publications",
        ),
        (SparkResult(skipped="Spark is not installed"), None),
        (SparkResult(failed="Spark: no Java"), "Spark: no Java"),
    ],
)
def test_spark_result_is_good_with_all_publications_and_a_report_or_if_skipped(
    found: SparkResult, fault: str | None
) -> None:
    assert found.fault == fault
