"""``skipring lab`` and ``bench``: experiments on the protocol, and measurements."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from skipring.cli.options import (
    DIRECTORY,
    FILE,
    Command,
    Exit,
    SparkChoice,
    json_option,
    option,
    require_extra,
    spark_options,
)

if TYPE_CHECKING:
    from skipring.lab.experiments.runner import RunSummary

FAILED_SHOWN: Final = 5  # failed runs to print; the table has all
SIZE: Final = click.IntRange(1, 100_000_000)
SEED: Final = click.IntRange(0, 2**32 - 1)
PROFILES: Final = click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path)


@click.group()
def lab() -> None:
    """Run experiments and report on them; search for bad schedules."""


@lab.command()
@click.argument("matrix", type=FILE)
@option("--out", "Directory of the tables.", type=DIRECTORY, required=True)
@spark_options
@option("--partitions", "Spark tasks per chunk of work.", type=click.IntRange(1, 100_000))
@json_option()
def run(matrix: Path, out: Path, spark: SparkChoice, partitions: int | None, as_json: bool) -> int:
    """Run all experiments of MATRIX that are not in the tables yet.

    Exit status: 0 all done, 1 some failed, 2 bad input, 130 interrupted.
    """
    try:
        summary = _run(matrix, out, spark, partitions)
    except KeyboardInterrupt:
        again = shlex.join(["skipring", "lab", "run", str(matrix), "--out", str(out)])
        click.echo(f"Finished runs are kept; continue with: {again}", err=True)
        raise
    _print_summary(summary, out, as_json=as_json)
    return Exit.NO if summary.failed else Exit.YES


def _run(path: Path, out: Path, chosen: SparkChoice, partitions: int | None) -> RunSummary:
    from rich.console import Console

    from skipring.lab.experiments.matrix import read_matrix
    from skipring.lab.experiments.results import require_format
    from skipring.lab.experiments.runner import live_progress, run_matrix, settings_for
    from skipring.spark import session

    matrix = read_matrix(path)
    require_format(out, new=True)  # before Spark starts, which takes seconds
    conf = {**settings_for(chosen.master), **chosen.conf}
    with (
        live_progress(Console(stderr=True), matrix.title) as report,
        session.opened(master=chosen.master, conf=conf, app="skipring lab") as spark,
    ):
        return run_matrix(spark, matrix, out, partition_count=partitions, report=report)


def _print_summary(summary: RunSummary, out: Path, *, as_json: bool) -> None:
    if as_json:
        from msgspec import to_builtins

        click.echo(json.dumps(to_builtins(summary), sort_keys=True))
        return
    found = f", {summary.found} found" if summary.found else ""
    click.echo(f"{summary.done} runs done{found}; the tables are in {out}")
    for name, error in list(summary.failed.items())[:FAILED_SHOWN]:
        click.echo(f"failed: {name}: {error}", err=True)
    if summary.failed:
        click.echo(f"{len(summary.failed)} runs failed; see the column error of runs", err=True)


@lab.command()
@click.argument("directory", type=DIRECTORY)
@option(
    "--out",
    "Page to write, as HTML or Markdown (.md).  [default: DIRECTORY/report.html]",
    type=FILE,
)
@spark_options
def report(directory: Path, out: Path | None, spark: SparkChoice) -> None:
    """Write a page that compares the results in DIRECTORY with the paper."""
    from skipring.lab.experiments.report import write_report
    from skipring.lab.experiments.results import require_format
    from skipring.spark import session
    from skipring.spark.errors import translate_spark_errors

    require_format(directory)
    page = out if out is not None else directory / "report.html"
    app = "skipring lab report"
    with (
        session.opened(master=spark.master, conf=spark.conf, app=app) as started,
        translate_spark_errors(),
    ):
        write_report(started, directory, page)
    click.echo(str(page))


@lab.command()
@option(
    "--n", "Number of subscribers.", type=click.IntRange(1, 1024), default=16, show_default=True
)
@option("--adversary", "Starts, separated by commas.  [default: all]", "CODES")
@option("--mode", "Set of rules: see skipring simulate.", default="fast", show_default=True)
@option("--runs", "Runs of the search.", type=click.IntRange(8), default=400, show_default=True)
@option("--seed", "Random seed.", type=SEED, default=0, show_default=True)
@option("--max-rounds", "Limit of a run.", type=click.IntRange(1), default=2000, show_default=True)
@option("--out", "Scenario file for the worst run.", type=FILE)
@json_option()
def search(
    adversary: str | None, runs: int, seed: int, out: Path | None, as_json: bool, **options: object
) -> None:
    """Search for starts and schedules from which a ring heals late.

    As many runs in random order are the comparison. Equal options print the same lines.
    """
    from skipring.sim.scenario import make_scenario
    from skipring.sim.search import search as search_worst
    from skipring.world.adversaries import ADVERSARIES

    codes = adversary.split(",") if adversary else list(ADVERSARIES)
    base = make_scenario({**options, "adversary": codes[0], "closure": 0})
    found = search_worst(base, codes, runs=runs, seed=seed)
    if out is not None:
        out.write_text(found.scenario_text, encoding="utf-8")
    if as_json:
        from msgspec import to_builtins

        click.echo(json.dumps({**to_builtins(found), "ratio": found.ratio}, sort_keys=True))
        return
    for name, tried in (("search", found.worst), ("random order", found.random_worst)):
        click.echo(f"worst of {name}: {tried.rounds} rounds from {tried.scenario.adversary}")
    click.echo(
        f"ratio {found.ratio:.2f}; to the median in random order {found.ratio_to_median:.2f}"
    )


# --- bench ---------------------------------------------------------------------------


def _sizes(context: click.Context, option: click.Parameter, text: str) -> list[int]:
    """Parse numbers separated by commas."""
    return [SIZE(size, option, context) for size in text.split(",")]


def _sizes_option(text: str, default: str) -> Callable[[Command], Command]:
    return option("--n", text, "N,...", into="sizes", callback=_sizes, default=default)


_PAYLOAD: Final = click.IntRange(16, 65536)
_RATE: Final = click.FloatRange(0)


def _chosen(names: Iterable[str], option: click.Parameter, text: str | None) -> list[str]:
    """Parse some of these names, separated by commas; return all if none is given."""
    known = click.Choice(list(names))
    return [known(name, option) for name in text.split(",")] if text else list(names)


def _jobs(_: click.Context, option: click.Parameter, text: str | None) -> list[str]:
    from skipring.lab.bench.fanout import JOBS

    return _chosen(JOBS, option, text)


def _target_jobs(_: click.Context, option: click.Parameter, text: str | None) -> list[str]:
    from skipring.lab.bench.targets import JOBS

    return _chosen(JOBS, option, text)


def _against(catalogue: str) -> Callable[[Command], Command]:
    """Return the option ``--against``; skipring itself is always measured."""

    def parse(_: click.Context, option: click.Parameter, text: str | None) -> list[str]:
        from skipring.lab.bench.systems import catalog

        systems = _chosen(getattr(catalog, catalogue), option, text)
        return systems if catalog.OURS in systems else [catalog.OURS, *systems]

    text = "Systems to compare with.  [default: all]"
    return option("--against", text, "NAME,...", into="systems", callback=parse)


@click.group()
def bench() -> None:
    """Measure performance and compare it with other systems.

    The output is one line per measurement. The extra bench installs the clients of other systems; a
    missing system is skipped.
    """


_NODES: Final = click.IntRange(2, 1_000_000)
_seed = option("--seed", "Random seed.", type=int, default=0)


def _repeats(default: int) -> Callable[[Command], Command]:
    text = "Repetitions of each measurement."
    return option("--repeats", text, type=click.IntRange(1, 100), default=default)


@bench.command()
@option("--n", "Nodes of the runs that measure speed.", type=_NODES, default=1000)
@option("--ring-n", "Nodes of the ring that heals.", type=_NODES, default=100_000)
@option("--recovery-n", "Nodes of the rings that recover.", type=_NODES, default=1024)
@_seed
@json_option()
def sim(as_json: bool, **options: int) -> None:
    """Measure the simulator: speed at N, healing and memory of a ring of RING_N, recovery.

    Recovery is counted in rounds, from each adversary in a ring of RECOVERY_N.
    """
    from skipring.lab.bench.sim import measure

    _print_rows(measure(**options), as_json=as_json)


@bench.command()
@option("--n", "Number of publications.", type=SIZE, default=1_000_000)
@_seed
@json_option()
def index(n: int, seed: int, as_json: bool) -> None:
    """Measure speed and memory of the index of N publications."""
    from skipring.lab.bench.index import measure

    _print_rows(measure(n, seed=seed), as_json=as_json)


@bench.command()
@_sizes_option("Numbers of publications.", "100000,1000000")
@_seed
@json_option()
def reconcile(sizes: list[int], seed: int, as_json: bool) -> None:
    """Measure messages and bytes until two tries of N publications are equal."""
    from skipring.lab.bench.reconcile import measure

    _print_rows(measure(sizes, seed=seed), as_json=as_json)


@bench.command()
@option("--n", "Number of publications.", into="rows", type=SIZE, default=100_000)
@_repeats(7)
@json_option()
def spark(rows: int, repeats: int, as_json: bool) -> None:
    """Compare reading N publications with reading Parquet."""
    require_extra("spark")
    from skipring.lab.bench.spark import measure

    _print_rows(measure(rows, repeats=repeats), as_json=as_json)


@bench.command()
@option("--batches", "Micro-batches of 500 rows in the old lake.", type=SIZE, default=720)
@_repeats(20)
@json_option()
def pipeline(batches: int, repeats: int, as_json: bool) -> None:
    """Measure micro-batches of 500 rows on a new lake and on an old one, and a report."""
    require_extra("spark")
    from skipring.lab.bench.pipeline import measure

    _print_rows(measure(batches, repeats=repeats), as_json=as_json)


@bench.command()
@_sizes_option("Numbers of subscribers.", "64,256")
@option("--size", "Bytes of a payload.  [default: that of the job]", type=_PAYLOAD)
@option("--count", "Publications of a run.  [default: some seconds of load]", type=SIZE)
@option("--rate", "Publications per second.  [default: that of the job]", type=_RATE)
@_repeats(3)
@_against("SYSTEMS")
@option("--job", "Jobs to run.  [default: all]", "NAME,...", into="jobs", callback=_jobs)
@option("--profile", "Write profiles here (slow).", into="profiles", type=PROFILES)
@json_option()
def fanout(sizes: list[int], as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Measure the cost of a delivery to N subscribers, compared with other systems.

    Jobs are throughput, sustained (32,000 publications to 64 subscribers), latency (64 subscribers,
    200 publications per second), busy (the same while other processes compete for each core), hops
    (8 members with processes of their own), hottest (the busiest of 64 nodes compared with a
    broker), size-BYTES and topics-COUNT (4 subscribers).
    """
    from skipring.lab.bench.fanout import measure

    _print_rows(measure(sizes, **options), as_json=as_json)


@bench.command()
@click.option(
    *("--n", "--count", "counts"),
    metavar="N,...",
    callback=_sizes,
    default="10000,100000",
    show_default=True,
    help="Numbers of publications.",
)
@option("--size", "Bytes of a payload.", type=_PAYLOAD, default=128)
@_repeats(5)
@_against("STORED")
@json_option()
def history(counts: list[int], as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Measure the backfill of N publications, compared with JetStream and Redis Streams.

    Those are measured twice: the client of NAME only counts, the client of NAME-stored writes to
    disk, as skipring does.
    """
    from skipring.lab.bench.history import measure

    _print_rows(measure(counts, **options), as_json=as_json)


@bench.command()
@option("--keys", "Number of keys.", type=click.IntRange(1, 1_000_000), default=1000)
@option("--puts", "Number of writes.", type=click.IntRange(1, 10_000_000), default=20_000)
@_repeats(3)
@json_option()
def kv(keys: int, puts: int, repeats: int, as_json: bool) -> None:
    """Measure put, get and watch of a key-value view, and a newcomer, compared with NATS KV."""
    from skipring.lab.bench.kv import measure

    _print_rows(measure(keys=keys, puts=puts, repeats=repeats), as_json=as_json)


@bench.command()
@option("--limit", "Limit of the topic in MiB.", type=click.IntRange(1, 4096), default=64)
@option("--times", "Publish N times the limit.", "N", type=click.IntRange(1), default=10)
@option("--members", "Number of members.", type=click.IntRange(1, 64), default=8)
@json_option()
def retention(limit: int, times: int, members: int, as_json: bool) -> None:
    """Measure disk and memory of members whose topic has a limit in bytes."""
    from skipring.lab.retention import measure

    _print_rows(measure(limit_mib=limit, times=times, members=members), as_json=as_json)


@bench.command()
@_repeats(5)
@option("--job", "Jobs to run.  [default: all]", "NAME,...", into="jobs", callback=_target_jobs)
@option("--small", "Use small sizes, to check that all jobs work.", is_flag=True)
@json_option("Print the figures of all jobs as JSON lines.")
def targets(repeats: int, jobs: list[str], *, small: bool, as_json: bool) -> None:
    """Measure each target of docs/performance.md; print them as a Markdown table.

    All jobs take turns. With five repeats this takes half an hour.
    """
    from skipring.lab.bench import targets as table

    def observe(key: tuple[str, str], seconds: float) -> None:
        click.echo(f"{' '.join(key)}: {seconds:.0f} s", err=True)

    sizes = table.SMALL if small else table.Sizes()
    results = table.measure(sizes, repeats=repeats, jobs=jobs, observe=observe)
    if as_json:
        _print_rows(table.rows(results), as_json=True)
        return
    for line in table.markdown(results):
        click.echo(line)


def _print_rows(rows: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    for row in rows:
        if as_json:
            click.echo(json.dumps(row))
        else:
            click.echo("  ".join(f"{name} {value}" for name, value in row.items()))
