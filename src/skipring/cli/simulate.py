"""``skipring simulate`` and ``shrink``: run a ring from any state, and reduce a failing state."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from skipring.cli.options import FILE, Exit, apply_options, json_option, option
from skipring.errors import InputError, ScenarioError, WorldFormatError

if TYPE_CHECKING:
    from skipring.sim.runner import Report, Simulation
    from skipring.sim.scenario import Scenario
    from skipring.world.snapshot import Snapshot

# The defaults are those of the scenario: a missing option must not override a scenario file.
_run_options: Final = apply_options(
    option("--mode", "Set of rules: fast, fixed, paper or deterministic.  [default: fast]"),
    option(
        "--eager",
        "Disable deferral, as for proofs.  [default: the settings of a live node]",
        into="config",
        flag_value="eager",
        default=None,
    ),
    option("--without", "Rules to disable, e.g. R9,S11.", "RULES"),
    option("--scheduler", "Order of events: random, sync, delay or swizzle.  [default: random]"),
    option("--loss", "Share of messages that are lost.", "P", type=float),
    option("--duplicate", "Share of messages that arrive twice.", "P", type=float),
    option("--seed", "Random seed.  [default: 0]", type=int),
    option("--max-rounds", "Maximum number of rounds.  [default: 2000]", type=int),
    option("--closure", "Rounds to check after convergence.  [default: 20]", type=int),
)


def scenario_values(options: dict[str, object]) -> dict[str, object]:
    """Return the given options, in the form of a scenario."""
    found = {name: value for name, value in options.items() if value is not None}
    without = found.get("without")
    if isinstance(without, str):
        found["without"] = [rule.strip() for rule in without.split(",") if rule.strip()]
    return found


def _replay(words: list[str], found: dict[str, object]) -> str:
    """Return the ``skipring simulate`` command that repeats a run."""
    command = ["skipring", "simulate", *words]
    for name, value in found.items():
        if name == "config":
            command.append("--eager")
            continue
        text = ",".join(value) if isinstance(value, list) else str(value)
        command += [f"--{name.replace('_', '-')}", text]
    return shlex.join(command)


@click.command()
@click.argument("scenario", type=FILE, required=False)
@option("--n", "Number of subscribers.  [default: 16]", type=int)
@option("--adversary", "Initial state, A00 to A66.  [default: A00]", "CODE")
@_run_options
@option("--churn", "Probability of a crash and a join, per node and round.", "P", type=float)
@option("--spread", "Broadcast: adaptive, tree or flood.  [default: as the mode]")
@option("--publications", "Publications scattered over the nodes at the start.", "K", type=int)
@option("--load", "Start from a world file.", "F", type=FILE)
@option("--dump", "Write the final state as a world file.", "F", type=FILE)
@option("--dump-start", "Write the initial state as a world file.", "F", type=FILE)
@json_option()
@option(
    "--pace", "Seconds per round on a terminal.  [default: 0.1]", "S", type=click.FloatRange(0, 10)
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
    """Simulate a ring from any state until it has converged.

    Then check closure: it must stay converged. SCENARIO is a TOML file of the same options. Exit
    status: 0 converged and stayed so, 2 bad input, 3 otherwise.
    """
    simulation = _prepare(scenario, load, scenario_values(options))
    for path in (dump, dump_start):
        _require_writable(path)
    _dump(simulation, dump_start)
    if as_json:
        report = _run_quietly(simulation)
    else:
        from skipring.cli.output.tables import run_with_progress

        report = run_with_progress(simulation, _start_of(simulation, load), pace)
    _dump(simulation, dump)
    if report.is_good:
        return Exit.YES
    words = [str(scenario)] if scenario is not None else []
    words += ["--load", str(load)] if load is not None else []
    click.echo(f"replay: {_replay(words, scenario_values(options))}", err=True)
    return Exit.NOT_CONVERGED


def _prepare(scenario: Path | None, load: Path | None, found: dict[str, object]) -> Simulation:
    """Create a simulation from file, options and world; refuse options that a world sets."""
    from skipring.sim.runner import Simulation

    for name in ("n", "adversary"):
        if load is not None and name in found:
            raise InputError(f"--load sets the subscribers; leave out --{name}")
    start = _read_world(load) if load is not None else None
    return Simulation(_read_settings(scenario, found), start)


def _start_of(simulation: Simulation, load: Path | None) -> str:
    """Describe the initial state of the run."""
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


@click.command()
@click.argument("world", type=FILE)
@option("--out", "File for the reduced world.", "SMALL", type=FILE, required=True)
@option("--scenario", "Scenario file with further settings.", "F", type=FILE)
@json_option("Print the counts as JSON.")
@_run_options
@option("--attempts", "Maximum number of runs.", type=click.IntRange(min=0), default=1000)
def shrink(
    world: Path, out: Path, scenario: Path | None, attempts: int, as_json: bool, **options: object
) -> int:
    """Reduce a failing WORLD to a smaller world that also fails.

    Exit status: 0 written, 1 it does not fail, 2 bad input.
    """
    from skipring.sim.shrink import fails_to_converge
    from skipring.sim.shrink import shrink as shrink_world

    found = scenario_values(options)
    fails = fails_to_converge(_read_settings(scenario, found))
    _require_writable(out)
    start = _read_world(world)
    if not fails(start):
        click.echo(f"{world} does not fail under these options", err=True)
        return Exit.NO
    small = shrink_world(start, fails, attempts_max=attempts)
    _write_world(out, small)
    words = [*([str(scenario)] if scenario is not None else []), "--load", str(out)]
    command, before, after = _replay(words, found), _counts(start), _counts(small)
    if as_json:
        click.echo(json.dumps({"before": before, "after": after, "replay": command}))
    else:
        counts = ", ".join(f"{name} {before[name]} -> {after[name]}" for name in before)
        click.echo(f"{counts}; {command}")
    return Exit.YES


def _counts(world: Snapshot) -> dict[str, int]:
    """Return the size of a world."""
    return {
        "subscribers": len(world.subscribers),
        "messages": len(world.channels),
        "references": sum(1 for _ in world.explicit_edges()),
    }


# --- files -----------------------------------------------------------------------------


def _require_writable(path: Path | None) -> None:
    """Raise InputError before the run if an output file is not writable."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: no directory {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"cannot write {path}: no permission")


def _read_settings(path: Path | None, found: dict[str, object]) -> Scenario:
    """Return a scenario from a file, if there is one, and from options, which override it."""
    from skipring.sim.scenario import make_scenario, read_scenario

    if path is None:
        return make_scenario(found)
    values = read_scenario(path)
    try:
        make_scenario(values)
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from None
    return make_scenario({**values, **found})


def _read_world(path: Path) -> Snapshot:
    """Read a world file; an error names the file and the position in it."""
    from skipring.world.format import parse_world

    try:
        return parse_world(path.read_bytes())
    except OSError as error:
        raise WorldFormatError(f"cannot read {path}: {error.strerror}") from None
    except WorldFormatError as error:
        raise WorldFormatError(f"{path}: {error}") from None


def _dump(simulation: Simulation, path: Path | None) -> None:
    """Write the state as a world file, if a path is given; a snapshot doubles the memory."""
    if path is not None:
        _write_world(path, simulation.world.snapshot())


def _write_world(path: Path, snapshot: Snapshot) -> None:
    """Write a world file."""
    from skipring.world.format import render_world

    try:
        path.write_text(render_world(snapshot), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
