import pytest

from skipring.demo.story import (
    CRASHED,
    FORGOTTEN,
    RULES,
    SCRAMBLED,
    STANDS,
    Chapter,
    Comparison,
    End,
    Frame,
    Outcome,
    Plan,
    RingStands,
    Scene,
    Unrolled,
    tell,
)
from skipring.world.legitimacy import Layer

DAMAGED = (SCRAMBLED, FORGOTTEN, CRASHED)


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return list(tell(Plan()))


def frames(scenes: list[Scene], chapter: Chapter) -> list[Frame]:
    return [scene for scene in scenes if isinstance(scene, Frame) and scene.chapter is chapter]


def outcome(scenes: list[Scene], chapter: Chapter) -> Outcome:
    (found,) = (s for s in scenes if isinstance(s, Outcome) and s.chapter is chapter)
    return found


def end(scenes: list[Scene]) -> End:
    assert isinstance(scenes[-1], End)
    return scenes[-1]


def test_the_story_has_all_its_scenes_in_order(scenes: list[Scene]) -> None:
    kinds = [type(scene) for scene in scenes if not isinstance(scene, Frame)]
    healing = [Chapter, Outcome] * len(DAMAGED)
    assert kinds == [Plan, Chapter, RingStands, Unrolled, *healing, Chapter, Comparison, End]
    chapters = [scene for scene in scenes if isinstance(scene, Chapter)]
    assert chapters == [STANDS, *DAMAGED, RULES]
    assert [chapter.number for chapter in chapters] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("chapter", DAMAGED, ids=lambda chapter: chapter.title)
def test_a_chapter_begins_damaged_and_ends_healed(chapter: Chapter, scenes: list[Scene]) -> None:
    found = frames(scenes, chapter)
    assert [frame.round for frame in found] == list(range(len(found)))
    assert not any(frame.is_healed for frame in found[:-1])
    assert found[-1].is_healed
    assert len(found[-1].history) == len(found)

    ending = outcome(scenes, chapter)
    assert (ending.is_healed, ending.is_closed) == (True, True)
    assert ending.rounds == found[-1].round
    assert (ending.messages, ending.requests) == (found[-1].messages, found[-1].requests)


def test_scrambled_means_that_everything_is_wrong(scenes: list[Scene]) -> None:
    first = frames(scenes, SCRAMBLED)[0]
    for layer in (Layer.DATABASE, Layer.LABELS, Layer.RING, Layer.SHORTCUTS, Layer.CHANNELS):
        assert first.wrong[layer] > 0


def test_a_wiped_database_knows_nobody(scenes: list[Scene]) -> None:
    assert frames(scenes, FORGOTTEN)[0].portrait.recorded == 0


def test_a_quarter_crashes_and_is_noticed_three_rounds_later(scenes: list[Scene]) -> None:
    found = frames(scenes, CRASHED)
    assert found[0].portrait.members == 12
    assert [len(frame.portrait.dead) for frame in found[:4]] == [4, 4, 4, 4]
    assert not any(frame.portrait.dead for frame in found[4:])


def test_the_quiet_ring_has_the_figures_of_section_2(scenes: list[Scene]) -> None:
    figures = end(scenes).figures
    assert figures.members == 16
    assert figures.average_degree == 4 - 6 / 16
    assert figures.diameter == 4
    assert figures.requests < 1.5  # "constant in expectation", whatever n is


def test_the_literal_pseudocode_does_not_heal_what_the_rules_do(scenes: list[Scene]) -> None:
    comparison = end(scenes).comparison
    assert not comparison.paper.is_healed
    assert comparison.paper.rounds == 300
    assert comparison.paper.wrong[Layer.SHORTCUTS] > 0
    assert comparison.ours.is_healed


def test_all_is_well_that_ends_well(scenes: list[Scene]) -> None:
    assert end(scenes).is_good
    assert len(end(scenes).healed) == len(DAMAGED)


@pytest.mark.parametrize("n", [4, 5, 13, 64])
def test_other_sizes_and_seeds_heal_too(n: int) -> None:
    assert end(list(tell(Plan(n=n, seed=n, paper_rounds=1)))).is_good


def test_a_seed_tells_the_same_story_again() -> None:
    plan = Plan(seed=7, paper_rounds=3)
    assert list(tell(plan)) == list(tell(plan))


def test_what_has_no_time_to_heal_does_not_end_well() -> None:
    last = end(list(tell(Plan(max_rounds=1, paper_rounds=1))))
    assert not last.is_good
    assert [part.is_healed for part in last.healed] == [False] * len(DAMAGED)
    assert all(part.rounds == 1 and part.wrong for part in last.healed)
