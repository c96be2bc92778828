"""Progress of a simulation on a terminal, round by round, and its result."""

from __future__ import annotations

import time
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from skipring.cli.ring_page import (
    RIGHT_STYLE,
    WRONG_STYLE,
    Look,
    RingPanel,
    ring_page_with_levels,
)
from skipring.sim.engine import World
from skipring.sim.runner import Report, Simulation
from skipring.view.text import Glyphs, layout
from skipring.world.legitimacy import LIVE_LAYERS, Layer, census

REPAINT_S: Final = 0.1  # Guess: more frames per second are not visible.
PACE_S: Final = 0.1  # Guess: each round is visible, and a run takes some seconds.
SHOWN_ROUNDS: Final = 60  # Guess: rounds shown one by one; later rounds run without a pause.
# A drawing of a ring of 10,000 takes a second, so drawing takes at most this share of a run.
LOOKING_SHARE: Final = 0.5


def run_with_progress(simulation: Simulation, start: str, pace_s: float | None = None) -> Report:
    """Run a simulation and draw the ring, then print the outcome."""
    console = Console(highlight=False)
    pace_s = PACE_S if pace_s is None else pace_s
    view = RunView(simulation, start)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        report = simulation.run(_Painter(view, live, pace_s).show)
    closure = simulation.scenario.closure if report.closure_ok is not None else 0
    console.print(view.frame(simulation.world, RingPanel.of(console), closure))
    console.print(summary(report, RingPanel.of(console).glyphs))
    return report


class _Painter:
    """Painter of the rounds of a run: the first ones each, later ones at the frame rate."""

    def __init__(self, view: RunView, live: Live, pace_s: float) -> None:
        self._view = view
        self._live = live
        self._pace_s = pace_s
        self._next = 0.0  # time of the next frame

    def show(self, world: World) -> None:
        """Paint a round, unless the next frame is not due."""
        began = time.monotonic()
        is_slow = world.round <= SHOWN_ROUNDS and self._pace_s > 0
        if not is_slow and began < self._next:
            return
        self._live.update(self._view.frame(world, RingPanel.of(self._live.console)), refresh=True)
        took = time.monotonic() - began
        self._next = began + max(REPAINT_S, took / LOOKING_SHARE)
        if is_slow:
            time.sleep(max(self._pace_s - took, 0))


class RunView:
    """Sequence of pictures of a run."""

    def __init__(self, simulation: Simulation, start: str) -> None:
        scenario, nodes = simulation.scenario, len(simulation.world.subscribers)
        self._about = f"{nodes} subscribers, mode {scenario.mode}, seed {scenario.seed}"
        self._start = start
        self._history: list[int] = []  # number of violations, by picture

    def frame(self, world: World, page: RingPanel, closure: int = 0) -> RenderableType:
        """Return the ring as it is now, below two lines that describe the run."""
        rounds = f"round {world.round}" + (f", {closure} of them closure" if closure else "")
        title = Text.assemble((rounds, "bold"), f"   {self._about}", no_wrap=True, overflow="crop")
        start = Text(self._start, "dim", no_wrap=True, overflow="crop")
        return Group(title, start, ring_page_with_levels(self._look(world), page, page.rows - 2))

    def _look(self, world: World) -> Look:
        wrong, portrait = census(world), layout(world)
        self._history.append(wrong.total())
        return Look(
            portrait=portrait,
            wrong={layer: wrong[layer] for layer in Layer if layer not in LIVE_LAYERS},
            history=self._history,
            history_name="wrong, as rounds pass",
            centre=[
                Text(f"round {world.round}", "bold"),
                _verdict(wrong.total()),
                Text(f"supervisor knows {portrait.recorded} of {portrait.members}", "dim"),
            ],
        )


def _verdict(wrong: int) -> Text:
    return Text(f"{wrong} wrong", WRONG_STYLE) if wrong else Text("healed", "bold green")


def _per_node(count: int, nodes: int) -> str:
    return f"{count / max(nodes, 1):.0f}"


# --- outcome ---------------------------------------------------------------------------


def summary(report: Report, glyphs: Glyphs) -> RenderableType:
    """Return how a run ended, its cost, and its violations."""
    wrong = [Text(f"  {violation}", "red") for violation in report.violations]
    return Group(_outcome(report, glyphs), _figures(report), *wrong)


def _outcome(report: Report, glyphs: Glyphs) -> Text:
    if not report.converged:
        return Text(f"{glyphs.wrong} not converged", WRONG_STYLE)
    rounds = (
        f"explicit after {report.rounds_explicit} rounds, strict after {report.rounds_strict}, "
        f"everybody has everything after {report.rounds_publications}"
    )
    if report.closure_ok is False:
        return Text(f"{glyphs.wrong} converged ({rounds}) but did not stay so", WRONG_STYLE)
    return Text(f"{glyphs.right} converged: {rounds}", f"bold {RIGHT_STYLE}")


def _figures(report: Report) -> Table:
    """Return the cost of a run, in total and per node."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(justify="right", style="bold")
    grid.add_row(f"{report.messages:,}", f"messages, {_per_node(report.messages, report.n)} a node")
    grid.add_row(f"{report.supervisor_requests:,}", "requests to the supervisor")
    if report.published:
        ways = f"by spreading {report.delivered_by_spreading:,}"
        ways += f", by repair {report.delivered_by_repair:,}"
        grid.add_row(f"{report.published:,}", f"published while it ran, delivered {ways}")
    return grid
