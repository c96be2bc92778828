"""Watching a chapter: the ring is shown until it is as it should be, or time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from time import monotonic
from typing import Final

from skipring.errors import SkipringError
from skipring.lab.demo.ring import LiveRing
from skipring.lab.demo.sight import Sight
from skipring.lab.demo.story import Chapter, DemoFrame, DemoPlan, Note, Scene, StepResult

LOOK_S: Final = 0.2  # Our guess: as often as a person sees a change.

Show = Callable[[Scene], Awaitable[None]]
IsEnough = Callable[[Sight], bool]


class UnhealedError(SkipringError):
    """The time of a chapter is up, and this is still wrong."""

    def __init__(self, faults: tuple[str, ...]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


class DemoWatch:
    """Somebody who watches the ring during one chapter, and shows what is seen."""

    def __init__(self, chapter: Chapter, plan: DemoPlan, ring: LiveRing, show: Show) -> None:
        self._chapter = chapter
        self._plan = plan
        self._ring = ring
        self._show = show
        self._history: list[int] = []
        self._last: tuple[float, int] = (0.0, 0)  # seconds and rounds at the last look

    async def begin(self) -> None:
        """From now on time counts."""
        self._tick = await self._ring.tick() or 0
        self._began = monotonic()

    async def until(self, is_enough: IsEnough, published: Iterable[bytes] | None = None) -> None:
        """Show the ring until it is so twice in a row; UnhealedError if there is no time left."""
        was_enough = False
        while True:
            sight = await self._ring.look(published)
            if was_enough and is_enough(sight):
                return
            was_enough = is_enough(sight)
            await self._show_frame(sight)
            if self._seconds > self._plan.deadline_s:
                raise UnhealedError(sight.faults or ("it did not stay as it should be",))
            await asyncio.sleep(LOOK_S)

    async def during(self, seconds: float) -> None:
        """Show the ring for a while."""
        end = monotonic() + seconds
        while monotonic() < end:
            await self._show_frame(await self._ring.look())
            await asyncio.sleep(LOOK_S)

    async def note(self, text: str) -> None:
        """Say what was done."""
        await self._show(Note(text))

    async def outcome(self, faults: tuple[str, ...]) -> StepResult:
        """How the chapter has ended."""
        sight = await self._ring.look()
        seconds, rounds = self._last
        return StepResult(
            chapter=self._chapter,
            seconds=seconds,
            rounds=rounds,
            members=sight.portrait.members,
            published=sight.published,
            lost=sight.lost,
            faults=faults,
        )

    async def _show_frame(self, sight: Sight) -> None:
        self._history.append(len(sight.faults))
        seconds, rounds = self._last = self._seconds, await self._rounds()
        frame = DemoFrame(
            chapter=self._chapter,
            seconds=seconds,
            rounds=rounds,
            sight=sight,
            history=tuple(self._history),
        )
        await self._show(frame)

    @property
    def _seconds(self) -> float:
        return monotonic() - self._began

    async def _rounds(self) -> int:
        """Ticks of a node since the chapter began; as many as there should be if it is silent."""
        tick = await self._ring.tick()
        return round(self._seconds / self._plan.tick_s) if tick is None else tick - self._tick
