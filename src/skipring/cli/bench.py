"""``skipring bench``: the figures that we claim, measured again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Final

import click

_SIZE: Final = click.IntRange(1, 100_000_000)


def _sizes(context: click.Context, option: click.Parameter, text: str) -> list[int]:
    """Numbers with commas between them."""
    return [_SIZE(size, option, context) for size in text.split(",")]


@click.group()
def bench() -> None:
    """Measure; one JSON line per measurement, the ratios last."""


@bench.command()
@click.option("--n", type=click.IntRange(2, 1_000_000), default=1000, show_default=True)
@click.option("--ring-n", type=click.IntRange(2, 1_000_000), default=100_000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON also on a terminal.")
@click.option("--tables", is_flag=True, help="Print the tables of docs/simulation.md instead.")
@click.option("--publications", is_flag=True, help="Print the tables about publications instead.")
def sim(n: int, ring_n: int, seed: int, as_json: bool, tables: bool, publications: bool) -> None:
    """Speed of the simulator at N, and healing and memory of a ring of RING_N."""
    if tables:
        from skipring.bench.tables import tables as tables_of_rings

        _print_lines(tables_of_rings())
    elif publications:
        from skipring.bench.publications import tables as tables_of_publications

        _print_lines(tables_of_publications())
    else:
        from skipring.bench.sim import measure

        _print_rows(measure(n, ring_n, seed=seed), as_json=as_json)


@bench.command()
@click.option("--n", type=_SIZE, default=1_000_000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON also on a terminal.")
def index(n: int, seed: int, as_json: bool) -> None:
    """Speed and memory of the index of N publications, beside a plain Patricia trie."""
    from skipring.bench.index import measure

    _print_rows(measure(n, seed=seed), as_json=as_json)


@bench.command()
@click.option(
    "--n", "sizes", metavar="N,...", callback=_sizes, default="100000,1000000", show_default=True
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON also on a terminal.")
def reconcile(sizes: list[int], seed: int, as_json: bool) -> None:
    """Messages and bytes until two tries of N publications are equal, by what differs."""
    from skipring.bench.reconcile import measure

    _print_rows(measure(sizes, seed=seed), as_json=as_json)


@bench.command()
@click.option("--n", "rows", type=_SIZE, default=100_000, show_default=True)
@click.option("--runs", type=_SIZE, default=1000, show_default=True, help="Of the lab, n = 16.")
@click.option("--repeats", type=click.IntRange(1, 100), default=7, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON also on a terminal.")
def spark(rows: int, runs: int, repeats: int, as_json: bool) -> None:
    """Speed of reading N publications with Spark, beside Parquet, and what the lab costs."""
    from skipring.spark.installed import require_spark

    require_spark()
    from skipring.bench.spark import measure

    _print_rows(measure(rows, runs, repeats=repeats), as_json=as_json)


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _print_rows(rows: Iterable[Mapping[str, object]], *, as_json: bool) -> None:
    for row in rows:
        if as_json or not sys.stdout.isatty():
            click.echo(json.dumps(row))
        else:
            click.echo("  ".join(f"{name} {value}" for name, value in row.items()))
