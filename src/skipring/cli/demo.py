"""``skipring demo``: real processes are damaged and recover."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from skipring.cli.options import FILE

if TYPE_CHECKING:
    from skipring.lab.demo.output import DemoOutput

NOT_HEALED: Final = 3
REPORT: Final = "skipring-demo.html"
SEED: Final = click.IntRange(0, 2**32 - 1)
# Guess: several times what a chapter takes, since other programs use the machine too.
DEADLINE_S: Final = 45.0
DEADLINE_ROUNDS: Final = 200


@click.command()
@click.option("--headless", is_flag=True, help="Plain text, without pauses and repainting.")
@click.option("--assert", "must_heal", is_flag=True, help="Exit with 3 if anything does not hold.")
@click.option("--no-spark", is_flag=True, help="Without the last chapter, the one with Spark.")
@click.option("--stay", "stays", is_flag=True, help="Keep all running at the end, until Ctrl-C.")
@click.option("--n", type=click.IntRange(4, 64), default=16, show_default=True, help="Nodes.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Of who is hit, and how.")
@click.option(
    "--tick",
    type=click.FloatRange(0.05, 10),
    metavar="S",
    default=0.25,
    show_default=True,
    help="Seconds of a round.",
)
@click.option(
    "--pace",
    type=click.FloatRange(0, 60),
    metavar="S",
    default=1.0,
    show_default=True,
    help="How long to leave time for reading.",
)
@click.option(
    "--deadline",
    type=click.FloatRange(1, 3600),
    metavar="S",
    help="Give a chapter up after so long.  [default: 45, or 200 rounds]",
)
@click.option(
    "--report", type=FILE, default=REPORT, show_default=True, help="Where Spark's report goes."
)
@click.option("--json", "as_json", is_flag=True, help="Print the scoreboard as JSON, and only it.")
def demo(
    *,
    headless: bool,
    must_heal: bool,
    no_spark: bool,
    stays: bool,
    n: int,
    seed: int,
    tick: float,
    pace: float,
    deadline: float | None,
    report: Path,
    as_json: bool,
) -> int:
    """Tell the story: a ring of processes forms, is damaged badly, and heals each time.

    The first line is the address of the dashboard, which shows the same in the browser. Where the
    output is no terminal, it is as with --headless. Exit status: 0, with --assert 3 if anything
    did not hold, 130 interrupted; whatever happens, no process and no data stays.
    """
    from skipring.lab.demo.runner import check_report, run_demo
    from skipring.lab.demo.script import DemoPlan

    if not no_spark:
        check_report(report)
    plan = DemoPlan(
        n=n,
        seed=seed,
        tick_s=tick,
        deadline_s=deadline or max(DEADLINE_S, DEADLINE_ROUNDS * tick),
        report=None if no_spark else report.absolute(),
    )
    end = run_demo(plan, _output(headless, pace, as_json), stays=stays)
    return NOT_HEALED if must_heal and not end.is_good else 0


def _output(headless: bool, pace: float, as_json: bool) -> DemoOutput:
    from rich.console import Console

    from skipring.lab.demo.output import JsonOutput, LiveOutput, PlainOutput, can_repaint

    console = Console(highlight=False)
    if as_json:
        return JsonOutput(click.echo)
    if not headless and sys.stdout.isatty() and can_repaint(console):
        return LiveOutput(console, pace)
    return PlainOutput(Console(highlight=False, color_system=None, force_terminal=False))
