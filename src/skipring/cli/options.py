"""Options of simulations: run, files, and the command that replays a run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from skipring.errors import InputError, ScenarioError, WorldFormatError

if TYPE_CHECKING:
    from skipring.sim.scenario import Scenario
    from skipring.world.snapshot import Snapshot

FILE: Final = click.Path(dir_okay=False, path_type=Path)

Command = TypeVar("Command", bound=Callable[..., Any])

# The defaults are those of the scenario: a missing option must not override a scenario file.
_RUN_OPTIONS: Final = (
    click.option("--mode", help="Set of rules: fast, fixed or paper.  [default: fast]"),
    click.option("--without", metavar="RULES", help="Rules to switch off, e.g. R9,S11."),
    click.option("--scheduler", help="random, sync, delay or swizzle.  [default: random]"),
    click.option("--loss", type=float, metavar="P", help="Share of messages that are lost."),
    click.option("--duplicate", type=float, metavar="P", help="Share that arrives twice."),
    click.option("--seed", type=int, help="Seed of all chance.  [default: 0]"),
    click.option("--max-rounds", type=int, help="Give up after so many rounds.  [default: 2000]"),
    click.option("--closure", type=int, help="Rounds to stay unchanged.  [default: 20]"),
)


def run_options(command: Command) -> Command:
    """Add the options that decide how a world runs to a command."""
    for option in reversed(_RUN_OPTIONS):
        command = option(command)
    return command


def given(options: dict[str, object]) -> dict[str, object]:
    """Return the given options, in the form of a scenario."""
    found = {name: value for name, value in options.items() if value is not None}
    without = found.get("without")
    if isinstance(without, str):
        found["without"] = [rule.strip() for rule in without.split(",") if rule.strip()]
    return found


def replay(words: list[str], found: dict[str, object]) -> str:
    """Return the ``skipring simulate`` command that repeats a run."""
    command = ["skipring", "simulate", *words]
    for name, value in found.items():
        text = ",".join(value) if isinstance(value, list) else str(value)
        command += [f"--{name.replace('_', '-')}", text]
    return shlex.join(command)


def require_writable(path: Path | None) -> None:
    """Raise InputError, before the run, if a file cannot be written at its end."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"cannot write {path}: no permission")


def read_settings(path: Path | None, found: dict[str, object]) -> Scenario:
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


def read_world(path: Path) -> Snapshot:
    """Read a world file; an error names the file and the position in it."""
    from skipring.world.format import parse_world

    try:
        return parse_world(path.read_bytes())
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise WorldFormatError(message) from None
    except WorldFormatError as error:
        message = f"{path}: {error}"
        raise WorldFormatError(message) from None


def write_world(path: Path | None, snapshot: Snapshot) -> None:
    """Write a world file, if a path is given."""
    from skipring.world.format import render_world

    if path is None:
        return
    try:
        path.write_text(render_world(snapshot), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
