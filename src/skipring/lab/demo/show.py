"""The whole show: from the first process to the last, on a stage, and nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from time import sleep
from typing import TYPE_CHECKING, Any, Final, TypeVar

from skipring.errors import InputError
from skipring.lab.demo import story
from skipring.lab.demo.analysis import Analyst, started_analyst
from skipring.lab.demo.processes import Processes
from skipring.lab.demo.ring import LiveRing
from skipring.lab.demo.stage import Stage
from skipring.lab.demo.story import Analysis, DemoPlan, End, Note, Opening
from skipring.lab.demo.telling import Teller, analyse
from skipring.node.process import run
from skipring.spark.errors import require_spark

if TYPE_CHECKING:
    from skipring.web.server import Dashboard

DASHBOARD_PACKAGES: Final = ("starlette", "uvicorn")  # the extra "dashboard" of pyproject.toml
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
REMOVALS: Final = 5  # Our guess: something that was killed just now may still be writing a file.
REMOVAL_PAUSE_S: Final = 0.2

Result = TypeVar("Result")


def perform(plan: DemoPlan, stage: Stage, *, stays: bool = False) -> End:
    """Tell the story, and stay until interrupted if asked to; KeyboardInterrupt if it was."""
    with stage:
        end = run(_interruptible(_perform(plan, stage, stays=stays)))
    if end is None:
        raise KeyboardInterrupt
    return end


def check_report(report: Path) -> None:
    """Refuse a place for the report where nothing can be written."""
    if report.is_dir() or not os.access(report.absolute().parent, os.W_OK):
        raise InputError(f"the report cannot be written to {report}; choose another place for it")


async def _interruptible(main: Coroutine[Any, Any, Result]) -> Result | None:
    """Run to the end, or to a signal: then all is cleared away, and None comes back."""
    task = asyncio.create_task(main)
    loop = asyncio.get_running_loop()
    is_interrupted = False

    def interrupt() -> None:
        nonlocal is_interrupted
        if not is_interrupted:  # once: another signal is not to break off the clearing away
            is_interrupted = True
            task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, interrupt)
    try:
        return await task
    except asyncio.CancelledError:
        return None


async def _perform(plan: DemoPlan, stage: Stage, *, stays: bool) -> End:
    async with AsyncExitStack() as stack:
        directory = Path(mkdtemp(prefix="skipring-demo-"))
        stack.callback(_remove, directory)
        options = ("--tick", f"{plan.tick_s}", "--chaos")
        processes = stack.enter_context(Processes(directory, options))
        ring = LiveRing(plan, directory, processes)
        await stack.enter_async_context(ring.supervised())
        dashboard = _dashboard(ring, stage)
        if dashboard is not None:
            await stack.enter_async_context(dashboard)
        await stage.show(Opening(plan, dashboard.url if dashboard is not None else None))
        faults = await _tell(plan, stage, ring, stack)
        end = End(faults, story.next_commands(ring.supervisor if stays else None))
        await stage.show(end)
        if stays:
            await asyncio.Event().wait()
    return end


def _dashboard(ring: LiveRing, stage: Stage) -> Dashboard | None:
    """Return a dashboard that shows a new address once it is opened; None without the extra."""
    if not all(find_spec(name) is not None for name in DASHBOARD_PACKAGES):
        return None
    from skipring.web.server import Dashboard  # noqa: PLC0415  (of the extra ``dashboard``)

    telling: set[asyncio.Task[None]] = set()

    def say_another() -> None:
        note = Note(f"the browser is in; for another one: {dashboard.url}")
        task = asyncio.get_running_loop().create_task(stage.show(note))
        telling.add(task)  # a task that nobody holds may vanish
        task.add_done_callback(telling.discard)

    dashboard = Dashboard([ring.supervisor], topic=story.TOPIC, chaos=True, on_entered=say_another)
    return dashboard


async def _tell(
    plan: DemoPlan, stage: Stage, ring: LiveRing, stack: AsyncExitStack
) -> tuple[str, ...]:
    """Tell all chapters; what was wrong, in sentences."""
    teller = Teller(plan, ring, stage.show)
    await teller.form()
    # From here on Spark starts beside the chapters, so that nobody waits for it at the end.
    analyst = await _analyst(plan, ring.directory, stack)
    await teller.damage()
    board = await teller.sum_up()
    faults = (*teller.faults, *([board.fault] if board.fault is not None else []))
    if faults or analyst is None:
        return faults
    await stage.show(story.titled(story.ANALYSING, plan))
    analysis = await analyse(analyst, ring, stage.show) if isinstance(analyst, Analyst) else analyst
    await stage.show(analysis)
    return (analysis.fault,) if analysis.fault is not None else ()


async def _analyst(
    plan: DemoPlan, directory: Path, stack: AsyncExitStack
) -> Analyst | Analysis | None:
    """Spark, or what to say if it is not installed; None if nobody wants it."""
    if plan.report is None:
        return None
    try:
        require_spark()
    except InputError as error:
        return Analysis(skipped=str(error))
    return await stack.enter_async_context(started_analyst(directory / "spark", plan.report))


def _remove(directory: Path) -> None:
    for _ in range(REMOVALS):
        rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        sleep(REMOVAL_PAUSE_S)
