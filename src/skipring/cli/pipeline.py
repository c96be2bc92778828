"""``skipring pipeline``: write topics to a lake of Parquet tables, and report on it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import click

from skipring.cli.options import (
    DIRECTORY,
    FILE,
    Duration,
    Exit,
    SparkChoice,
    access_options,
    json_option,
    option,
    spark_options,
)

if TYPE_CHECKING:
    from skipring.net.access import Access
    from skipring.spark.pipeline.runner import PipelinePlan, Tell

STARTS: Final = ("earliest", "latest")
FORMATS: Final = ("auto", "json", "text", "binary")
TRIGGER_S: Final = 5.0  # Guess: fresh enough for a reader, and not too many small files.
WINDOW_MAX_S: Final = 86_400  # a day, by which gold is partitioned


@click.group()
def pipeline() -> None:
    """Follow topics with Spark into a lake of tables."""


@pipeline.command()
@access_options
@option("--subscribe", "Topics to follow.", "T[,...]", required=True)
@option("--lake", "Directory of the tables.", type=DIRECTORY, required=True)
@option("--trigger", "Time between two batches.  [default: 5s]", "TIME", type=Duration(0.1, 86_400))
@option("--available-now", "Read the stored publications, then exit.", is_flag=True)
@option("--starting", "Start of a new lake.", type=click.Choice(STARTS), default="earliest")
@option(
    "--format",
    "Format of payloads; rows of other formats are rejected.  [default: auto]",
    into="values",
    type=click.Choice(FORMATS),
)
@option("--window", "Windows of gold.  [default: 1m]", "TIME", type=Duration(1, WINDOW_MAX_S))
@option(
    "--max-offsets",
    "Maximum publications per batch.  [default: 100000]",
    type=click.IntRange(1, 10_000_000),
)
@option(
    "--fail-on-data-loss/--no-fail-on-data-loss",
    "Fail if the store of the source is lost.",
    default=True,
)
@spark_options
@json_option("Print a line of JSON for each batch.")
def run(spark: SparkChoice, as_json: bool, **options: Any) -> int:  # noqa: ANN401
    """Follow topics into bronze, silver and gold tables below a directory.

    Exit status: 0 done or asked to end, 1 failed, 2 bad input, 4 no supervisor or member answers,
    130 interrupted.
    """
    from skipring.spark import session
    from skipring.spark.pipeline.runner import make_place, rooted, run_pipeline

    plan = rooted(_plan(**options))  # before Spark starts, which takes seconds
    make_place(plan.lake)
    ending = _Ending()
    with (
        _shown(plan, as_json=as_json) as report_progress,
        session.opened(master=spark.master, conf=spark.conf, app="skipring pipeline") as started,
        ending.on_signals(),
    ):
        totals = run_pipeline(started, plan, report_progress, ending.is_due)
    if not as_json:
        rows = ", ".join(f"{name} {count:,}" for name, count in totals.items())
        click.echo(f"rows in {plan.lake}: {rows}")
    return ending.status


def _plan(
    *,
    access: Access,
    subscribe: str,
    lake: Path,
    trigger: float | None,
    available_now: bool,
    starting: str,
    values: str | None,
    window: float | None,
    max_offsets: int | None,
    fail_on_data_loss: bool,
) -> PipelinePlan:
    """Check the options and return them as a plan; write nothing."""
    from skipring.spark.options import ReadOptions
    from skipring.spark.pipeline.manifest import RequestedConfig, agreed
    from skipring.spark.pipeline.runner import OFFSETS_MAX, PipelinePlan
    from skipring.spark.pipeline.silver import PayloadFormat

    if available_now and trigger is not None:
        raise click.UsageError("give --trigger or --available-now, not both")
    if window is not None and window != int(window):
        raise click.BadParameter("a window is a whole number of seconds", param_hint="--window")
    read = ReadOptions.parse(_source_options(access) | {"subscribe": subscribe}, is_stream=True)
    wish = RequestedConfig(
        supervisors=access.supervisors,
        topics=read.topics,
        values=None if values is None else PayloadFormat(values),
        window_s=None if window is None else int(window),
    )
    return PipelinePlan(
        access=read.access,
        lake=lake.resolve(),
        about=agreed(lake.resolve(), wish),
        starting=starting,
        trigger_s=None if available_now else trigger or TRIGGER_S,
        offsets_max=max_offsets or OFFSETS_MAX,
        fails_on_data_loss=fail_on_data_loss,
    )


def _source_options(access: Access) -> dict[str, str]:
    """Return the options of the Spark data source that connect to a ring."""
    access.credentials()  # fail now instead of in Spark's workers
    files = {name: getattr(access, name) for name in ("ca", "cert", "key")}
    given = {name: str(Path(file).resolve()) for name, file in files.items() if file is not None}
    return given | {"supervisor": ",".join(access.supervisors)}


@contextmanager
def _shown(plan: PipelinePlan, *, as_json: bool) -> Iterator[Tell]:
    """Yield a function that shows progress: as JSON, or as a display."""
    from rich.console import Console

    from skipring.spark.pipeline import runner

    if as_json:
        yield lambda it: click.echo(runner.as_json(it))
        return
    with runner.shown(Console(), plan.about) as tell:
        yield tell


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
@click.argument("lake", type=DIRECTORY)
@option("--out", "Page to write.  [default: LAKE/report.html]", type=FILE)
@spark_options
def report(lake: Path, out: Path | None, spark: SparkChoice) -> None:
    """Write a page about LAKE: rates, latencies, hops, repairs, rejected rows."""
    from skipring.spark import session
    from skipring.spark.pipeline.manifest import read_manifest
    from skipring.spark.pipeline.report import write_report

    about = read_manifest(lake)
    page = out if out is not None else lake / "report.html"
    app = "skipring pipeline report"
    with session.opened(master=spark.master, conf=spark.conf, app=app) as started:
        write_report(started, lake, about, page)
    click.echo(str(page))
