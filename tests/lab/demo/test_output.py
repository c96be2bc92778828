"""Output of the demo: plain text, a repainted terminal, or JSON."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from skipring.lab.demo.output import (
    JsonOutput,
    LiveOutput,
    PlainOutput,
    can_repaint,
    frame_picture,
    render,
)
from skipring.lab.demo.script import (
    DemoPlan,
    End,
    Event,
    Opening,
    ProcessTable,
    Scoreboard,
    SparkResult,
    next_commands,
)
from skipring.view.canvas import Size
from skipring.view.text import ASCII, UNICODE
from tests.lab.demo.states import STEP, frame, healthy_state, result, scrambled_state

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"
URL = f"http://127.0.0.1:40000/?token={'x' * 43}"
DAMAGED, HEALTHY = scrambled_state(), healthy_state()
BOARD = Scoreboard((result(),), HEALTHY.nodes, dict.fromkeys(["n00"], 4711))
EVENTS: tuple[Event, ...] = (
    Opening(DemoPlan(), URL),
    STEP,
    ProcessTable("place", tuple((f"n{i:02d}", 4000 + i, "127.0.0.1:1") for i in range(40))),
    "killed: n03",
    frame(DAMAGED),
    frame(DAMAGED, 30),
    frame(HEALTHY, 30, 30),
    result(),
    BOARD,
    SparkResult(report=Path("report.html"), rows={"silver": 64}, published=64, seconds=9.0),
    End((), next_commands(None)),
)


class Terminal(io.StringIO):
    encoding = "utf-8"


def console(width: int = 80, height: int = 24, term: str = "xterm") -> Console:
    return Console(
        file=Terminal(), width=width, height=height, force_terminal=True, _environ={"TERM": term}
    )


def written(to: Console) -> str:
    assert isinstance(to.file, io.StringIO)
    return to.file.getvalue()


def shown(output: PlainOutput | JsonOutput, events: Sequence[Event] = EVENTS) -> None:
    async def show() -> None:
        with output:
            for event in events:
                await output.show(event)

    asyncio.run(show())


def plain(events: Sequence[Event] = EVENTS) -> str:
    to = Console(file=Terminal(), width=80, color_system=None, highlight=False)
    shown(PlainOutput(to), events)
    return written(to)


def sentence(event: Event) -> str:
    (part,) = render(event, UNICODE)
    assert isinstance(part, Text)
    return part.plain


# --- plain -----------------------------------------------------------------------------


def test_plain_text_has_80_columns_except_for_lines_to_copy() -> None:
    text = plain()
    assert "\x1b" not in text
    lines = [line for line in text.splitlines() if URL not in line and "skipring demo" not in line]
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)


def test_plain_text_draws_the_damage_and_then_has_a_line_for_each_change() -> None:
    text = plain()
    assert text.count("wrong label") == 1  # in the legend of the only picture
    lines = [line for line in text.splitlines() if line.lstrip().startswith("1.5 s")]
    assert len(lines) == 2  # the second inspection has found no change
    assert lines[-1].endswith("healthy")


def test_result_has_seconds_rounds_and_losses() -> None:
    text = sentence(result())
    assert text == ("✓ healed in 4.2 s (17 rounds): 11 of 11 in the ring, 64 publications, 0 lost")


def test_console_without_unicode_gets_ascii() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    output = PlainOutput(Console(file=file, width=80, color_system=None))
    shown(output)  # would raise UnicodeEncodeError
    assert output.glyphs is ASCII


# --- live ------------------------------------------------------------------------------


async def at_once(_: float) -> None:
    """Return without a pause."""


def test_live_frames_are_repainted_and_the_cursor_is_shown_again() -> None:
    to = console()
    shown(LiveOutput(to, 0, at_once))
    text = written(to)
    assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR) == 1
    assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)


def test_live_output_pauses_after_a_step_heading() -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    shown(LiveOutput(console(), 2.0, sleep), [STEP, frame(DAMAGED)])
    assert pauses == [8.0, 0.0]


@pytest.mark.parametrize("n", [4, 16, 64])
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (100, 40), (78, 50), (100, 24)])
def test_every_picture_leaves_room_for_heading_and_verdict(columns: int, rows: int, n: int) -> None:
    for state in (scrambled_state(n), healthy_state(n)):
        content = frame_picture(frame(state, *range(60)), Size(columns, rows), UNICODE)
        lines = console(columns).render_lines(content, pad=False)
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


# --- JSON ------------------------------------------------------------------------------


def test_json_is_one_value_at_the_end() -> None:
    lines: list[str] = []
    shown(JsonOutput(lines.append))
    (line,) = lines
    found = json.loads(line)
    assert found["good"] is True
    assert found["n"] == 16
    assert found["chapters"][0]["rounds"] == 17
    assert len(found["nodes"]) == 16
    assert len(found["roots"]) == 1
    assert found["analysis"]["report"] == "report.html"
