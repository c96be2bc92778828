"""``skipring shrink``: reduce a failing world while it still fails."""

from __future__ import annotations

import json
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

if TYPE_CHECKING:
    from skipring.world.snapshot import Snapshot

DOES_NOT_FAIL: Final = 1


@click.command()
@click.argument("world", type=FILE)
@click.option("--out", type=FILE, metavar="SMALL", required=True, help="Where to write the rest.")
@click.option("--scenario", type=FILE, metavar="F", help="A scenario file with more settings.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
@run_options
@click.option(
    "--attempts",
    type=click.IntRange(min=0),
    default=1000,
    show_default=True,
    help="Stop after so many runs.",
)
def shrink(
    world: Path, out: Path, scenario: Path | None, attempts: int, as_json: bool, **options: object
) -> int:
    """Make a WORLD that fails under these options smaller while it still fails.

    Exit status: 0 written, 1 it does not fail, 2 bad input.
    """
    from skipring.sim.shrink import fails_to_converge
    from skipring.sim.shrink import shrink as shrink_world

    found = given(options)
    fails = fails_to_converge(read_settings(scenario, found))
    require_writable(out)
    start = read_world(world)
    if not fails(start):
        click.echo(f"{world} does not fail under these options", err=True)
        return DOES_NOT_FAIL
    small = shrink_world(start, fails, attempts_max=attempts)
    write_world(out, small)
    words = [*([str(scenario)] if scenario is not None else []), "--load", str(out)]
    command, before, after = replay(words, found), _counts(start), _counts(small)
    if as_json:
        click.echo(json.dumps({"before": before, "after": after, "replay": command}))
    else:
        counts = ", ".join(f"{name} {before[name]} -> {after[name]}" for name in before)
        click.echo(f"{counts}; {command}")
    return 0


def _counts(world: Snapshot) -> dict[str, int]:
    """Return the size of a world."""
    return {
        "subscribers": len(world.subscribers),
        "messages": len(world.channels),
        "references": _references(world),
    }


def _references(world: Snapshot) -> int:
    return sum(1 for _ in world.explicit_edges())
