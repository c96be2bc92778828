"""``skipring bench``: measure the published figures again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import click

_SIZE: Final = click.IntRange(1, 100_000_000)
Command = Callable[..., Any]

_DIRECTORY: Final = click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path)


def _sizes(context: click.Context, option: click.Parameter, text: str) -> list[int]:
    """Parse numbers separated by commas."""
    return [_SIZE(size, option, context) for size in text.split(",")]


def _chosen(names: Iterable[str], option: click.Parameter, text: str | None) -> list[str]:
    """Parse some of these names, separated by commas; return all if none is given."""
    known = click.Choice(list(names))
    return [known(name, option) for name in text.split(",")] if text else list(names)


def _systems(_: click.Context, option: click.Parameter, text: str | None) -> list[str]:
    from skipring.lab.bench.systems.catalog import SYSTEMS

    return _with_ours(_chosen(SYSTEMS, option, text))


def _jobs(_: click.Context, option: click.Parameter, text: str | None) -> list[str]:
    from skipring.lab.bench.fanout import JOBS

    return _chosen(JOBS, option, text)


def _stored(_: click.Context, option: click.Parameter, text: str | None) -> list[str]:
    from skipring.lab.bench.systems.catalog import STORED

    return _with_ours(_chosen(STORED, option, text))


def _with_ours(systems: list[str]) -> list[str]:
    """Add skipring, which is always measured, to the systems."""
    from skipring.lab.bench.systems.catalog import OURS

    return systems if OURS in systems else [OURS, *systems]


def _against(callback: Callable[..., list[str]]) -> Callable[[Command], Command]:
    return click.option(
        "--against",
        "systems",
        metavar="NAME,...",
        callback=callback,
        help="Systems to measure beside skipring.  [default: all]",
    )


@click.group()
def bench() -> None:
    """Measure; one JSON line per measurement, the ratios last."""


@bench.command()
@click.option("--n", type=click.IntRange(2, 1_000_000), default=1000, show_default=True)
@click.option("--ring-n", type=click.IntRange(2, 1_000_000), default=100_000, show_default=True)
@click.option("--recovery-n", type=click.IntRange(2, 1_000_000), default=1024, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON also on a terminal.")
def sim(as_json: bool, **options: int) -> None:
    """Speed of the simulator at N, healing and memory of a ring of RING_N, and recovery.

    Recovery is from what each adversary leaves in a ring of RECOVERY_N, in rounds.
    """
    from skipring.lab.bench.sim import measure

    _print_rows(measure(**options), as_json=as_json)


@bench.command()
@click.option("--n", type=_SIZE, default=1_000_000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON also on a terminal.")
def index(n: int, seed: int, as_json: bool) -> None:
    """Speed and memory of the index of N publications, beside a plain Patricia trie."""
    from skipring.lab.bench.index import measure

    _print_rows(measure(n, seed=seed), as_json=as_json)


@bench.command()
@click.option(
    "--n", "sizes", metavar="N,...", callback=_sizes, default="100000,1000000", show_default=True
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON also on a terminal.")
def reconcile(sizes: list[int], seed: int, as_json: bool) -> None:
    """Messages and bytes until two tries of N publications are equal, by what differs."""
    from skipring.lab.bench.reconcile import measure

    _print_rows(measure(sizes, seed=seed), as_json=as_json)


@bench.command()
@click.option("--n", "rows", type=_SIZE, default=100_000, show_default=True)
@click.option("--runs", type=_SIZE, default=1000, show_default=True, help="Of the lab, n = 16.")
@click.option("--repeats", type=click.IntRange(1, 100), default=7, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON also on a terminal.")
def spark(rows: int, runs: int, repeats: int, as_json: bool) -> None:
    """Speed of reading N publications with Spark, beside Parquet, and what the lab costs."""
    from skipring.spark.errors import require_spark

    require_spark()
    from skipring.lab.bench.spark import measure

    _print_rows(measure(rows, runs, repeats=repeats), as_json=as_json)


@bench.command()
@click.option("--n", "sizes", metavar="N,...", callback=_sizes, default="64,256", show_default=True)
@click.option("--size", type=click.IntRange(16, 65536), default=128, show_default=True)
@click.option("--count", type=_SIZE, help="Publications of a run.  [default: a second or two]")
@click.option(
    "--rate",
    type=click.FloatRange(0),
    default=0.0,
    help="Publications per second.  [default: as many as go]",
)
@click.option("--repeats", type=click.IntRange(1, 100), default=3, show_default=True)
@_against(_systems)
@click.option("--job", "jobs", metavar="NAME,...", callback=_jobs, help="[default: all]")
@click.option("--profile", "profiles", type=_DIRECTORY, help="Write profiles here; all is slower.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON also on a terminal.")
def fanout(sizes: list[int], as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Cost of a delivery to N subscribers, beside brokers and other peers, in turns.

    Jobs are throughput, sustained (32,000 publications to 64 subscribers), latency (64 subscribers,
    200 publications per second), hottest (the busiest of 64 nodes beside a broker), growth (with
    the payload, the topics and N) and loss (frames are dropped and nodes killed; all survivors must
    end with all publications).
    """
    from skipring.lab.bench.fanout import measure

    _print_rows(measure(sizes, **options), as_json=as_json)


@bench.command()
@click.option(
    "--n",
    "--count",
    "counts",
    metavar="N,...",
    callback=_sizes,
    default="10000,100000",
    show_default=True,
)
@click.option("--size", type=click.IntRange(16, 65536), default=128, show_default=True)
@click.option("--repeats", type=click.IntRange(1, 100), default=5, show_default=True)
@_against(_stored)
@click.option("--json", "as_json", is_flag=True, help="Print JSON also on a terminal.")
def history(counts: list[int], as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Cost of N stored publications to a newcomer, beside JetStream and Redis Streams.

    Those are measured twice: NAME only counts what it gets, NAME-stored keeps it on the newcomer's
    disk, as skipring does.
    """
    from skipring.lab.bench.history import measure

    _print_rows(measure(counts, **options), as_json=as_json)


def _print_rows(rows: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    from skipring.lab.bench.report import ratio_lines

    for row in rows:
        if as_json or not sys.stdout.isatty():
            click.echo(json.dumps(row))
        elif "ratios" in row:
            for line in ratio_lines(row["ratios"]):
                click.echo(line)
        else:
            click.echo("  ".join(f"{name} {value}" for name, value in row.items()))
