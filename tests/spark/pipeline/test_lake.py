"""Manifest and progress of a lake, and the translation of Spark's errors; without Spark."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.errors import PySparkException
from rich.console import Console

from skipring.errors import DataLossError, InputError, SkipringError, UnreachableError
from skipring.spark.errors import to_skipring_error, translate_spark_errors
from skipring.spark.pipeline.lake import Name
from skipring.spark.pipeline.manifest import (
    Manifest,
    RequestedConfig,
    agreed,
    read_about,
    write_about,
)
from skipring.spark.pipeline.microbatch import Figures
from skipring.spark.pipeline.runner import (
    PipelineProgress,
    as_json,
    as_line,
    as_table,
    behind,
    shown,
)
from skipring.spark.pipeline.silver import PayloadFormat

WISH = RequestedConfig(supervisors=("127.0.0.1:7400",), topics=("orders", "invoices"))
ABOUT = Manifest(supervisors=WISH.supervisors, topics=("invoices", "orders"))

# -- what a lake is about ----------------------------------------------------------------------


def test_a_lake_remembers_what_it_is_about(tmp_path: Path) -> None:
    about = agreed(tmp_path / "lake", WISH)
    assert about == ABOUT
    write_about(tmp_path / "lake", about)
    assert read_about(tmp_path / "lake") == about
    assert agreed(tmp_path / "lake", WISH) == about


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"topics": ("orders",)}, "has topics invoices, orders, not orders"),
        ({"values": PayloadFormat.JSON}, "has values auto, not json"),
        ({"window_s": 5}, "has windows 60 s, not 5 s"),
        ({"supervisors": ("127.0.0.1:1",)}, "belongs to the ring of 127.0.0.1:7400"),
    ],
)
def test_a_lake_that_is_about_something_else_is_refused(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    write_about(tmp_path, ABOUT)
    with pytest.raises(InputError, match=said):
        agreed(tmp_path, replace(WISH, **change))


def test_a_supervisor_that_moved_is_named_beside_its_old_address(tmp_path: Path) -> None:
    write_about(tmp_path, ABOUT)
    moved = ("127.0.0.1:1", "127.0.0.1:7400")
    assert set(agreed(tmp_path, replace(WISH, supervisors=moved)).supervisors) == set(moved)


def test_another_directory_is_not_taken_for_a_lake(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(InputError, match="is no lake, and not empty"):
        agreed(tmp_path, WISH)
    with pytest.raises(InputError, match=r"it has no lake\.json"):
        read_about(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", '{"format": 7}', '{"x": 1}'])
def test_damaged_manifest_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "lake.json").write_text(text)
    with pytest.raises(InputError, match=r"lake\.json cannot be read"):
        read_about(tmp_path)


def test_lake_of_another_format_is_refused(tmp_path: Path) -> None:
    write_about(tmp_path, replace(ABOUT, format="skipring-lake/9"))
    with pytest.raises(InputError, match="we know only 'skipring-lake/1'"):
        read_about(tmp_path)


def test_a_lake_that_has_lost_its_checkpoint_is_not_gone_on_with(tmp_path: Path) -> None:
    write_about(tmp_path, ABOUT)
    (tmp_path / Name.BRONZE / "batch=0").mkdir()
    with pytest.raises(InputError, match="has lost its directory 'checkpoint'"):
        agreed(tmp_path, WISH)


# -- progress ----------------------------------------------------------------------------------

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


def test_a_line_tells_a_program_and_a_person_of_a_batch() -> None:
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


# -- failures ----------------------------------------------------------------------------------

TRACEBACK = """[STREAM_FAILED] Query [id = 7, runId = 8] terminated with exception: Traceback:
  File "worker.py", line 1, in main
    raise ValueError("first")
ValueError: first

During handling of the above exception, another exception occurred:
skipring.errors.DataLossError: the store is gone; bring it back
\tat org.apache.spark.Worker.run(Worker.scala:1)
"""


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        (TRACEBACK, DataLossError, "the store is gone; bring it back"),
        ("pickled: skipring.errors.UnreachableError: away", UnreachableError, "away"),
        ("x\nskipring.errors.Unheard: of", SkipringError, "Spark has failed: x"),
        ("a\nCaused by: java.io.IOException: disk\n\tat x", SkipringError,
         "Spark has failed: IOException: disk"),
        ("[A] one\ntwo", SkipringError, "Spark has failed: [A] one"),
    ],
)  # fmt: skip
def test_spark_errors_become_one_sentence(
    text: str, kind: type[SkipringError], sentence: str
) -> None:
    error = to_skipring_error(PySparkException(text))
    assert type(error) is kind
    assert str(error) == sentence
    with pytest.raises(kind), translate_spark_errors():
        raise PySparkException(text)
