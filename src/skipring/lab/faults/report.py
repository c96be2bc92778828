"""Table of the fault matrix: text during the run, and a page of the docs."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from skipring.lab.bench.report import table_header, table_row
from skipring.lab.faults.row import FaultOutcome

COLUMNS: Final = (
    "method",
    "repetitions",
    "lost",
    "duplicated",
    "invented",
    "healthy after (s)",
    "longest pause (s)",
    "verdict",
)
MEANING: Final = (
    "Each row runs real processes on one machine: a supervisor, five nodes with a tick of 0.25 s "
    "unless the row states otherwise, publishers, and a reader (`skipring sub`). *Lost* is the "
    "number of acknowledged publications that a survivor does not hold or the reader did not get. "
    "*Duplicated* is the number of publications that a survivor holds, or the reader got, more "
    "than once. *Invented* is the number of publications that were never published. *Healthy "
    "after* is the longest time from the end of a fault until `skipring doctor` reports a healthy "
    "topic with all running nodes. *Longest pause* is the largest "
    "`skipring_loop_pause_seconds_max` (up to a quarter of a tick too small: 0.06 s, and 0.6 s at "
    "the slow member of tenfold-tick) of all "
    "processes, without those that a signal stopped; "
    "above 0.2 s the row fails."
)
COMMANDS: Final = (
    "`make faults` runs all rows and writes this page. `python -m skipring.lab.faults --rows NAME` "
    "runs the named rows and prints the table only, `--list` prints the names, and `--short` runs "
    "the rows of the short form, as `make test` does (it fails if a tool is missing, unless "
    "`SKIPRING_ALLOW_MISSING` is set). If a tool is missing, the verdict of the row is *not run: "
    "needs X*, and the command fails unless it has `--allow-missing`. `make soak` measures "
    "growth under churn for an hour."
)


def line(outcome: FaultOutcome) -> str:
    """Return one line for a terminal."""
    found = outcome.judgement
    counts = f"lost {found.lost}, duplicated {found.duplicated}, invented {found.invented}"
    times = f"healthy after {outcome.healing_s:.1f} s, longest pause {outcome.pause_s:.2f} s"
    took = f"{outcome.seconds:.0f} s"
    return f"{outcome.row.name} x{outcome.repeats}: {counts}, {times}, {took}: {outcome.verdict}"


def table(outcomes: Sequence[FaultOutcome]) -> Iterator[str]:
    """Return the table in Markdown, line by line."""
    first, _ = table_header("fault", COLUMNS)
    yield first
    yield "|---|---|" + "---:|" * (len(COLUMNS) - 2) + "---|"
    for outcome in outcomes:
        found = outcome.judgement
        is_run = not outcome.missing
        figures = (
            str(outcome.repeats),
            str(found.lost),
            str(found.duplicated),
            str(found.invented),
            f"{outcome.healing_s:.1f}",
            f"{outcome.pause_s:.2f}",
        )
        cells = [outcome.row.method, *(figures if is_run else ["-"] * len(figures))]
        yield table_row(
            f"**{outcome.row.name}**: {outcome.row.fault}",
            [_cell(cell) for cell in (*cells, outcome.verdict)],
        )


def page(outcomes: Sequence[FaultOutcome], seconds: float) -> str:
    """Return the page of the docs."""
    held = sum(not outcome.failure and not outcome.missing for outcome in outcomes)
    measured = (
        f"Measured on {datetime.now(UTC):%Y-%m-%d} in {seconds / 60:.0f} minutes on "
        f"{os.cpu_count()} cores: {held} of {len(outcomes)} rows held. {_versions()}."
    )
    paragraphs = ("# Fault matrix", MEANING, COMMANDS, measured, "\n".join(table(outcomes)))
    return "\n\n".join(paragraphs) + "\n"


def _versions() -> str:
    system = f"{platform.system()} {platform.release()}"
    parts = [
        f"skipring {version('skipring')}",
        f"CPython {platform.python_version()}",
        f"SQLite {sqlite3.sqlite_version}",
        f"uvloop {version('uvloop')}",
        system,
    ]
    with suppress(PackageNotFoundError):
        parts.insert(-1, f"PySpark {version('pyspark')}")
    return ", ".join(parts)


def _cell(text: str) -> str:
    """Return text without characters that end a cell of the table."""
    return text.replace("|", "/").replace("\n", " ")
