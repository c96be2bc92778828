"""What a person sees: plain text, a repainted terminal, or JSON."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from skipring.lab.demo.page import DemoPage, conclude, describe_frame, show_frame
from skipring.lab.demo.sight import Sight
from skipring.lab.demo.stage import JsonStage, LiveStage, PlainStage, can_repaint
from skipring.lab.demo.story import (
    Analysis,
    DemoCast,
    DemoPlan,
    DemoRole,
    End,
    Note,
    Opening,
    Scene,
    Scoreboard,
    next_commands,
)
from skipring.view.text import ASCII, UNICODE
from tests.lab.demo.worlds import CHAPTER, frame, outcome, scrambled_sight, whole_sight

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"
URL = f"http://127.0.0.1:40000/?token={'x' * 43}"
DAMAGED, WHOLE = scrambled_sight(), whole_sight()
BOARD = Scoreboard((outcome(),), WHOLE.standings, dict.fromkeys(["n00"], 4711))
SCENES: tuple[Scene, ...] = (
    Opening(DemoPlan(), URL),
    CHAPTER,
    DemoCast(
        "place", tuple(DemoRole(f"n{i:02d}", 4000 + i, "127.0.0.1:1", "d") for i in range(40))
    ),
    Note("killed: n03"),
    frame(DAMAGED),
    frame(DAMAGED, 30),
    frame(WHOLE, 30, 30),
    outcome(),
    BOARD,
    Analysis(report=Path("report.html"), rows={"silver": 64}, published=64, seconds=9.0),
    End((), next_commands(None)),
)


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


def shown(stage: PlainStage | JsonStage, scenes: Sequence[Scene] = SCENES) -> None:
    async def show() -> None:
        with stage:
            for scene in scenes:
                await stage.show(scene)

    asyncio.run(show())


def plain(scenes: Sequence[Scene] = SCENES) -> str:
    to = Console(file=Terminal(), width=80, color_system=None, highlight=False)
    shown(PlainStage(to), scenes)
    return written(to)


# --- plain -----------------------------------------------------------------------------


def test_the_first_line_is_the_address_in_one_piece() -> None:
    assert plain().splitlines()[0] == f"In the browser: {URL}"


def test_plain_text_has_80_columns_but_for_what_is_to_be_copied() -> None:
    text = plain()
    assert "\x1b" not in text
    lines = [line for line in text.splitlines() if URL not in line and "skipring demo" not in line]
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)


def test_plain_text_draws_the_damage_and_then_has_a_line_for_each_change() -> None:
    text = plain()
    assert text.count("wrong label") == 1  # in the legend of the only picture
    lines = [line for line in text.splitlines() if line.lstrip().startswith("1.5 s")]
    assert len(lines) == 2  # the second look at the damage has seen nothing new
    assert lines[-1].endswith("all is well")


def test_many_processes_are_not_all_listed() -> None:
    assert "and 20 more nodes" in plain()


def test_the_verdict_has_seconds_rounds_and_losses() -> None:
    text = conclude(outcome(), UNICODE).plain
    assert text == ("✓ healed in 4.2 s (17 rounds): 11 of 11 in the ring, 64 publications, 0 lost")


def test_what_is_still_wrong_is_said_but_not_at_any_length() -> None:
    text = conclude(outcome(*(f"n{i} is not in the ring" for i in range(9))), UNICODE).plain
    assert text.startswith("✗ not healed after 4.2 s (17 rounds): n0 is not in the ring; ")
    assert text.endswith("n3 is not in the ring; and 5 more")


def test_an_end_that_is_not_good_says_why() -> None:
    text = plain([End(("chapter 3: n03 is not in the ring",), ())])
    assert "✗ Not all of it held: chapter 3: n03 is not in the ring" in text


def test_a_spark_that_is_missing_is_said_with_the_command() -> None:
    reason = "Spark is not installed; run: pip install 'skipring[spark]'"
    assert f"Left out: {reason}" in plain([Analysis(skipped=reason)])


def test_a_console_without_unicode_gets_ascii() -> None:
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    stage = PlainStage(Console(file=output, width=80, color_system=None))
    shown(stage)  # would raise UnicodeEncodeError
    assert stage.page.glyphs is ASCII


# --- live ------------------------------------------------------------------------------


async def at_once(_: float) -> None:
    """Leave no time to read."""


def test_live_each_look_is_painted_over_the_one_before_and_the_cursor_comes_back() -> None:
    to = console()
    shown(LiveStage(to, 0, at_once))
    text = written(to)
    assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR) == 1
    assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)


def test_live_there_is_time_to_read_a_chapter() -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    shown(LiveStage(console(), 2.0, sleep), [CHAPTER, frame(DAMAGED)])
    assert pauses == [8.0, 0.0]


def test_an_interrupted_story_gives_the_cursor_back() -> None:
    to = console()

    async def interrupt(_: float) -> None:
        if HIDE_CURSOR in written(to):
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        shown(LiveStage(to, 0, interrupt))
    assert written(to).count(SHOW_CURSOR) == written(to).count(HIDE_CURSOR) == 1


@pytest.mark.parametrize("n", [4, 16, 64])
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (100, 40), (78, 50), (100, 24)])
def test_every_picture_leaves_room_for_heading_and_verdict(columns: int, rows: int, n: int) -> None:
    for sight in (scrambled_sight(n), whole_sight(n)):
        content = show_frame(frame(sight, *range(60)), DemoPage(columns, rows, UNICODE))
        lines = console(columns).render_lines(content, pad=False)
        assert len(lines) <= rows - 6
        assert max(sum(s.cell_length for s in line) for line in lines) <= columns


@pytest.mark.parametrize("sight", [DAMAGED, WHOLE])
def test_a_moment_fits_into_a_line(sight: Sight) -> None:
    text = describe_frame(frame(sight), DemoPage(80, 24, UNICODE)).plain
    assert max(map(len, text.splitlines())) <= 80


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


# --- JSON ------------------------------------------------------------------------------


def test_json_is_one_value_at_the_end() -> None:
    lines: list[str] = []
    shown(JsonStage(lines.append))
    (line,) = lines
    found = json.loads(line)
    assert found["good"] is True
    assert found["n"] == 16
    assert found["chapters"][0]["rounds"] == 17
    assert len(found["nodes"]) == 16
    assert len(found["roots"]) == 1
    assert found["analysis"]["report"] == "report.html"


def test_json_of_a_story_that_ended_badly_says_why() -> None:
    lines: list[str] = []
    bad = "n03 is not in the ring"
    shown(JsonStage(lines.append), [Opening(DemoPlan(), URL), outcome(bad), End((bad,), ())])
    found = json.loads(lines[0])
    assert (found["good"], found["faults"]) == (False, [bad])
    assert found["chapters"][0]["good"] is False
    assert found["analysis"] is None
