"""``skipring lab``: thousands of simulations as Spark tasks, and their report."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from skipring.cli.options import FILE
from skipring.cli.spark_options import SparkChoice, spark_options

if TYPE_CHECKING:
    from skipring.lab.experiments.running import RunSummary

DIRECTORY: Final = click.Path(file_okay=False, path_type=Path)
FAILED_SHOWN: Final = 5  # of the failed runs; the table has all


@click.group()
def lab() -> None:
    """Run a matrix of experiments on Spark, and report on it."""


@lab.command()
@click.argument("matrix", type=FILE)
@click.option("--out", type=DIRECTORY, required=True, help="Where the tables go.")
@spark_options
@click.option("--partitions", type=click.IntRange(1, 100_000), help="Tasks per chunk of work.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON also on a terminal.")
def run(matrix: Path, out: Path, spark: SparkChoice, partitions: int | None, as_json: bool) -> int:
    """Do all runs of MATRIX that the tables do not have yet.

    Exit status: 0 all done, 1 some failed, 2 bad input, 130 interrupted.
    """
    from skipring.spark.errors import require_spark

    require_spark()
    try:
        summary = _run(matrix, out, spark, partitions)
    except KeyboardInterrupt:
        again = shlex.join(["skipring", "lab", "run", str(matrix), "--out", str(out)])
        click.echo(f"What is finished is kept; to go on: {again}", err=True)
        raise
    _print(summary, out, as_json=as_json or not sys.stdout.isatty())
    return 1 if summary.failed else 0


def _run(path: Path, out: Path, chosen: SparkChoice, partitions: int | None) -> RunSummary:
    from rich.console import Console

    from skipring.lab.experiments.matrix import read_matrix
    from skipring.lab.experiments.progress import shown
    from skipring.lab.experiments.results import require_format
    from skipring.lab.experiments.running import run_matrix, settings_for
    from skipring.spark import session

    matrix = read_matrix(path)
    require_format(out, new=True)  # before Spark starts, which takes seconds
    with shown(Console(stderr=True), matrix.title) as tell:
        conf = {**settings_for(chosen.master), **chosen.conf}
        spark = session.start(master=chosen.master, conf=conf, app="skipring lab")
        try:
            return run_matrix(spark, matrix, out, partition_count=partitions, tell=tell)
        finally:
            session.stop(spark)


def _print(summary: RunSummary, out: Path, *, as_json: bool) -> None:
    if as_json:
        from msgspec import to_builtins

        click.echo(json.dumps(to_builtins(summary), sort_keys=True))
        return
    found = f", {summary.found} were there already" if summary.found else ""
    click.echo(f"{summary.done} runs done{found}; the tables are in {out}")
    for name, error in list(summary.failed.items())[:FAILED_SHOWN]:
        click.echo(f"failed: {name}: {error}", err=True)
    if summary.failed:
        click.echo(f"{len(summary.failed)} runs failed; see the column error of runs", err=True)


@lab.command()
@click.argument("directory", type=DIRECTORY)
@click.option("--out", type=FILE, help="The page to write.  [default: DIRECTORY/report.html]")
@click.option("--pictures", type=DIRECTORY, help="Write every plot as an SVG file, too.")
@click.option("--markdown", type=FILE, help="Write the page as Markdown, too.")
@spark_options
def report(
    directory: Path,
    out: Path | None,
    pictures: Path | None,
    markdown: Path | None,
    spark: SparkChoice,
) -> None:
    """Write a page that holds what was measured in DIRECTORY beside what the paper says."""
    from skipring.spark.errors import require_spark

    require_spark()
    from skipring.lab.experiments.report import write_report
    from skipring.lab.experiments.results import require_format
    from skipring.spark import session
    from skipring.spark.errors import translate_spark_errors

    require_format(directory)
    page = out if out is not None else directory / "report.html"
    started = session.start(master=spark.master, conf=spark.conf, app="skipring lab report")
    try:
        with translate_spark_errors():
            write_report(started, directory, page, pictures, markdown)
    finally:
        session.stop(started)
    click.echo(str(page))
