"""``skipring demo``: a ring is damaged, and one sees it heal."""

from __future__ import annotations

import sys
from typing import Final

import click

NOT_HEALED: Final = 3


@click.command()
@click.option("--n", type=click.IntRange(4, 64), default=16, show_default=True, help="Subscribers.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of all chance.")
@click.option(
    "--pace",
    type=click.FloatRange(0, 60),
    metavar="S",
    default=0.6,
    show_default=True,
    help="Seconds between rounds.",
)
@click.option(
    "--max-rounds",
    type=click.IntRange(1, 10_000),
    default=300,
    show_default=True,
    help="Give a chapter up after so many rounds.",
)
@click.option("--headless", is_flag=True, help="Plain text, without pauses and repainting.")
@click.option("--assert", "must_heal", is_flag=True, help="Exit with 3 if a chapter does not heal.")
def demo(n: int, seed: int, pace: float, max_rounds: int, headless: bool, must_heal: bool) -> int:
    """Tell the story: a ring forms, is damaged three times, and heals each time.

    Where the output is no terminal, it is as with --headless.
    """
    from rich.console import Console

    from skipring.demo.stage import LiveStage, PlainStage, can_repaint, perform
    from skipring.demo.story import Plan

    console = Console(highlight=False)
    if not headless and sys.stdout.isatty() and can_repaint(console):
        stage: PlainStage = LiveStage(console, pace)
    else:
        plain = Console(highlight=False, color_system=None, force_terminal=False)
        stage = PlainStage(plain)
    is_good = perform(Plan(n, seed, max_rounds), stage)
    return NOT_HEALED if must_heal and not is_good else 0
