"""``skipring simulate``: run a ring from any state to legitimacy, then check closure."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from skipring.cli.options import (
    FILE,
    given,
    read_settings,
    read_world,
    replay,
    require_writable,
    run_options,
    write_world,
)
from skipring.errors import InputError

if TYPE_CHECKING:
    from skipring.sim.runner import Report, Simulation

NOT_CONVERGED: Final = 3


@click.command()
@click.argument("scenario", type=FILE, required=False)
@click.option("--n", type=int, help="Number of subscribers.  [default: 16]")
@click.option("--adversary", metavar="CODE", help="Start state, A00 to A66.  [default: A00]")
@run_options
@click.option("--churn", type=float, metavar="P", help="Crash and join per node and round.")
@click.option("--spread", help="adaptive, tree or flood; of what is new.  [default: as the mode]")
@click.option("--publications", type=int, metavar="K", help="Scatter so many at the start.")
@click.option("--load", type=FILE, metavar="F", help="Start from a world file.")
@click.option("--dump", type=FILE, metavar="F", help="Write the last state as a world file.")
@click.option("--dump-start", type=FILE, metavar="F", help="Write the first state likewise.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON also on a terminal.")
@click.option(
    "--pace",
    type=click.FloatRange(0, 10),
    metavar="S",
    help="Seconds that a terminal shows a round for.  [default: 0.1]",
)
def simulate(
    scenario: Path | None,
    load: Path | None,
    dump: Path | None,
    dump_start: Path | None,
    as_json: bool,
    pace: float | None,
    **options: object,
) -> int:
    """Run a ring to legitimacy, then closure; SCENARIO is a TOML file of the same options.

    Exit status: 0 converged and stayed so, 2 bad input, 3 not.
    """
    simulation = _prepare(scenario, load, given(options))
    for path in (dump, dump_start):
        require_writable(path)
    write_world(dump_start, simulation.world.snapshot())
    if as_json or not sys.stdout.isatty():
        report = _run_quietly(simulation)
    else:
        from skipring.cli.progress import run_with_progress

        report = run_with_progress(simulation, _start_of(simulation, load), pace)
    write_world(dump, simulation.world.snapshot())
    if report.is_good:
        return 0
    words = [str(scenario)] if scenario is not None else []
    words += ["--load", str(load)] if load is not None else []
    click.echo(f"replay: {replay(words, given(options))}", err=True)
    return NOT_CONVERGED


def _prepare(scenario: Path | None, load: Path | None, found: dict[str, object]) -> Simulation:
    """Create a simulation from file, options and world; refuse options that a world sets."""
    from skipring.sim.runner import Simulation

    for name in ("n", "adversary"):
        if load is not None and name in found:
            raise InputError(f"--load already says who is there; leave out --{name}")
    start = read_world(load) if load is not None else None
    return Simulation(read_settings(scenario, found), start)


def _start_of(simulation: Simulation, load: Path | None) -> str:
    """Return a sentence about the start of the run."""
    from skipring.world.adversaries import ADVERSARIES

    if load is not None:
        return f"begins with {load}"
    adversary = ADVERSARIES[simulation.scenario.adversary]
    return f"begins with {adversary.code}: {adversary.title}"


def _run_quietly(simulation: Simulation) -> Report:
    from msgspec import to_builtins

    report = simulation.run()
    click.echo(json.dumps(to_builtins(report), sort_keys=True))
    return report
