"""``skipring bench``: the figures that we claim, measured again."""

from __future__ import annotations

import json
import sys

import click


@click.group()
def bench() -> None:
    """Measure; one JSON line per measurement, the ratios last."""


@bench.command()
@click.option("--n", type=click.IntRange(2, 1_000_000), default=1000, show_default=True)
@click.option("--ring-n", type=click.IntRange(2, 1_000_000), default=100_000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON also on a terminal.")
@click.option("--tables", is_flag=True, help="Print the tables of docs/simulation.md instead.")
def sim(n: int, ring_n: int, seed: int, as_json: bool, tables: bool) -> None:
    """Speed of the simulator at N, and healing and memory of a ring of RING_N."""
    from skipring.bench.sim import measure
    from skipring.bench.tables import tables as lines

    if tables:
        for line in lines():
            click.echo(line)
        return

    for row in measure(n, ring_n, seed=seed):
        if as_json or not sys.stdout.isatty():
            click.echo(json.dumps(row))
        else:
            click.echo("  ".join(f"{name} {value}" for name, value in row.items()))
