"""``skipring pipeline``: a project of files that follows topics into a lake of tables."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Final

import click
from msgspec.structs import replace

from skipring.cli.options import (
    DIRECTORY,
    FILE,
    Exit,
    SparkChoice,
    access_options,
    json_option,
    option,
    require_extra,
    spark_options,
)

if TYPE_CHECKING:
    from skipring.net.access import Access
    from skipring.spark.pipeline.progress import PipelineProgress, Report
    from skipring.spark.pipeline.project import Project

PROJECT: Final = click.argument("directory", type=DIRECTORY)


@click.group()
def pipeline() -> None:
    """Follow topics with Spark into a lake of tables, as a project of files."""


@pipeline.command()
@PROJECT
@option("--topics", "Topics to follow.  [default: orders]", "T[,...]", default="orders")
@option("--telemetry", "Record how publications arrive at the nodes.", is_flag=True)
def init(directory: Path, topics: str, telemetry: bool) -> None:
    """Write a small project to DIRECTORY: settings, schema and gold tables."""
    require_extra("spark")
    from skipring.spark.options import ReadOptions
    from skipring.spark.pipeline.project import write_template

    read = ReadOptions.parse({"subscribe": topics, "supervisor": "127.0.0.1:1"}, is_stream=True)
    for name in write_template("telemetry" if telemetry else "orders", directory, read.topics):
        click.echo(f"{directory / name}")


@pipeline.command()
@PROJECT
@access_options
@option("--once", "Read the stored publications, then exit.", is_flag=True)
@option("--metrics", "Serve metrics for Prometheus on loopback.", "HOST:PORT")
@option(
    "--ui/--no-ui", "Serve Spark's page.  [default: on loopback, not with --once]", default=None
)
@spark_options
@json_option("Print a line of JSON for each batch.")
def run(
    directory: Path,
    *,
    access: Access,
    once: bool,
    metrics: str | None,
    ui: bool | None,
    spark: SparkChoice,
    as_json: bool,
) -> int:
    """Follow the topics of the project in DIRECTORY.

    Exit status: 0 done or stopped, 1 failed, 2 bad input, 4 no supervisor or member answers,
    130 interrupted.
    """
    from skipring.spark import session
    from skipring.spark.pipeline.project import read_project
    from skipring.spark.pipeline.runner import PipelineRun, rooted, run_conf, run_pipeline

    access.credentials()  # fail now instead of in Spark's workers
    project = read_project(directory)
    plan = rooted(PipelineRun(project=project, access=_absolute(access), is_once=once))
    shows_ui = False if ui is None and once else ui
    conf = run_conf(project, spark.conf, master=spark.master, shows_ui=shows_ui)
    ending = _Ending()
    with (
        _shown(project, metrics, as_json=as_json) as report,
        session.opened(master=spark.master, conf=conf, app="skipring pipeline") as started,
        ending.on_signals(),
    ):
        if (page := started.sparkContext.uiWebUrl) is not None:
            click.echo(f"Spark's page: {page}", err=True)
        totals = run_pipeline(started, plan, report, ending.is_due)
    if not as_json:
        rows = ", ".join(f"{name} {count:,}" for name, count in totals.items())
        click.echo(f"new rows in {project.lake}: {rows or 'none'}")
    return ending.status


def _absolute(access: Access) -> Access:
    """Return an access whose files Spark's workers find from other directories."""
    files = {name: getattr(access, name) for name in ("ca", "cert", "key")}
    return replace(
        access, **{name: str(Path(it).resolve()) for name, it in files.items() if it is not None}
    )


@contextmanager
def _shown(project: Project, metrics: str | None, *, as_json: bool) -> Iterator[Report]:
    """Yield a function that shows progress as JSON or as a display, and in the metrics."""
    from rich.console import Console

    from skipring.spark.pipeline import progress

    exported = progress.PipelineMetrics()
    topics = ", ".join(project.settings.topics)
    with ExitStack() as stack:
        stack.enter_context(exported.served(metrics))
        display = (
            None if as_json else stack.enter_context(progress.live_progress(Console(), topics))
        )

        def report(given: PipelineProgress) -> None:
            exported.record(given)
            if display is None:
                click.echo(progress.as_json(given))
            else:
                display(given)

        yield report


class _Ending:
    """Request to end the command, and the exit status."""

    def __init__(self) -> None:
        self.is_due = Event()
        self.status = Exit.YES

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """End cleanly on SIGINT or SIGTERM."""
        before = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _: object) -> None:
        self.status = Exit.INTERRUPTED if number == signal.SIGINT else Exit.YES
        self.is_due.set()


@pipeline.command()
@PROJECT
@option("--out", "Page to write.  [default: DIRECTORY/report.html]", type=FILE)
@spark_options
def report(directory: Path, out: Path | None, spark: SparkChoice) -> None:
    """Write a page about the lake of the project: rows, rates, quarantine, gold tables."""
    from skipring.spark import session
    from skipring.spark.pipeline.project import read_project
    from skipring.spark.pipeline.report import CONF, write_report

    project = read_project(directory)
    page = out if out is not None else directory / "report.html"
    conf = {**CONF, **project.settings.spark, **spark.conf}
    with session.opened(master=spark.master, conf=conf, app="skipring pipeline report") as started:
        write_report(started, project, page)
    click.echo(str(page))


@pipeline.command()
@PROJECT
@spark_options
def optimize(directory: Path, spark: SparkChoice) -> None:
    """Merge the small files of the lake of a project, and remove expired dates."""
    from skipring.spark import session
    from skipring.spark.pipeline.project import read_project
    from skipring.spark.pipeline.runner import CONF, optimize_lake

    project = read_project(directory)
    conf = {**CONF, **project.settings.spark, **spark.conf}
    app = "skipring pipeline optimize"
    with session.opened(master=spark.master, conf=conf, app=app) as started:
        merged, expired = optimize_lake(started, project)
    click.echo(f"merged files: {merged:,}, removed dates: {len(expired):,}")
