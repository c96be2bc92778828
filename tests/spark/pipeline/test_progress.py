"""Progress of a pipeline: lines, a table, lag and metrics."""

from __future__ import annotations

import json
import socket
from io import StringIO
from typing import Any
from urllib.request import urlopen

import pytest
from msgspec.structs import replace
from rich.console import Console

from skipring.errors import InputError
from skipring.spark.pipeline.microbatch import BatchFigures
from skipring.spark.pipeline.progress import (
    PipelineMetrics,
    PipelineProgress,
    as_json,
    as_line,
    as_table,
    behind,
    live_progress,
)

PROGRESS = PipelineProgress(
    figures=BatchFigures(
        batch=7, rows={"bronze": 99, "silver": 97, "quarantine": 2}, duplicates=1, seconds=1.5
    ),
    totals={"bronze": 1000, "silver": 990, "quarantine": 10},
    per_s=20.0,
    behind={"orders": 5},
)


def test_progress_is_one_line_of_json_or_text() -> None:
    found = json.loads(as_json(PROGRESS))
    assert (found["batch"], found["rows"]["silver"], found["behind"]) == (7, 97, {"orders": 5})
    assert found["totals"] == PROGRESS.totals
    assert as_line(PROGRESS) == (
        "batch 7: 100 publications (20/s), 99 bronze, 97 silver, 2 quarantine, 1 duplicate, "
        "5 behind, 1.5 s"
    )


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_a_table_on_a_terminal_and_lines_on_a_pipe(is_terminal: bool) -> None:
    out = StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=100)
    with live_progress(console, "orders") as report:
        report(PROGRESS)
        report(replace(PROGRESS, behind=None))
    assert ("behind the ring" in out.getvalue()) == is_terminal
    assert ("batch 7: 100" in out.getvalue()) != is_terminal
    assert as_table("orders", PROGRESS).row_count == 7


def position(offset: int, store: str = "a") -> dict[str, Any]:
    return {"orders": {"store": store, "epoch": 0, "offset": offset}}


@pytest.mark.parametrize(
    ("read", "there", "expected"),
    [
        (json.dumps(position(3)), json.dumps(position(8)), {"orders": 5}),
        (position(8), position(8), {"orders": 0}),
        (position(9), position(8), {"orders": 0}),
        (position(3), position(8, "b"), None),
        (position(3), "null", None),
        (None, position(8), None),
        ({}, position(8), None),
    ],
)
def test_lag_is_returned_if_it_is_known(
    read: object, there: object, expected: dict[str, int] | None
) -> None:
    assert behind({"sources": [{"endOffset": read, "latestOffset": there}]}) == expected


def test_metrics_are_served_on_loopback() -> None:
    metrics = PipelineMetrics()
    with metrics.served("127.0.0.1:0") as port:
        metrics.record(PROGRESS)
        metrics.record(replace(PROGRESS, behind=None))
        text = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    for line in (
        'skipring_pipeline_rows_total{table="silver"} 194.0',
        "skipring_pipeline_duplicates_total 2.0",
        "skipring_pipeline_batch_seconds 1.5",
        'skipring_pipeline_behind{topic="orders"} 5.0',
    ):
        assert line in text.splitlines()


def test_address_of_metrics_that_cannot_be_used_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match="cannot listen"):
            PipelineMetrics().served(address).__enter__()
    with pytest.raises(InputError, match="other machines"):
        PipelineMetrics().served("0.0.0.0:0").__enter__()
    with PipelineMetrics().served(None) as port:
        assert port is None
