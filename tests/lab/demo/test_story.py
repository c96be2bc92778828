"""The story's values: what counts as good, and what is said otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipring.lab.demo import story
from skipring.lab.demo.sight import Standing
from skipring.lab.demo.story import Analysis, Chapter, DemoPlan, Scoreboard, next_commands, titled
from tests.lab.demo.worlds import outcome

CHAPTERS = (
    story.FORMING,
    story.PUBLISHING,
    story.KILLING,
    story.FORGETTING,
    story.SCRAMBLING,
    story.RETURNING,
    story.ANALYSING,
)


def test_chapters_are_numbered_in_order() -> None:
    assert [chapter.number for chapter in CHAPTERS] == list(range(1, 8))


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: str(chapter.number))
def test_a_chapter_says_what_is_done_and_what_to_look_at_with_its_numbers(chapter: Chapter) -> None:
    told = titled(chapter, DemoPlan(n=9))
    for text in (told.title, told.deed, told.look):
        assert text
        assert "{" not in text


@pytest.mark.parametrize(("n", "killed"), [(4, 1), (16, 5), (64, 20)])
def test_five_of_sixteen_are_killed(n: int, killed: int) -> None:
    assert DemoPlan(n=n).killed == killed


def test_a_chapter_is_good_if_nothing_is_wrong_at_its_end() -> None:
    assert outcome().is_good
    assert not outcome("n03 is not in the ring").is_good


def board(*roots: str) -> Scoreboard:
    standings = (Standing(f"n{i:02d}", "0", 5, root) for i, root in enumerate(roots))
    return Scoreboard((), tuple(standings), {})


def test_the_scoreboard_is_good_if_all_root_hashes_are_equal() -> None:
    assert board("aa", "aa", "aa").fault is None
    assert board("aa", "bb", "aa").fault == "the nodes have 2 different root hashes"
    assert board().fault == "the nodes have 0 different root hashes"


@pytest.mark.parametrize(
    ("analysis", "fault"),
    [
        (Analysis(report=Path("r"), rows={"silver": 7}, published=7), None),
        (Analysis(rows={"silver": 7}, published=7), "Spark has written no report"),
        (
            Analysis(report=Path("r"), rows={"silver": 6}, published=7),
            "Spark has found 6 of 7 publications",
        ),
        (Analysis(skipped="Spark is not installed"), None),
        (Analysis(failed="Spark: no Java"), "Spark: no Java"),
    ],
)
def test_an_analysis_is_good_if_it_has_every_publication_and_a_report_or_nobody_tried(
    analysis: Analysis, fault: str | None
) -> None:
    assert analysis.fault == fault


def test_what_to_try_next_is_about_the_ring_that_stays_or_about_ones_own() -> None:
    assert all("--supervisor 127.0.0.1:9" in it for it in next_commands("127.0.0.1:9"))
    assert all(it.startswith("skipring ") for it in next_commands(None))
