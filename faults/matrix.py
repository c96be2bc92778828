"""Fault matrix: rows with one fault each, their outcomes, and the table of the results."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Final

from msgspec import Struct

from faults.judge import Judgement
from faults.trial import FaultTrial
from skipring.lab.bench.report import table_header, table_row

HELD: Final = "held"
PAUSE_S_MAX: Final = 0.2  # Requirement: a longer pause of an event loop fails a row.
REASON_CHARACTERS_MAX: Final = 300


class Need(Struct, frozen=True):
    """Tool that a row uses."""

    name: str
    is_met: Callable[[], bool]


def program(name: str, *others: str) -> Need:
    """Return the need for programs on the path."""
    return Need(name, lambda: all(shutil.which(each) for each in (name, *others)))


class FaultRow(Struct, frozen=True):
    """Row of the matrix: the fault, the method, and the function that causes the fault."""

    name: str
    fault: str
    method: str
    run: Callable[[FaultTrial], None]
    repeats: int = 1
    short: int = 0  # repetitions in the short form; 0: not included
    needs: tuple[Need, ...] = ()


def fault_row(
    name: str,
    fault: str,
    method: str,
    *,
    repeats: int = 1,
    short: int = 0,
    needs: tuple[Need, ...] = (),
) -> Callable[[Callable[[FaultTrial], None]], FaultRow]:
    """Turn the function that causes a fault into a row."""
    return lambda run: FaultRow(name, fault, method, run, repeats, short, needs)


class FaultOutcome(Struct, frozen=True, kw_only=True):
    """Result of a run of a row."""

    row: FaultRow
    repeats: int
    judgement: Judgement = Judgement()
    healing_s: float = 0.0
    pause_s: float = 0.0
    seconds: float = 0.0
    missing: str = ""  # the missing tool; the row was not run
    failure: str = ""

    @property
    def verdict(self) -> str:
        """Return the last column of the table."""
        if self.missing:
            return f"not run: needs {self.missing}"
        return f"FAILED: {self.failure}" if self.failure else HELD


def run_row(row: FaultRow, *, is_short: bool = False) -> FaultOutcome:
    """Run a row, unless a tool is missing; a failure of any kind becomes its verdict.

    The short form runs concurrently with other tests; it reports pauses but does not judge them.
    """
    repeats = row.short if is_short else row.repeats
    missing = [need.name for need in row.needs if not need.is_met()]
    if missing:
        return FaultOutcome(row=row, repeats=0, missing=", ".join(missing))
    begun = monotonic()
    with TemporaryDirectory(prefix=f"skipring-{row.name}-") as directory:
        trial = FaultTrial(Path(directory), repeats)
        failure = ""
        try:
            row.run(trial)
        except Exception as error:  # noqa: BLE001  (the other rows run after any failure)
            failure = _sentence(error)
    return FaultOutcome(
        row=row,
        repeats=repeats,
        judgement=trial.judgement,
        healing_s=trial.healing_s,
        pause_s=trial.pause_s,
        seconds=monotonic() - begun,
        failure=failure or _wrong(trial, inf if is_short else PAUSE_S_MAX),
    )


def _wrong(trial: FaultTrial, pause_s_max: float) -> str:
    """Return the reason why a run without an exception has failed, or an empty text."""
    reasons = list(trial.judgement.reasons)
    if trial.pause_s > pause_s_max:
        reasons.append(f"an event loop paused for {trial.pause_s:.2f} s")
    return _cut("; ".join(reasons))


def _sentence(error: BaseException) -> str:
    text = str(error) or repr(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return _cut(kind + " ".join(lines))


def _cut(text: str) -> str:
    return text if len(text) <= REASON_CHARACTERS_MAX else f"{text[:REASON_CHARACTERS_MAX]} ..."


# --- table ----------------------------------------------------------------------------

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
    "`make faults` runs all rows and writes this page. `python -m faults --rows NAME` "
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
    """Return the text without characters that would end a table cell."""
    return text.replace("|", "/").replace("\n", " ")
