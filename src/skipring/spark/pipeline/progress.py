"""How far a pipeline is, told to a person: a table on a terminal, a line per batch on a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import json
from rich.console import Console
from rich.live import Live
from rich.table import Table

from skipring.spark.pipeline.about import About
from skipring.spark.pipeline.running import Progress, Tell
from skipring.spark.pipeline.tables import Name


@contextmanager
def shown(console: Console, about: About) -> Iterator[Tell]:
    """Show progress as long as it lasts."""
    if not console.is_terminal:
        yield lambda progress: console.print(as_line(progress), highlight=False, soft_wrap=True)
        return
    with Live(_waiting(about), console=console, auto_refresh=False) as live:
        live.refresh()
        yield lambda progress: live.update(as_table(about, progress), refresh=True)


def as_json(progress: Progress) -> str:
    """One line for a program."""
    totals = {str(name): count for name, count in progress.totals.items()}
    found = {
        **{name: getattr(progress.figures, name) for name in progress.figures.__struct_fields__},
        "per_s": progress.per_s,
        "behind": progress.behind,
        "totals": totals,
    }
    return json.encode(found).decode()


def as_line(progress: Progress) -> str:
    """One line for a person."""
    new = progress.figures
    parts = [
        f"batch {new.batch}: {new.bronze:,} publications ({progress.per_s:,.0f}/s)",
        f"{new.silver:,} new",
        f"{new.rejected:,} rejected",
        _many(new.duplicates, "duplicate"),
        f"{new.deliveries:,} deliveries",
        _many(new.windows, "window"),
        f"{_behind(progress)} behind",
        f"{new.seconds:.1f} s",
    ]
    return ", ".join(parts)


def as_table(about: About, progress: Progress) -> Table:
    """Everything at a glance."""
    new = progress.figures
    grid = _grid(about)
    grid.add_column("rows", justify="right")
    grid.add_column("last batch", justify="right")
    last = {
        Name.BRONZE: new.bronze,
        Name.DELIVERIES: new.deliveries,
        Name.SILVER: new.silver,
        Name.REJECTED: new.rejected,
        Name.GOLD: new.windows,
    }
    for name, count in last.items():
        unit = _many(count, "window") if name is Name.GOLD else f"{count:,}"
        style = "red" if name is Name.REJECTED and progress.totals[name] else None
        grid.add_row(name, f"{progress.totals[name]:,}", unit, style=style)
    grid.add_section()
    grid.add_row("rate", f"{progress.per_s:,.1f}/s", "")
    grid.add_row("behind the ring", _behind(progress), "")
    grid.add_row("duplicates removed", "", f"{new.duplicates:,}")
    grid.add_row("batch", f"{new.batch}", f"{new.seconds:.1f} s")
    return grid


def _waiting(about: About) -> Table:
    grid = _grid(about)
    grid.add_row("Spark starts, or nothing has come yet")
    return grid


def _grid(about: About) -> Table:
    grid = Table(title=f"{', '.join(about.topics)}   windows of {about.window_s} s")
    grid.add_column("table")
    return grid


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


def _behind(progress: Progress) -> str:
    return "?" if progress.behind is None else f"{progress.behind:,}"
