"""Run of a pipeline: progress, lag and the lock of the lake."""

from __future__ import annotations

import fcntl
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession
from rich.console import Console

from skipring.errors import StoreBusyError
from skipring.spark.pipeline import runner as runner_module
from skipring.spark.pipeline.lake import Name
from skipring.spark.pipeline.manifest import Manifest
from skipring.spark.pipeline.microbatch import Figures
from skipring.spark.pipeline.runner import (
    PipelineProgress,
    as_json,
    as_line,
    as_table,
    behind,
    shown,
)

ABOUT = Manifest(supervisors=("127.0.0.1:7400",), topics=("invoices", "orders"))
PROGRESS = PipelineProgress(
    figures=Figures(
        batch=7,
        bronze=100,
        deliveries=300,
        silver=97,
        rejected=2,
        duplicates=1,
        windows=3,
        seconds=1.5,
    ),
    totals=dict.fromkeys(Name, 1000),
    per_s=20.0,
    behind=5,
)


def test_progress_is_one_line_of_json_or_text() -> None:
    found = json.loads(as_json(PROGRESS))
    assert (found["batch"], found["silver"], found["behind"]) == (7, 97, 5)
    assert found["totals"] == {str(name): 1000 for name in Name}
    assert as_line(PROGRESS) == (
        "batch 7: 100 publications (20/s), 97 new, 2 rejected, 1 duplicate, 300 deliveries, "
        "3 windows, 5 behind, 1.5 s"
    )
    one = replace(PROGRESS, figures=replace(PROGRESS.figures, windows=1))
    assert ", 1 window, " in as_line(one)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_a_table_on_a_terminal_and_lines_on_a_pipe(is_terminal: bool) -> None:
    out = StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=100)
    with shown(console, ABOUT) as tell:
        tell(PROGRESS)
        tell(replace(PROGRESS, behind=None))
    assert ("behind the ring" in out.getvalue()) == is_terminal
    assert ("batch 7: 100" in out.getvalue()) != is_terminal
    assert as_table(ABOUT, PROGRESS).row_count == 9


def position(offset: int, store: str = "a") -> dict[str, Any]:
    return {"orders": {"store": store, "epoch": 0, "offset": offset}}


@pytest.mark.parametrize(
    ("read", "there", "expected"),
    [
        (json.dumps(position(3)), json.dumps(position(8)), 5),
        (position(8), position(8), 0),
        (position(9), position(8), 0),
        (position(3), position(8, "b"), None),
        (position(3), "null", None),
        (None, position(8), None),
        ({}, position(8), None),
    ],
)
def test_lag_is_returned_if_it_is_known(read: object, there: object, expected: int | None) -> None:
    assert behind({"sources": [{"endOffset": read, "latestOffset": there}]}) == expected


@pytest.mark.heavy
def test_lake_that_another_process_writes_to_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "LOCK_WAIT_S", 0.1)
    with runner_module.locked(spark, tmp_path):
        pass
    with (tmp_path / runner_module.LOCK).open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)  # as the JVM of another run does
        with pytest.raises(StoreBusyError, match="another pipeline"):
            runner_module.locked(spark, tmp_path).__enter__()
    with runner_module.locked(spark, tmp_path):
        pass
