"""Showing the story: repainted at a pace on a terminal, or as plain text."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeAlias

from rich.console import Console, RenderableType
from rich.live import Live

from skipring.demo import page
from skipring.demo.page import Page
from skipring.demo.picture import glyphs_for
from skipring.demo.story import (
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

Sleep: TypeAlias = Callable[[float], None]

# Pauses, in rounds. Our guesses at how long it takes to read; the whole stays below 45 s.
_AFTER_PICTURE: Final = 6
_AFTER_WORDS: Final = 3
_AFTER_ROUND: Final = 1


def perform(plan: Plan, stage: PlainStage) -> bool:
    """Tell the story; True if all that should heal did."""
    is_good = False
    with stage:
        for scene in tell(plan):
            stage.show(scene)
            is_good = isinstance(scene, End) and scene.is_good
    return is_good


def can_repaint(console: Console) -> bool:
    """True if this is a terminal on which a picture can be painted over, and large enough."""
    has_room = console.width >= page.COLUMNS_MIN and console.height >= page.ROWS_MIN
    return console.is_terminal and not console.is_dumb_terminal and has_room


class PlainStage:
    """Writes one scene below the other: of each chapter the damage, then a line for a round."""

    def __init__(self, console: Console) -> None:
        self.console = console

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
    def page(self) -> Page:
        """The room there is."""
        columns = min(max(self.console.width, page.COLUMNS_MIN), page.COLUMNS_MAX)
        return Page(columns, self._rows(), glyphs_for(self.console.encoding))

    def _rows(self) -> int:
        return page.ROWS_PLAIN

    def write(self, content: RenderableType) -> None:
        """Print, without the blanks that fill lines up."""
        with self.console.capture() as capture:
            self.console.print(content, width=self.page.columns)
        for line in capture.get().splitlines():
            self.console.out(line.rstrip(), highlight=False)

    def show(self, scene: Scene) -> None:
        """Show one scene."""
        match scene:
            case Plan():
                self.write(page.introduce(scene))
            case Chapter():
                self.write(page.head(scene))
            case RingStands():
                self.write(page.show_ring(scene, self.page))
            case Unrolled():
                self.write(page.show_unrolled(scene, self.page))
            case Frame(round=0):
                self.write(page.show_frame(scene, self.page))
            case Frame():
                self.write(page.describe_frame(scene, self.page))
            case Outcome():
                self.write(page.conclude(scene, self.page.glyphs))
            case Comparison():
                self.write(page.compare(scene, self.page.glyphs))
            case End():
                self.write(page.finish(scene))


class LiveStage(PlainStage):
    """Paints each round over the one before, at a pace; the last round of a chapter stays."""

    def __init__(self, console: Console, pace_s: float, sleep: Sleep = time.sleep) -> None:
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

    def show(self, scene: Scene) -> None:
        """Show one scene and leave time to read it."""
        if isinstance(scene, Frame):
            self._paint(page.show_frame(scene, self.page))
        else:
            self._stop_painting()
            super().show(scene)
        self._sleep(self._pace_s * _pause_after(scene))

    def _paint(self, content: RenderableType) -> None:
        if self._live is None:
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        self._live.update(content, refresh=True)

    def _stop_painting(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _pause_after(scene: Scene) -> int:
    match scene:
        case RingStands() | Frame(round=0):
            return _AFTER_PICTURE
        case Plan() | Unrolled() | Outcome() | Comparison():
            return _AFTER_WORDS
        case Frame():
            return _AFTER_ROUND
        case Chapter() | End():
            return 0
