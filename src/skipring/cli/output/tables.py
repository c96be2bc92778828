"""Terminal output: consoles, tables, diagnoses and simulations.

Commands import it in their bodies, because importing rich takes longer than printing help.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Final

from rich.console import Console, Group, JustifyMethod, OverflowMethod, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from skipring.admin.diagnosis import LAYERS, REPAIRS, Diagnosis, Explanation
from skipring.sim.engine import World
from skipring.sim.runner import Report, Simulation
from skipring.view.panel import RIGHT_STYLE, WRONG_STYLE, RingContent, RingPanel
from skipring.view.text import Glyphs, glyphs_for, layout
from skipring.wire.rpc import ChangeEntry
from skipring.world.legitimacy import LIVE_LAYERS, Layer, Violation, census

NONE: Final = "-"  # an empty cell of a table
PIPE_COLUMNS: Final = 1000  # a pipe gets no cut or wrapped lines


def wide_console() -> Console:
    """Return the console of stdout; a pipe has no line limit."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_COLUMNS)


def time_of_day() -> str:
    """Return the local time of day."""
    return f"{datetime.now().astimezone():%H:%M:%S}"


def plain_table(headings: Iterable[str], glyphs: Glyphs, *, numbers: Collection[str] = ()) -> Table:
    """Return an empty table without lines; the columns ``numbers`` are right-aligned."""
    cut: OverflowMethod = "ellipsis" if glyphs.has_dots else "crop"
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for heading in headings:
        justify: JustifyMethod = "right" if heading in numbers else "left"
        table.add_column(heading, no_wrap=True, overflow=cut, justify=justify)
    return table


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# --- diagnosis of a topic --------------------------------------------------------------

VIOLATIONS_MAX: Final = 20  # Guess: an operator does not read more violations of one layer.


def print_diagnosis(topic: str, diagnosis: Diagnosis) -> None:
    """Print whether a topic is healthy, and if not, why and what to do."""
    console = Console(highlight=False, soft_wrap=True)
    members = f"{_count(diagnosis.members, 'member')}, "
    members += _count(diagnosis.publications, "publication")
    if diagnosis.is_healthy:
        console.print(Text(f"{topic}: healthy ({members}, all in sync)", RIGHT_STYLE))
    else:
        state = f"degraded ({members})" if diagnosis.members else "no members"
        console.print(Text(f"{topic}: {state}", WRONG_STYLE))
    for line in _violation_lines(diagnosis.violations):
        console.print(line)
    for sentence in diagnosis.advice:
        console.print(Text(f"-> {sentence}"))
    for sentence in diagnosis.warnings:
        console.print(Text(f"warning: {sentence}", "yellow"))


def _violation_lines(violations: Sequence[Violation]) -> Iterator[Text]:
    """Yield the violations, layer by layer."""
    by_layer: dict[Layer, list[Violation]] = {}
    for violation in violations:
        by_layer.setdefault(violation.layer, []).append(violation)
    for layer, found in by_layer.items():
        yield Text(f"{LAYERS[layer]}:", "bold")
        for violation in found[:VIOLATIONS_MAX]:
            yield Text(f"  {violation.text.removeprefix('database: ')}")
        if len(found) > VIOLATIONS_MAX:
            yield Text(f"  and {len(found) - VIOLATIONS_MAX} more", "dim")


# --- explanation of a node -------------------------------------------------------------

TIME_MAX: Final = 1 << 57  # the year 6536; a node may send any number
# Guesses: the number of changes that fit on a screen; a pipe gets all.
ROWS_OF_A_CHANGE: Final = 3
ROWS_AROUND: Final = 8
CHANGES_MIN: Final = 4


def print_explanation(explanation: Explanation) -> None:
    """Print the state of a node, its last changes, its violations and their repair."""
    console = wide_console()
    shown = changes_in(console.height) if console.is_terminal else len(explanation.journal)
    console.print(explanation_view(explanation, glyphs_for(console.encoding), shown))


def changes_in(rows: int) -> int:
    """Return the number of changes that fit into this number of rows."""
    return max((rows - ROWS_AROUND) // ROWS_OF_A_CHANGE, CHANGES_MIN)


def explanation_view(explanation: Explanation, glyphs: Glyphs, shown: int) -> RenderableType:
    """Return the state of a node, its last changes as a table, its violations and their repair."""
    return Group(
        Text(f"{explanation.node}: {explanation.standing}", "bold"),
        _verdict(explanation, glyphs),
        *_timeline(explanation, glyphs, shown),
        *_repairs(explanation.violations),
    )


def _verdict(explanation: Explanation, glyphs: Glyphs) -> Text:
    if explanation.is_well:
        return Text(f"{glyphs.right} nothing is wrong with it", RIGHT_STYLE)
    if not explanation.violations:
        return Text(f"{glyphs.wrong} its state is unknown", WRONG_STYLE)
    layers = dict.fromkeys(LAYERS[violation.layer] for violation in explanation.violations)
    return Text(f"{glyphs.wrong} wrong: {', '.join(layers)}", WRONG_STYLE)


def _timeline(explanation: Explanation, glyphs: Glyphs, shown: int) -> Iterator[RenderableType]:
    if explanation.tick is None:
        return
    entries = explanation.journal[-shown:] if shown else ()
    before = len(explanation.journal) - len(entries)
    more = f" ({before} earlier ones: --json)" if before else ""
    yield Text(f"now at tick {explanation.tick}; its last changes, the newest last{more}:\n")
    table = plain_table(("when", "what", f"from {glyphs.arrow} to", "which rule, and why"), glyphs)
    for column in table.columns[2:]:
        column.no_wrap, column.overflow = False, "fold"
    for event, changes in groupby(entries, key=_event):
        _add_rows(table, event, list(changes), glyphs)
    yield table


Event = tuple[str, int, str, str | None]


def _event(entry: ChangeEntry) -> Event:
    """Return the values that changes of the same event share."""
    at = datetime.fromtimestamp(entry.time % TIME_MAX / 1e6, UTC).astimezone()
    return f"{at:%H:%M:%S}", entry.tick, entry.cause, entry.sender


def _add_rows(table: Table, event: Event, changes: list[ChangeEntry], glyphs: Glyphs) -> None:
    """Add a row for each change; leave out the values that it shares with the row above."""
    at, tick, cause, sender = event
    by = f"{cause} from {sender}: " if sender is not None else f"{cause}: "
    why = None
    for change in changes:
        is_first, is_same = why is None, change.why == why
        why = change.why
        table.add_row(
            Text(f"{at}\ntick {tick}" if is_first else "", "dim"),
            Text(change.field, "bold"),
            Text.assemble(f"{change.before} {glyphs.arrow} ", (change.after, "bold")),
            Text.assemble(
                (by if is_first else "", "cyan"), Text("the same", "dim") if is_same else Text(why)
            ),
        )


def _repairs(violations: Sequence[Violation]) -> Iterator[Text]:
    if not violations:
        return
    yield Text("\nwrong now:", WRONG_STYLE)
    yield from _violation_lines(violations)
    yield Text("repair:", "bold")
    for layer in dict.fromkeys(violation.layer for violation in violations):
        yield Text.assemble((f"-> {LAYERS[layer]}: ", "bold"), f"{REPAIRS[layer]}.")


# --- simulation ------------------------------------------------------------------------

FRAME_S: Final = 0.1  # Guess: more frames per second are not visible.
PACE_S: Final = 0.1  # Guess: each round is visible, and a run takes some seconds.
SLOW_ROUNDS: Final = 60  # Guess: rounds shown one by one; later rounds run without a pause.
# Measured: drawing a ring of 10,000 takes a second, so it takes at most this share of a run.
DRAWING_SHARE: Final = 0.5


def run_with_progress(simulation: Simulation, start: str, pace_s: float | None = None) -> Report:
    """Run a simulation and draw the ring, then print the outcome."""
    console = Console(highlight=False)
    view = RunView(simulation, start)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        pace_s = PACE_S if pace_s is None else pace_s
        report = simulation.run(lambda world: view.paint(world, live, pace_s))
    closure = simulation.scenario.closure if report.closure_ok is not None else 0
    page = RingPanel.of(console)
    console.print(view.frame(simulation.world, page, closure))
    console.print(_outcome(report, page.glyphs), _figures(report))
    for violation in report.violations:
        console.print(Text(f"  {violation}", "red"))
    return report


class RunView:
    """Pictures of a run, painted round by round."""

    def __init__(self, simulation: Simulation, start: str) -> None:
        scenario, nodes = simulation.scenario, len(simulation.world.subscribers)
        self._about = f"{nodes} subscribers, mode {scenario.mode}, seed {scenario.seed}"
        self._start = start
        self._history: list[int] = []  # number of violations, by picture
        self._next_s = 0.0  # time of the next picture

    def paint(self, world: World, live: Live, pace_s: float) -> None:
        """Paint a round: each of the first rounds, later ones at the frame rate."""
        began = time.monotonic()
        is_slow = world.round <= SLOW_ROUNDS and pace_s > 0
        if not is_slow and began < self._next_s:
            return
        live.update(self.frame(world, RingPanel.of(live.console)), refresh=True)
        took = time.monotonic() - began
        self._next_s = began + max(FRAME_S, took / DRAWING_SHARE)
        if is_slow:
            time.sleep(max(pace_s - took, 0))

    def frame(self, world: World, page: RingPanel, closure: int = 0) -> RenderableType:
        """Return the ring as it is now, below two lines that describe the run."""
        rounds = f"round {world.round}" + (f", {closure} of them closure" if closure else "")
        title = Text.assemble((rounds, "bold"), f"   {self._about}", no_wrap=True, overflow="crop")
        start = Text(self._start, "dim", no_wrap=True, overflow="crop")
        return Group(title, start, page.draw(self._content(world), page.rows - 2))

    def _content(self, world: World) -> RingContent:
        wrong, ring = census(world), layout(world)
        total = wrong.total()
        self._history.append(total)
        state = Text(f"{total} wrong", WRONG_STYLE) if total else Text("healed", "bold green")
        return RingContent(
            layout=ring,
            wrong={layer: wrong[layer] for layer in Layer if layer not in LIVE_LAYERS},
            history=self._history,
            history_name="wrong, by round",
            centre=[
                Text(f"round {world.round}", "bold"),
                state,
                Text(f"supervisor knows {ring.recorded} of {ring.members}", "dim"),
            ],
        )


def _outcome(report: Report, glyphs: Glyphs) -> Text:
    if not report.converged:
        return Text(f"{glyphs.wrong} not converged", WRONG_STYLE)
    rounds = (
        f"explicit after {report.rounds_explicit} rounds, strict after {report.rounds_strict}, "
        f"all in sync after {report.rounds_publications}"
    )
    if report.closure_ok is False:
        return Text(f"{glyphs.wrong} converged ({rounds}) but did not stay so", WRONG_STYLE)
    return Text(f"{glyphs.right} converged: {rounds}", f"bold {RIGHT_STYLE}")


def _figures(report: Report) -> Table:
    """Return the cost of a run, in total and per node."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(justify="right", style="bold")
    grid.add_row(
        f"{report.messages:,}", f"messages, {report.messages / max(report.n, 1):.0f} a node"
    )
    grid.add_row(f"{report.supervisor_requests:,}", "requests to the supervisor")
    if report.published:
        ways = f"by broadcast {report.delivered_by_spreading:,}"
        ways += f", by repair {report.delivered_by_repair:,}"
        grid.add_row(f"{report.published:,}", f"published during the run, delivered {ways}")
    return grid
