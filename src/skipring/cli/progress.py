"""A simulation watched on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from skipring.demo.picture import glyphs_for
from skipring.sim.engine import World
from skipring.sim.run import Report, Simulation
from skipring.world.legitimacy import Layer, census

REPAINT_S: Final = 0.1  # A census looks at every node: not more often than one can see.

_NAMES: Final[Mapping[Layer, str]] = {
    Layer.DATABASE: "database",
    Layer.LABELS: "labels",
    Layer.RING: "edges",
    Layer.SHORTCUTS: "shortcuts",
    Layer.LEAVERS: "leavers",
    Layer.CHANNELS: "in flight",
    Layer.PUBLICATIONS: "publications",
}


def run_with_progress(simulation: Simulation) -> Report:
    """Run a simulation while its layers are shown, then print the outcome."""
    console = Console()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        painted = -REPAINT_S

        def observe(world: World) -> None:
            nonlocal painted
            if monotonic() - painted >= REPAINT_S:
                live.update(_frame(console, simulation, world), refresh=True)
                painted = monotonic()

        report = simulation.run(observe)
    console.print(_frame(console, simulation, simulation.world))
    console.print(_outcome(report))
    for violation in report.violations:
        console.print(f"  {violation}", style="red", highlight=False)
    return report


def _frame(console: Console, simulation: Simulation, world: World) -> Group:
    wrong = census(world)
    glyphs = glyphs_for(console.encoding)
    table = Table.grid(padding=(0, 2))
    for layer in Layer:
        count = wrong[layer]
        light = (
            Text(f"{glyphs.right} right", "green")
            if count == 0
            else Text(f"{glyphs.wrong} {count} wrong", "red")
        )
        table.add_row(str(layer), _NAMES[layer], light)
    scenario = simulation.scenario
    title = f"round {world.round}   {len(world.subscribers)} subscribers   mode {scenario.mode}"
    return Group(Text(title, "bold"), table)


def _outcome(report: Report) -> Text:
    if not report.converged:
        return Text("not converged", "bold red")
    rounds = (
        f"explicit after {report.rounds_explicit} rounds, strict after {report.rounds_strict}, "
        f"everybody has everything after {report.rounds_publications}"
    )
    cost = f"{report.messages} messages, {report.supervisor_requests} supervisor requests"
    if report.closure_ok is False:
        return Text(f"converged ({rounds}) but did not stay so", "bold red")
    return Text(f"converged: {rounds}; {cost}", "bold green")
