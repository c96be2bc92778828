"""Output of the demo: a repainted terminal, plain text, or one JSON value at the end."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Self

from msgspec import json
from msgspec.structs import asdict
from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from skipring.core.limits import listed
from skipring.lab.demo.script import (
    DemoFrame,
    End,
    Event,
    Opening,
    ProcessTable,
    Scoreboard,
    SparkResult,
    Step,
    StepResult,
)
from skipring.view.canvas import Size
from skipring.view.panel import RingContent, RingPanel
from skipring.view.text import DEAD_STYLE, Glyphs, glyphs_for
from skipring.world.legitimacy import LIVE_LAYERS, Layer

COLUMNS_MAX: Final = 100  # Guess: longer lines are hard to read.
COLUMNS_MIN: Final = 78
ROWS_MIN: Final = 24
ROWS_PLAIN: Final = 24  # size of a picture without a terminal
ROWS_BESIDE_PICTURE: Final = 8  # heading, its text, the result and the cursor
PROCESSES_MAX: Final = 20  # Guess: a viewer does not read the addresses of more processes.
FAULTS_MAX: Final = 4  # Guess: the first faults describe the problem.
FAULTS_PER_NODE: Final = 8  # Measured: about the number in the scrambled ring.
LAYERS: Final = tuple(  # the layers that the demo checks
    layer for layer in Layer if layer not in {*LIVE_LAYERS, Layer.CHANNELS}
)

Sleep = Callable[[float], Awaitable[None]]


class DemoOutput(AbstractContextManager["DemoOutput", None]):
    """Output of the events of a run, inside a ``with`` block."""

    @abstractmethod
    async def show(self, event: Event) -> None:
        """Show one event."""

    def __exit__(self, *_: object) -> None:
        """Restore the terminal."""


def can_repaint(console: Console) -> bool:
    """Return True if the console is a terminal that can repaint and is large enough."""
    has_room = console.width >= COLUMNS_MIN and console.height >= ROWS_MIN
    return console.is_terminal and not console.is_dumb_terminal and has_room


class PlainOutput(DemoOutput):
    """Plain text: the damage of each step as a picture, then a line for each change."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.glyphs = glyphs_for(console.encoding)
        self._last: object = None  # content of the last line about the ring

    @property
    def size(self) -> Size:
        """Return the size available for an event."""
        return Size(min(max(self.console.width, COLUMNS_MIN), COLUMNS_MAX), self._rows())

    def _rows(self) -> int:
        return ROWS_PLAIN

    def write(self, content: RenderableType) -> None:
        """Print without trailing spaces."""
        with self.console.capture() as capture:
            self.console.print(content, width=self.size.columns)
        for line in capture.get().splitlines():
            self.console.out(line.rstrip(), highlight=False)

    async def show(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, DemoFrame):
            self._show_frame(event)
            return
        if isinstance(event, Opening):
            self.console.print(_address(event.url), soft_wrap=True)
        for part in render(event, self.glyphs):
            self.write(part)
        for line in copyable(event):
            self.console.print(line, soft_wrap=True)

    def _show_frame(self, frame: DemoFrame) -> None:
        state = frame.state
        is_first_ring = frame.step.number == 1 and state.is_healthy
        if is_first_ring or (frame.is_first and not state.is_healthy):
            self.write(frame_picture(frame, self.size, self.glyphs))
        content = frame.step.number, state.violations_by_layer, state.in_sync
        if content != self._last or state.is_healthy:
            self.write(frame_line(frame, self.size.columns, self.glyphs))
        self._last = content


class LiveOutput(PlainOutput):
    """Terminal: each frame is painted over the last, with pauses for the reader."""

    def __init__(self, console: Console, pace_s: float, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(console)
        self._pace_s = pace_s
        self._sleep = sleep
        self._live: Live | None = None

    def __exit__(self, *_: object) -> None:
        """Show the cursor again."""
        self._stop_painting()

    def _rows(self) -> int:
        return self.console.height

    def write(self, content: RenderableType) -> None:
        """Print in lines of readable length."""
        self.console.print(content, width=self.size.columns)

    async def show(self, event: Event) -> None:
        """Show one event and pause for the viewer to read it."""
        if not isinstance(event, DemoFrame):
            self._stop_painting()
        await super().show(event)
        await self._sleep(self._pace_s * PAUSES.get(type(event), 0))

    def _show_frame(self, frame: DemoFrame) -> None:
        if self._live is None:
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        self._live.update(frame_picture(frame, self.size, self.glyphs), refresh=True)

    def _stop_painting(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


# Guess: the time to read each, as a multiple of the pace.
PAUSES: Final[Mapping[type, int]] = {
    Step: 4,
    ProcessTable: 3,
    Scoreboard: 3,
    Opening: 2,
    StepResult: 2,
}


# --- frames ----------------------------------------------------------------------------


def frame_picture(frame: DemoFrame, size: Size, glyphs: Glyphs) -> RenderableType:
    """Return the ring at a moment, with its violations."""
    state, members = frame.state, frame.state.layout.members
    known = Text(f"supervisor knows {state.layout.recorded} of {members}", "dim")
    if not state.has_supervisor:
        known = Text("no supervisor", DEAD_STYLE)
    health = Text("healthy", "bold green")
    if not state.is_healthy:
        health = Text(f"degraded, faults: {frame.history[-1]}", "bold red")
    in_sync = f"{state.in_sync} of {members} have all {state.published} orders"
    content = RingContent(
        layout=state.layout,
        wrong={layer: state.violations_by_layer[layer] for layer in LAYERS},
        history=frame.history,
        history_name="faults, by check",
        centre=[Text(f"{frame.seconds:.1f} s", "bold"), health, known],
        below=[
            Text(f"round {frame.rounds}"),
            Text(in_sync if state.published else "no orders yet"),
        ],
    )
    panel = RingPanel(size.columns, size.rows - ROWS_BESIDE_PICTURE, glyphs)
    return panel.draw(content, panel.rows)


def frame_line(frame: DemoFrame, columns: int, glyphs: Glyphs) -> Text:
    """Return a moment as one line, with headings above the first of a step."""
    state, violations = frame.state, frame.state.violations_by_layer
    counts = "".join(f"{violations[layer] or '-':>{_width(layer)}}" for layer in LAYERS)
    in_sync = f"{state.in_sync} of {state.layout.members}"
    line = f"{frame.seconds:>7.1f} s {frame.rounds:>6}{counts}  {in_sync:>9}   "
    # One scale for all frames and steps makes bars comparable.
    room, full = columns - len(line), FAULTS_PER_NODE * max(state.layout.members, 1)
    bar = glyphs.bars[-1] * min(-(-frame.history[-1] * room // full), room)
    text = line + ("healthy" if state.is_healthy else bar)
    if not frame.is_first:
        return Text(text)
    headings = "".join(f"{layer:>{_width(layer)}}" for layer in LAYERS)
    return Text(f"     time  round{headings}    in sync   faults\n{text}")


def _width(layer: Layer) -> int:
    return len(layer) + 2


# --- other events ----------------------------------------------------------------------


def render(event: Event, glyphs: Glyphs) -> list[RenderableType]:  # noqa: PLR0911  (a table of cases)
    """Return the parts of any event but a frame, as lines that may be wrapped."""
    match event:
        case Opening():
            return _opening(event)
        case Step():
            title = Text(f"{event.number}  {event.title}", "bold cyan")
            return [Text(), _rule(title), Text(event.action), Text(event.observe, "italic")]
        case ProcessTable():
            return _process_table(event)
        case str():
            return [Text(f"{glyphs.edge * 2} {event}", "yellow")] if event else []
        case StepResult():
            return [_result(event, glyphs)]
        case Scoreboard():
            return _scoreboard(event, glyphs)
        case SparkResult():
            return [_spark_result(event, glyphs)]
        case End():
            return [Text(), _verdict(event, glyphs), Text("Try next:")]
        case DemoFrame():
            return []


def copyable(event: Event) -> list[Text]:
    """Return the lines below an event that a viewer copies; they are never wrapped."""
    match event:
        case SparkResult(report=report) if report is not None:
            return [Text.assemble("The report stays: ", (str(report), "bold cyan"))]
        case End(commands=commands):
            return [Text(f"  {command}", "cyan") for command in commands]
        case _:
            return []


def _opening(opening: Opening) -> list[RenderableType]:
    plan = opening.plan
    what = Text.assemble(
        ("skipring", "bold"),
        " is publish/subscribe without a broker: subscribers form a ring with shortcuts, forward "
        "publications to each other, and repair the ring from any state.",
    )
    how = (
        f"{plan.n} of them run here as processes, on loopback only, with a round every "
        f"{plan.tick_s:g} s (seed {plan.seed}). The demo damages them."
    )
    return [Text(), what, Text(how, "dim")]


def _process_table(event: ProcessTable) -> list[RenderableType]:
    table = _table("process", "pid", "address", "data")
    for name, pid, address in event.rows[:PROCESSES_MAX]:
        table.add_row(name, str(pid), address, name)
    more = len(event.rows) - PROCESSES_MAX
    rest = [Text(f"and {more} more nodes", "dim")] if more > 0 else []
    return [Text(), table, *rest, Text(f"data below {event.directory}", "dim"), Text()]


def _result(result: StepResult, glyphs: Glyphs) -> Text:
    rounds = "1 round" if result.rounds == 1 else f"{result.rounds} rounds"
    duration = f"{result.seconds:.1f} s ({rounds})"
    if not result.is_good:
        verdict = (f"{glyphs.wrong} not healed after {duration}", "bold red")
        return Text.assemble(verdict, f": {listed(result.faults, FAULTS_MAX)}")
    done = "healed" if result.step.is_damage else "done"
    return Text.assemble(
        (f"{glyphs.right} {done} in {duration}", "bold green"),
        f": {result.members} of {result.members} in the ring, {result.published} publications, "
        f"{result.lost} lost",
    )


def _scoreboard(board: Scoreboard, glyphs: Glyphs) -> list[RenderableType]:
    steps = _table("step", "time", "rounds", "orders", "lost")
    for result in board.results:
        sign = Text(glyphs.right, "green") if result.is_good else Text(glyphs.wrong, "bold red")
        title = Text.assemble(sign, f" {result.step.number} {result.step.title}")
        figures = (f"{result.seconds:.1f} s", result.rounds, result.published, result.lost)
        steps.add_row(title, *map(str, figures))
    nodes = _table("node", "pid", "label", "orders", "root hash")
    for node in board.nodes:
        pid = str(board.pids.get(node.node, "-"))
        nodes.add_row(node.node, pid, node.label, str(node.stored), Text(node.root, "bold"))
    verdict = Text(
        f"{glyphs.right} in sync: all {len(board.nodes)} nodes have the same root hash",
        "bold green",
    )
    if board.fault is not None:
        verdict = Text(f"{glyphs.wrong} {board.fault}", "bold red")
    return [Text(), _rule(Text("Scoreboard", "bold cyan")), Group(steps, Text(), nodes), verdict]


def _spark_result(result: SparkResult, glyphs: Glyphs) -> Text:
    if result.skipped is not None:
        return Text(f"Left out: {result.skipped}", "yellow")
    if result.fault is not None:
        return Text(f"{glyphs.wrong} {result.fault}", "bold red")
    rows = ", ".join(f"{name} {count:,}" for name, count in result.rows.items())
    verdict = (f"{glyphs.right} every order once, in {result.seconds:.1f} s", "bold green")
    return Text.assemble(verdict, f": rows of the tables: {rows}")


def _verdict(end: End, glyphs: Glyphs) -> Text:
    if not end.is_good:
        return Text(f"{glyphs.wrong} Failed: {listed(end.faults, FAULTS_MAX)}", "bold red")
    return Text(f"{glyphs.right} It healed each time, and nothing was lost.", "bold green")


def _rule(title: Text) -> Rule:
    return Rule(title, align="left", style="cyan")


def _table(*headings: str) -> Table:
    table = Table(box=SIMPLE, pad_edge=False, show_edge=False, header_style="bold")
    for heading in headings:
        is_number = heading in {"pid", "time", "rounds", "orders", "lost"}
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=True)
    return table


# --- JSON ------------------------------------------------------------------------------

RESULT_KEYS: Final = ("rounds", "members", "published", "lost", "faults")


class JsonOutput(DemoOutput):
    """One line of JSON after the last event."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._found: dict[str, Any] = {"chapters": [], "nodes": [], "analysis": None}

    def __enter__(self) -> Self:
        return self

    async def show(self, event: Event) -> None:
        """Add one event; after the last, write the value."""
        match event:
            case Opening(plan=plan):
                self._found |= {"n": plan.n, "seed": plan.seed, "tick_s": plan.tick_s}
            case StepResult():
                self._found["chapters"].append(
                    {
                        **{name: getattr(event, name) for name in RESULT_KEYS},
                        "number": event.step.number,
                        "title": event.step.title,
                        "good": event.is_good,
                        "seconds": round(event.seconds, 3),
                    }
                )
            case Scoreboard():
                self._found["nodes"] = [
                    asdict(node) | {"pid": event.pids.get(node.node)} for node in event.nodes
                ]
                self._found["roots"] = sorted(event.roots)
            case SparkResult():
                self._found["analysis"] = {
                    "report": str(event.report) if event.report is not None else None,
                    "seconds": round(event.seconds, 3),
                    "rows": dict(event.rows),
                    "skipped": event.skipped,
                    "fault": event.fault,
                }
            case End():
                self._found |= {"good": event.is_good, "faults": event.faults}
                self._write(json.encode(self._found, order="sorted").decode())


def _address(url: str | None) -> Text:
    if url is None:
        return Text("In the browser too, with: pip install 'skipring[dashboard]'")
    return Text.assemble("In the browser: ", (url, "bold cyan"))
