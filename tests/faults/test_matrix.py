"""Fault matrix: every row of the short form passes, and failures are reported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from faults.__main__ import main
from faults.frames import bursts
from faults.judge import Judgement
from faults.matrix import HELD, FaultOutcome, FaultRow, Need, page, run_row
from faults.rows import ROWS
from faults.samples import SAMPLES
from faults.trial import FaultTrial

ALLOW_MISSING = "SKIPRING_ALLOW_MISSING"  # set: rows of the short form may lack their tools


def passing(trial: FaultTrial) -> None:
    """Do nothing."""


def _broken(trial: FaultTrial) -> None:
    raise ZeroDivisionError


def row_of(run: object = passing, **fields: object) -> FaultRow:
    return FaultRow(name="row", fault="a fault", method="a method", run=run, **fields)  # type: ignore[arg-type]


@pytest.mark.heavy
@pytest.mark.parametrize("row", [row for row in ROWS if row.short], ids=lambda row: row.name)
def test_fault_of_the_short_form_loses_duplicates_and_invents_nothing(row: FaultRow) -> None:
    outcome = run_row(row, is_short=True)
    assert not_held([outcome], allow_missing=ALLOW_MISSING in os.environ) == []


def not_held(outcomes: list[FaultOutcome], *, allow_missing: bool) -> list[str]:
    """Return the rows that failed, or were not run although their tools are required."""
    return [
        f"{each.row.name}: {each.verdict}"
        for each in outcomes
        if each.failure or (each.missing and not allow_missing)
    ]


def test_row_of_the_short_form_without_its_tool_fails_unless_that_is_allowed() -> None:
    outcomes = [FaultOutcome(row=row_of(), repeats=0, missing="cc")]
    assert not_held(outcomes, allow_missing=False) == ["row: not run: needs cc"]
    assert not_held(outcomes, allow_missing=True) == []


def test_names_of_rows_are_unique() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_row_fails_with_the_sentence_of_an_exception() -> None:
    def run(trial: FaultTrial) -> None:
        raise ValueError("of a\nbug")

    assert run_row(row_of(run)).verdict == "FAILED: ValueError: of a bug"


def test_row_fails_if_the_judge_has_findings() -> None:
    def run(trial: FaultTrial) -> None:
        trial.judgement += Judgement(lost=1, reasons=("a lacks 'x'",))

    assert run_row(row_of(run)).verdict == "FAILED: a lacks 'x'"


def test_row_fails_for_a_long_pause_except_in_the_short_form() -> None:
    def run(trial: FaultTrial) -> None:
        trial.pause_s = 0.3

    row = row_of(run, short=1)
    assert run_row(row).verdict == "FAILED: an event loop paused for 0.30 s"
    assert run_row(row, is_short=True).verdict == HELD


def test_row_without_its_tool_is_not_run() -> None:
    def run(trial: FaultTrial) -> None:
        raise AssertionError("run")

    outcome = run_row(row_of(run, needs=(Need("a hammer", lambda: False),)))
    assert outcome.verdict == "not run: needs a hammer"


@pytest.mark.parametrize(
    ("rows", "flags", "status"),
    [
        ([row_of()], [], 0),
        ([row_of(needs=(Need("a hammer", lambda: False),))], [], 1),
        ([row_of(needs=(Need("a hammer", lambda: False),))], ["--allow-missing"], 0),
        ([row_of(_broken)], ["--allow-missing"], 1),
    ],
    ids=["held", "missing", "missing and allowed", "failed"],
)
def test_exit_status_of_the_command_states_whether_rows_held(
    rows: list[FaultRow],
    flags: list[str],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("faults.__main__.ROWS", rows)
    written = tmp_path / "faults.md"
    result = CliRunner().invoke(main, [*flags, "--write", str(written)])
    assert result.exit_code == status, result.output
    assert "**row**: a fault" in written.read_text()


@pytest.mark.parametrize("flags", [["--rows", "row"], ["--short"]])
def test_page_is_not_overwritten_by_some_of_the_rows(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = [row_of(short=1), replace(row_of(), name="other")]
    monkeypatch.setattr("faults.__main__.ROWS", rows)
    written = tmp_path / "faults.md"
    written.write_text("all rows")
    result = CliRunner().invoke(main, [*flags, "--write", str(written)])
    assert result.exit_code == 0
    assert "is not written: 1 of 2 rows were run" in result.output
    assert written.read_text() == "all rows"


def test_burst_has_a_repetition_for_every_message_type_and_for_bundles() -> None:
    (row,) = [row for row in ROWS if row.name == "burst"]
    assert row.repeats == len(bursts()) == len({type(sample) for sample in SAMPLES}) + 2


def test_page_contains_the_figures_of_every_row() -> None:
    found = Judgement(1, 2, 3, ("a | b",))
    outcome = FaultOutcome(
        row=row_of(), repeats=7, judgement=found, healing_s=4.2, pause_s=0.1, failure="a | b"
    )
    assert "| **row**: a fault | a method | 7 | 1 | 2 | 3 | 4.2 | 0.10 | FAILED: a / b |" in page(
        [outcome], 60
    )
