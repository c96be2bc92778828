"""Telling the story: each chapter is a deed, then watching until nothing is wrong any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

from skipring.core.peers import SUPERVISOR
from skipring.errors import SkipringError
from skipring.lab.demo import story
from skipring.lab.demo.analysis import Analyst
from skipring.lab.demo.ring import LiveRing
from skipring.lab.demo.story import Analysis, Chapter, DemoPlan, Note, Scoreboard, StepResult
from skipring.lab.demo.watching import LOOK_S, DemoWatch, Show, UnhealedError

AWAY_TICKS: Final = 12  # Our guess: long enough that a missing supervisor would be missed.
SPARK_S: Final = 180.0  # Our guess: ten times what it takes, on a machine that does other things.

Deed = Callable[[DemoWatch], Awaitable[None]]


class Teller:
    """Tells the chapters that are about the ring, one after the other."""

    def __init__(self, plan: DemoPlan, ring: LiveRing, show: Show) -> None:
        self.outcomes: list[StepResult] = []
        self._plan = plan
        self._ring = ring
        self._show = show
        self._killed = sorted(ring.rng.sample(ring.names[1:], plan.killed))

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong with the chapters up to now, in sentences."""
        return tuple(
            f"chapter {outcome.chapter.number}: {fault}"
            for outcome in self.outcomes
            for fault in outcome.faults
        )

    async def form(self) -> None:
        """The first chapter, in which the ring comes to be."""
        await self._tell(story.FORMING, self._start)

    async def damage(self) -> None:
        """The chapters in which something happens to the ring, up to one that ends badly."""
        for chapter, deed in (
            (story.PUBLISHING, self._publish),
            (story.KILLING, self._kill),
            (story.FORGETTING, self._forget),
            (story.SCRAMBLING, self._scramble),
            (story.RETURNING, self._return),
        ):
            if not self.faults:
                await self._tell(chapter, deed)

    async def sum_up(self) -> Scoreboard:
        """Show all chapters and nodes at a glance.

        The scrubber may find records that a node has lost only now; anti-entropy then brings them.
        """
        sight = await self._ring.look()
        deadline = monotonic() + self._plan.deadline_s
        while not (sight.is_whole or self.faults) and monotonic() < deadline:
            await asyncio.sleep(LOOK_S)
            sight = await self._ring.look()
        board = Scoreboard(tuple(self.outcomes), sight.standings, self._ring.pids())
        await self._show(board)
        return board

    async def _tell(self, chapter: Chapter, deed: Deed) -> None:
        """Tell a chapter; whatever goes wrong in it is how it ends."""
        titled = story.titled(chapter, self._plan)
        await self._show(titled)
        watch = DemoWatch(titled, self._plan, self._ring, self._show)
        await watch.begin()
        faults: tuple[str, ...] = ()
        try:
            await deed(watch)
            await watch.until(lambda sight: sight.is_whole)
        except UnhealedError as error:
            faults = error.faults
        except SkipringError as error:
            faults = (str(error),)
        self.outcomes.append(await watch.outcome(faults))
        await self._show(self.outcomes[-1])

    # -- deeds ---------------------------------------------------------------------------------

    async def _start(self, _: DemoWatch) -> None:
        await self._ring.start_nodes()
        await self._show(self._ring.cast())

    async def _publish(self, _: DemoWatch) -> None:
        await self._ring.press.publish(story.ORDERS)

    async def _kill(self, watch: DemoWatch) -> None:
        pids = self._ring.pids()
        await self._ring.kill(self._killed)
        victims = ", ".join(f"{name} (pid {pids[name]})" for name in self._killed)
        await watch.note(f"killed: {victims}")

    async def _forget(self, watch: DemoWatch) -> None:
        ring = self._ring
        async with ring.press.running():
            await ring.kill([SUPERVISOR])
            ring.delete_database()
            await watch.note("the supervisor is dead and its database gone; publishing goes on")
            await watch.during(AWAY_TICKS * self._plan.tick_s)
            published, nodes = list(ring.press.acknowledged), len(ring.places())
            await watch.until(lambda sight: sight.complete >= nodes, published)
            await watch.note(f"without it all {nodes} nodes have got all {len(published)} orders")
            await ring.restart([SUPERVISOR])
            await watch.note("the supervisor is back, with an empty database")
            await watch.until(lambda sight: sight.is_ring_whole)

    async def _scramble(self, watch: DemoWatch) -> None:
        ring = self._ring
        victim = ring.rng.choice([name for name in sorted(ring.places()) if name != ring.witness])
        await ring.kill([victim])
        bits = ring.flip_bits(victim)
        await ring.restart([victim])
        await watch.note(f"{victim} was killed, and is back with {bits} bits of its disk flipped")
        await ring.scramble()
        await watch.note("everything in everybody's memory is scrambled")

    async def _return(self, watch: DemoWatch) -> None:
        await self._ring.restart(self._killed)
        await watch.note(f"started again: {', '.join(self._killed)}")


# -- Spark -------------------------------------------------------------------------------------


async def analyse(analyst: Analyst, ring: LiveRing, show: Show) -> Analysis:
    """Let Spark work on the topic; what comes of it."""
    began = monotonic()
    rows: dict[str, int] = {}
    await show(Note("Spark reads the topic; give it some seconds"))
    try:
        async with asyncio.timeout(SPARK_S):
            async for told in analyst.work(ring.supervisor, story.TOPIC):
                if told.progress is not None:
                    await show(Note(told.progress))
                rows = told.rows or rows
            await analyst.finish()
    except TimeoutError:
        return Analysis(failed=f"Spark has not come to an end within {SPARK_S:.0f} s")
    except SkipringError as error:
        return Analysis(failed=f"Spark: {error}")
    return Analysis(
        report=analyst.written_report,
        seconds=monotonic() - began,
        rows=rows,
        published=len(ring.press.acknowledged),
    )
