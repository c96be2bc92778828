"""``skipring shrink``: make a world that fails smaller while it still fails."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from skipring.cli.options import (
    FILE,
    given,
    read_world,
    replay,
    require_folder,
    run_options,
    write_world,
)

if TYPE_CHECKING:
    from skipring.world.snapshot import Snapshot

DOES_NOT_FAIL: Final = 1


@click.command()
@click.argument("world", type=FILE)
@click.option("--out", type=FILE, metavar="SMALL", required=True, help="Where to write the rest.")
@run_options
@click.option(
    "--attempts",
    type=click.IntRange(min=0),
    default=1000,
    show_default=True,
    help="Stop after so many runs.",
)
def shrink(world: Path, out: Path, attempts: int, **options: object) -> int:
    """Make a WORLD that fails under these options smaller while it still fails.

    Exit status: 0 written, 1 it does not fail, 2 bad input.
    """
    from skipring.sim.scenario import make_scenario
    from skipring.sim.shrinking import fails_to_converge
    from skipring.sim.shrinking import shrink as shrink_world

    found = given(options)
    fails = fails_to_converge(make_scenario(found))
    require_folder(out)
    start = read_world(world)
    if not fails(start):
        click.echo(f"{world} does not fail under these options", err=True)
        return DOES_NOT_FAIL
    small = shrink_world(start, fails, attempts_max=attempts)
    write_world(out, small)
    click.echo(f"{_comparison(start, small)}; {replay(['--load', str(out)], found)}")
    return 0


def _comparison(before: Snapshot, after: Snapshot) -> str:
    """What has become of the world, in numbers."""
    counts = (
        ("subscribers", len(before.subscribers), len(after.subscribers)),
        ("messages", len(before.channels), len(after.channels)),
        ("references", _references(before), _references(after)),
    )
    return ", ".join(f"{name} {was} -> {now}" for name, was, now in counts)


def _references(world: Snapshot) -> int:
    return sum(1 for _ in world.explicit_edges())
