"""Showing the story: repainted at a pace on a terminal, as plain text, or as JSON at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Protocol, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from skipring.lab.demo import page
from skipring.lab.demo.page import DemoPage
from skipring.lab.demo.score import Score
from skipring.lab.demo.story import (
    FORMING,
    Analysis,
    Chapter,
    DemoCast,
    DemoFrame,
    End,
    Note,
    Opening,
    Scene,
    Scoreboard,
    StepResult,
    Told,
)
from skipring.view.text import glyphs_for

Sleep = Callable[[float], Awaitable[None]]

# Pauses, in paces. Our guesses at how long it takes to read.
_AFTER_CHAPTER: Final = 4
_AFTER_TABLE: Final = 3
_AFTER_WORDS: Final = 2


class Stage(Protocol):
    """Where the story is shown, scene by scene."""

    def __enter__(self) -> Self:
        """Make it ready."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave it as it was before."""

    async def show(self, scene: Scene) -> None:
        """Show one scene."""


def can_repaint(console: Console) -> bool:
    """True if this is a terminal on which a picture can be painted over, and large enough."""
    has_room = console.width >= page.COLUMNS_MIN and console.height >= page.ROWS_MIN
    return console.is_terminal and not console.is_dumb_terminal and has_room


class PlainStage:
    """Writes one scene below the other: of each chapter the damage, then a line for a change."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._last = ""  # what the last line about the ring said, but for the time

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is left behind."""

    @property
    def page(self) -> DemoPage:
        """The room there is."""
        columns = min(max(self.console.width, page.COLUMNS_MIN), page.COLUMNS_MAX)
        return DemoPage(columns, self._rows(), glyphs_for(self.console.encoding))

    def _rows(self) -> int:
        return page.ROWS_PLAIN

    def write(self, content: RenderableType) -> None:
        """Print, without the blanks that fill lines up."""
        with self.console.capture() as capture:
            self.console.print(content, width=self.page.columns)
        for line in capture.get().splitlines():
            self.console.out(line.rstrip(), highlight=False)

    def write_whole(self, line: Text) -> None:
        """Print a line that is to be copied, however long it is."""
        self.console.print(line, soft_wrap=True)

    async def show(self, scene: Scene) -> None:
        """Show one scene."""
        if isinstance(scene, DemoFrame):
            self._show_frame(scene)
        else:
            self._tell(scene)

    def _show_frame(self, frame: DemoFrame) -> None:
        is_the_first_ring = frame.chapter.number == FORMING.number and frame.sight.is_whole
        if is_the_first_ring or (frame.is_first and not frame.sight.is_whole):
            self.write(page.show_frame(frame, self.page))
        line = page.describe_frame(frame, self.page)
        changing = f"{frame.chapter.number} {frame.sight.wrong} {frame.sight.complete}"
        if changing != self._last or frame.sight.is_whole:
            self.write(line)
        self._last = changing

    def _tell(self, scene: Told) -> None:
        glyphs = self.page.glyphs
        match scene:
            case Opening():
                self.write_whole(page.address(scene.url))
                self.write(page.introduce(scene))
            case Chapter():
                self.write(page.head(scene))
            case DemoCast():
                self.write(page.list_cast(scene))
            case Note():
                self.write(page.tell(scene, glyphs))
            case StepResult():
                self.write(page.conclude(scene, glyphs))
            case Scoreboard():
                self.write(page.show_board(scene, glyphs))
            case Analysis():
                self.write(page.report(scene, glyphs))
            case End():
                self.write(page.finish(scene, glyphs))
        for line in page.to_copy(scene):
            self.write_whole(line)


class LiveStage(PlainStage):
    """Paints each look over the one before, and leaves time to read; the last look stays."""

    def __init__(self, console: Console, pace_s: float, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(console)
        self._pace_s = pace_s
        self._sleep = sleep
        self._live: Live | None = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the cursor back."""
        self._stop_painting()

    def _rows(self) -> int:
        return self.console.height

    def write(self, content: RenderableType) -> None:
        """Print, in lines that are not too long to read."""
        self.console.print(content, width=self.page.columns)

    async def show(self, scene: Scene) -> None:
        """Show one scene and leave time to read it."""
        if not isinstance(scene, DemoFrame):
            self._stop_painting()
        await super().show(scene)
        await self._sleep(self._pace_s * _pause_after(scene))

    def _show_frame(self, frame: DemoFrame) -> None:
        if self._live is None:
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        self._live.update(page.show_frame(frame, self.page), refresh=True)

    def _stop_painting(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _pause_after(scene: Scene) -> int:
    match scene:
        case Chapter():
            return _AFTER_CHAPTER
        case DemoCast() | Scoreboard():
            return _AFTER_TABLE
        case Opening() | StepResult():
            return _AFTER_WORDS
        case Note() | DemoFrame() | Analysis() | End():
            return 0


class JsonStage:
    """Shows nothing before the end, then one line of JSON."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._score = Score()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is left behind."""

    async def show(self, scene: Scene) -> None:
        """Take down one scene; the last is followed by all."""
        self._score.note(scene)
        if isinstance(scene, End):
            self._write(self._score.as_json())
