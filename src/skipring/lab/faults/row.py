"""Rows of the fault matrix: one fault each, its cause and its outcome."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Final

from msgspec import Struct

from skipring.lab.faults.judge import Judgement
from skipring.lab.faults.trial import FaultTrial

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


class FaultRow(Struct, frozen=True, kw_only=True):
    """Row of the matrix: the fault, the method, and the function that causes the fault."""

    name: str
    fault: str
    method: str
    run: Callable[[FaultTrial], None]
    repeats: int = 1
    short: int = 0  # repetitions of the short form; 0: not part of it
    needs: tuple[Need, ...] = ()


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

    The short form runs beside other tests; it reports pauses and does not judge them.
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
    """Return why a run that ended without an exception has failed."""
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
