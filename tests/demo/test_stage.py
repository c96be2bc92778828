import io
import re

import pytest
from msgspec.structs import replace
from rich.console import Console

from skipring.cli import skipring
from skipring.demo.page import Page, compare, conclude, show_frame
from skipring.demo.picture import ASCII, UNICODE
from skipring.demo.stage import LiveStage, PlainStage, can_repaint, perform
from skipring.demo.story import Comparison, Frame, Outcome, Plan, Scene, tell

SHORT = Plan(paper_rounds=5)
TITLES = (
    "1  The ring as it should be",
    "2  Everything is scrambled",
    "3  The supervisor forgets everyone",
    "4  A quarter crashes",
    "5  Why the rules exist",
    "In short",
)
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


class Terminal(io.StringIO):
    encoding = "utf-8"


def console(width: int = 80, height: int = 24, term: str = "xterm") -> Console:
    return Console(
        file=Terminal(),
        width=width,
        height=height,
        force_terminal=True,
        _environ={"TERM": term},
    )


def written(to: Console) -> str:
    assert isinstance(to.file, io.StringIO)
    return to.file.getvalue()


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return list(tell(SHORT))


@pytest.fixture(scope="module")
def headless() -> tuple[int, str]:
    """Exit status and output of ``skipring demo --headless --assert``."""
    with pytest.MonkeyPatch.context() as patch:
        output = io.StringIO()
        patch.setattr("sys.stdout", output)
        patch.setenv("COLUMNS", "80")
        status = skipring.main(["demo", "--headless", "--assert"], standalone_mode=False)
    return status, output.getvalue()


# --- headless --------------------------------------------------------------------------


def test_the_headless_story_has_all_chapters_and_ends_healed(headless: tuple[int, str]) -> None:
    status, text = headless
    assert status == 0
    places = [text.index(title) for title in TITLES]
    assert places == sorted(places)
    assert (
        len(re.findall(r"^✓ healed in \d+ rounds: \d+ messages per node", text, re.MULTILINE)) == 3
    )
    assert re.search(r"literally: still .*\d+ wrong\s+shortcuts after 300 rounds", text)
    assert "With the rules all healed" in text
    assert text.rstrip().endswith("skipring simulate --mode paper --adversary A12 --n 32")


def test_headless_is_plain_text_of_80_columns(headless: tuple[int, str]) -> None:
    _, text = headless
    assert "\x1b" not in text
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)


def test_headless_has_a_line_for_every_round(headless: tuple[int, str]) -> None:
    rounds = [
        int(rounds)
        for rounds in re.findall(r"^✓ healed in (\d+) rounds", headless[1], re.MULTILINE)
    ]
    lines = re.findall(r"^ +(\d+) +(\d+) .*$", headless[1], re.MULTILINE)
    assert [int(number) for number, _ in lines] == [
        number for total in rounds for number in range(1, total + 1)
    ]
    assert sum(wrong == "0" for _, wrong in lines) == len(rounds)


def test_a_console_without_unicode_gets_ascii(scenes: list[Scene]) -> None:
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    stage = PlainStage(Console(file=output, width=80, color_system=None))
    for scene in scenes:
        stage.show(scene)  # would raise UnicodeEncodeError
    assert stage.page.glyphs is ASCII


@pytest.mark.parametrize(("options", "status"), [([], 0), (["--assert"], 3)])
def test_assert_exits_with_3_if_a_chapter_does_not_heal(
    options: list[str],
    status: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skipring.demo.story.PAPER_N", 4)  # only to be quick
    arguments = ["--max-rounds", "1", *options]
    assert skipring.main(["demo", *arguments], standalone_mode=False) == status
    text = capsys.readouterr().out
    assert text.count("✗ not healed after 1 round: still ") == 4
    assert "Not everything healed." in text


# --- live ------------------------------------------------------------------------------


def test_live_the_story_is_repainted_at_a_pace_and_takes_less_than_a_minute() -> None:
    to, pauses = console(), list[float]()
    assert perform(SHORT, LiveStage(to, 0.6, pauses.append))
    assert 20 < sum(pauses) < 50
    text = written(to)
    assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR) == 3
    assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)


def test_an_interrupted_story_gives_the_cursor_back() -> None:
    to = console()

    def interrupt(_: float) -> None:
        if HIDE_CURSOR in written(to):
            raise KeyboardInterrupt

    stage = LiveStage(to, 0, interrupt)
    with pytest.raises(KeyboardInterrupt):
        perform(SHORT, stage)
    assert written(to).count(SHOW_CURSOR) == written(to).count(HIDE_CURSOR) == 1


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (100, 40), (78, 50), (100, 24)])
def test_every_frame_leaves_room_for_heading_and_verdict(
    columns: int, rows: int, scenes: list[Scene]
) -> None:
    for scene in scenes:
        if isinstance(scene, Frame):
            lines = console(columns).render_lines(
                show_frame(scene, Page(columns, rows, UNICODE)), pad=False
            )
            assert len(lines) <= rows - 6
            assert max(sum(s.cell_length for s in line) for line in lines) <= columns


@pytest.mark.parametrize(
    ("width", "height", "term", "can"),
    [
        (80, 24, "xterm", True),
        (80, 24, "dumb", False),
        (60, 24, "xterm", False),
        (80, 20, "xterm", False),
    ],
)
def test_only_a_terminal_with_room_is_repainted(
    width: int, height: int, term: str, can: bool
) -> None:
    assert can_repaint(console(width, height, term)) is can


# --- words -----------------------------------------------------------------------------


def an_outcome(scenes: list[Scene]) -> Outcome:
    return next(scene for scene in scenes if isinstance(scene, Outcome))


def test_a_chapter_that_does_not_stay_healed_is_not_praised(scenes: list[Scene]) -> None:
    text = conclude(replace(an_outcome(scenes), is_closed=False), UNICODE)
    assert text.plain.startswith("✗ healed in ")
    assert text.plain.endswith("but it did not stay so.")


def test_a_paper_that_heals_is_given_its_due(scenes: list[Scene]) -> None:
    healed = an_outcome(scenes)
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(compare(Comparison(healed, healed), UNICODE))
    assert f"literally: healed in {healed.rounds} rounds" in capture.get()
