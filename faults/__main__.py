"""``python -m faults``: run the fault matrix."""

from __future__ import annotations

import sys
from pathlib import Path
from time import monotonic

import click

from faults.matrix import FaultOutcome, FaultRow, line, page, run_row
from faults.rows import ROWS


def _chosen(names: tuple[str, ...], *, is_short: bool) -> list[FaultRow]:
    known = {row.name: row for row in ROWS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.UsageError(f"no row is called {unknown[0]}; --list prints the names")
    rows = [known[name] for name in names] if names else list(ROWS)
    return [row for row in rows if row.short or not is_short]


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--rows", "more", multiple=True, metavar="NAME", help="Run this row; repeatable.")
@click.option("--short", "is_short", is_flag=True, help="Run the rows of the short form.")
@click.option("--allow-missing", is_flag=True, help="Succeed although a tool is missing.")
@click.option("--list", "is_list", is_flag=True, help="Print the rows and run none.")
@click.option(
    "--write",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the table as a page, if all rows run in full.",
)
def main(
    names: tuple[str, ...],
    more: tuple[str, ...],
    *,
    is_short: bool,
    allow_missing: bool,
    is_list: bool,
    write: Path | None,
) -> None:
    """Run rows of the fault matrix, all if none is named; exit with 1 if a row fails."""
    rows = _chosen((*more, *names), is_short=is_short)
    if is_list:
        for row in rows:
            click.echo(f"{row.name}: {row.fault} ({row.repeats} repetitions)")
        return
    begun = monotonic()
    outcomes = [_run(row, is_short=is_short) for row in rows]
    seconds = monotonic() - begun
    if write is not None and len(rows) == len(ROWS) and not is_short:
        write.write_text(page(outcomes, seconds), encoding="utf-8")
    elif write is not None:
        click.echo(f"{write} is not written: {len(rows)} of {len(ROWS)} rows were run")
    failed = [each.row.name for each in outcomes if each.failure]
    missing = [each.row.name for each in outcomes if each.missing]
    click.echo(
        f"{len(rows)} rows in {seconds / 60:.1f} minutes; failed: {', '.join(failed) or 'none'}; "
        f"not run: {', '.join(missing) or 'none'}"
    )
    sys.exit(bool(failed or (missing and not allow_missing)))


def _run(row: FaultRow, *, is_short: bool) -> FaultOutcome:
    outcome = run_row(row, is_short=is_short)
    click.echo(line(outcome))
    return outcome


if __name__ == "__main__":
    main()
