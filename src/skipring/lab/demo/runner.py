"""Runner of the demo: executes the steps of the script and removes all processes and data."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, nullcontext
from operator import attrgetter
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, TypeVar

from skipring.errors import InputError, SkipringError
from skipring.lab.demo.cluster import TOPIC, DemoCluster
from skipring.lab.demo.output import DemoOutput
from skipring.lab.demo.script import (
    SPARK_STEP,
    STEPS,
    Condition,
    DemoFrame,
    DemoPlan,
    End,
    Event,
    Opening,
    Phase,
    Scoreboard,
    SparkResult,
    Step,
    StepResult,
    next_commands,
)
from skipring.lab.demo.spark_step import SparkProcess
from skipring.lab.demo.state import ClusterState
from skipring.lab.processes import Processes
from skipring.node.process import run
from skipring.spark.errors import require_spark

if TYPE_CHECKING:
    from skipring.web.server import Dashboard

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CHECK_S: Final = 0.2  # Guess: the interval in which a viewer notices a change.
SPARK_S: Final = 600.0  # Limit: 20 s on two idle cores; more than 180 s beside other Sparks.
REMOVALS: Final = 5  # Guess: a process that was just killed may still write a file.
REMOVAL_PAUSE_S: Final = 0.2

Result = TypeVar("Result")
Show = Callable[[Event], Awaitable[None]]


class UnhealedError(SkipringError):
    """Faults that remain at the deadline of a step."""

    def __init__(self, faults: tuple[str, ...]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


class StepRun:
    """Run of one step: its clock, and the frames that it shows."""

    def __init__(self, step: Step, plan: DemoPlan, cluster: DemoCluster, show: Show) -> None:
        self._step = step
        self._plan = plan
        self._cluster = cluster
        self._show = show
        self._history: list[int] = []
        self._seconds = 0.0  # time of the last frame, like the rounds
        self._rounds = 0

    async def run(self) -> StepResult:
        """Execute all phases, then wait until the ring is healthy; an error becomes a fault."""
        self._tick = await self._cluster.rounds() or 0
        self._began = monotonic()
        faults: tuple[str, ...] = ()
        try:
            async with (
                self._cluster.orders.running() if self._step.is_publishing else nullcontext()
            ):
                for phase in self._step.phases:
                    await self._run_phase(phase)
            await self._until(attrgetter("is_healthy"))
        except UnhealedError as error:
            faults = error.faults
        except SkipringError as error:
            faults = (str(error),)
        return await self._result(faults)

    async def _run_phase(self, phase: Phase) -> None:
        shown = await phase.action(self._cluster, self._plan)
        if shown is not None:
            await self._show(shown)
        end = monotonic() + phase.ticks * self._plan.tick_s
        while monotonic() < end:
            await self._show_frame(await self._cluster.check())
            await asyncio.sleep(CHECK_S)
        if phase.until is not None:
            state = await self._until(phase.until)
            numbers = {"members": state.layout.members, "published": state.published}
            await self._show(phase.done.format(**numbers))

    async def _until(self, holds: Condition) -> ClusterState:
        """Show frames until the condition holds at two checks; raise UnhealedError at the deadline.

        Orders published during the wait do not count.
        """
        published = list(self._cluster.orders.acknowledged)
        held_before = False
        while True:
            state = await self._cluster.check(published)
            if held_before and holds(state):
                return state
            held_before = holds(state)
            await self._show_frame(state)
            if monotonic() - self._began > self._plan.deadline_s:
                raise UnhealedError(state.faults or ("the ring was healthy only for a moment",))
            await asyncio.sleep(CHECK_S)

    async def _show_frame(self, state: ClusterState) -> None:
        self._history.append(len(state.faults))
        self._seconds = monotonic() - self._began
        tick = await self._cluster.rounds()
        expected = round(self._seconds / self._plan.tick_s)  # if the node does not answer
        self._rounds = expected if tick is None else tick - self._tick
        frame = DemoFrame(
            step=self._step,
            seconds=self._seconds,
            rounds=self._rounds,
            state=state,
            history=tuple(self._history),
        )
        await self._show(frame)

    async def _result(self, faults: tuple[str, ...]) -> StepResult:
        state = await self._cluster.check()
        return StepResult(
            step=self._step,
            seconds=self._seconds,
            rounds=self._rounds,
            members=state.layout.members,
            published=state.published,
            lost=state.lost,
            faults=faults,
        )


class ScriptRunner:
    """Runner of the steps, one after the other, up to the first that fails."""

    def __init__(self, plan: DemoPlan, cluster: DemoCluster, show: Show) -> None:
        self.results: list[StepResult] = []
        self._plan = plan
        self._cluster = cluster
        self._show = show

    @property
    def faults(self) -> tuple[str, ...]:
        """Return a sentence for each fault of the steps so far."""
        return tuple(
            f"step {result.step.number}: {fault}"
            for result in self.results
            for fault in result.faults
        )

    async def run(self, steps: Sequence[Step]) -> None:
        """Run steps; none follows a step with faults."""
        for step in steps:
            if not self.faults:
                filled = step.filled(self._plan)
                await self._show(filled)
                result = await StepRun(filled, self._plan, self._cluster, self._show).run()
                self.results.append(result)
                await self._show(result)

    async def sum_up(self) -> Scoreboard:
        """Show the results of all steps and the state of all nodes.

        The scrubber may find lost records of a node only now; anti-entropy then restores them.
        """
        state = await self._cluster.check()
        deadline = monotonic() + self._plan.deadline_s
        while not (state.is_healthy or self.faults) and monotonic() < deadline:
            await asyncio.sleep(CHECK_S)
            state = await self._cluster.check()
        board = Scoreboard(tuple(self.results), state.nodes, self._cluster.pids())
        await self._show(board)
        return board


async def analyse(spark: SparkProcess, cluster: DemoCluster, show: Show) -> SparkResult:
    """Run the Spark pipeline on the topic; return its result."""
    began = monotonic()
    rows: dict[str, int] = {}
    await show("Spark reads the topic; this takes some seconds")
    try:
        async with asyncio.timeout(SPARK_S):
            async for report in spark.work():
                if report.progress is not None:
                    await show(report.progress)
                rows = report.rows or rows
            await spark.finish()
    except TimeoutError:
        return SparkResult(failed=f"Spark did not end within {SPARK_S:.0f} s")
    except SkipringError as error:
        return SparkResult(failed=f"Spark: {error}")
    return SparkResult(
        report=spark.written_report,
        seconds=monotonic() - began,
        rows=rows,
        published=len(cluster.orders.acknowledged),
    )


# --- the whole demo --------------------------------------------------------------------


def run_demo(plan: DemoPlan, output: DemoOutput, *, stays: bool = False) -> End:
    """Run the demo; with ``stays``, wait for a signal. Raise KeyboardInterrupt after a signal."""
    with output:
        end = run(_interruptible(_run_demo(plan, output, stays=stays)))
    if end is None:
        raise KeyboardInterrupt
    return end


def check_report(report: Path) -> None:
    """Raise InputError if the report cannot be written to this file."""
    if report.is_dir() or not os.access(report.absolute().parent, os.W_OK):
        raise InputError(f"the report cannot be written to {report}; choose another file")


async def _interruptible(main: Coroutine[Any, Any, Result]) -> Result | None:
    """Run to the end, or until a signal; return None after a signal and the cleanup."""
    task = asyncio.create_task(main)
    loop = asyncio.get_running_loop()
    is_interrupted = False

    def interrupt() -> None:
        nonlocal is_interrupted
        if not is_interrupted:  # handled once: a second signal must not stop the cleanup
            is_interrupted = True
            task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, interrupt)
    try:
        return await task
    except asyncio.CancelledError:
        return None


async def _run_demo(plan: DemoPlan, output: DemoOutput, *, stays: bool) -> End:
    async with AsyncExitStack() as stack:
        directory = Path(mkdtemp(prefix="skipring-demo-"))
        stack.callback(_remove, directory)
        options = ("--tick", f"{plan.tick_s}", "--chaos")
        processes = stack.enter_context(Processes(directory, options))
        cluster = DemoCluster(plan.n, plan.seed, directory, processes)
        await stack.enter_async_context(cluster.supervised())
        url = None
        if plan.has_dashboard:
            url = (await stack.enter_async_context(_dashboard(cluster, output))).url
        await output.show(Opening(plan, url))
        faults = await run_script(plan, output, cluster)
        end = End(faults, next_commands(cluster.supervisor if stays else None))
        await output.show(end)
        if stays:
            await asyncio.Event().wait()
    return end


def _dashboard(cluster: DemoCluster, output: DemoOutput) -> Dashboard:
    """Return a dashboard that shows a new address once it is opened."""
    from skipring.web.server import Dashboard  # noqa: PLC0415  (of the extra ``dashboard``)

    tasks: set[asyncio.Task[None]] = set()  # the loop has only weak references to tasks

    def show_address() -> None:
        text = f"the dashboard is open; address for another browser: {dashboard.url}"
        task = asyncio.get_running_loop().create_task(output.show(text))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    dashboard = Dashboard([cluster.supervisor], topic=TOPIC, chaos=True, on_entered=show_address)
    return dashboard


async def run_script(plan: DemoPlan, output: DemoOutput, cluster: DemoCluster) -> tuple[str, ...]:
    """Run all steps; return a sentence for each fault."""
    runner = ScriptRunner(plan, cluster, output.show)
    await runner.run(STEPS[:1])
    # Spark starts during the other steps, so the last step does not wait for it.
    spark = _start_spark(plan, cluster)
    await runner.run(STEPS[1:])
    board = await runner.sum_up()
    faults = (*runner.faults, *([board.fault] if board.fault is not None else []))
    if faults or spark is None:
        return faults
    await output.show(SPARK_STEP.filled(plan))
    result = spark if isinstance(spark, SparkResult) else await analyse(spark, cluster, output.show)
    await output.show(result)
    return (result.fault,) if result.fault is not None else ()


def _start_spark(plan: DemoPlan, cluster: DemoCluster) -> SparkProcess | SparkResult | None:
    """Start Spark; return a result if it is not installed, and None if the plan has no report."""
    if plan.report is None:
        return None
    try:
        require_spark()
    except InputError as error:
        return SparkResult(skipped=str(error))
    return SparkProcess(cluster.processes, cluster.supervisor, TOPIC, plan.report)


def _remove(directory: Path) -> None:
    for _ in range(REMOVALS):
        rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        sleep(REMOVAL_PAUSE_S)
