"""Steps of a micro-batch: the tables after rows that were made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from shutil import copytree
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from skipring.spark.pipeline.lake_files import LakeFiles
from skipring.spark.pipeline.microbatch import NO_TIME
from skipring.spark.pipeline.silver import NOT_JSON, NOT_UTF8
from tests.spark.pipeline.lakes import (
    NOON,
    PIPELINE,
    delivery,
    files,
    id_of,
    ids,
    microbatch,
    publication,
    read,
    rows,
    write_project,
)

pytestmark = pytest.mark.heavy

PUBLICATIONS = [
    publication(1, b'{"item": "tea", "amount": 4}', at_s=10),
    publication(2, b'{"item": "tea", "amount": 1.5}', at_s=50),
    publication(3, b'{"item": "mate"}', at_s=65),
    publication(4, b"\xff\xfe", publisher="bob", at_s=30),
    publication(5, b'{"item": "mate", "amount": 2}', at_s=None),
    publication(6, b'{"item": "tea", "amount": "free"}', at_s=70),
    publication(7, b'{"item": "tea", "amount": -1}', at_s=70),
    publication(8, b"[8]", at_s=70),
]
GOOD = (1, 2, 3, 5)
TABLES = ("bronze", "silver", "quarantine", "items", "minutes")


@pytest.fixture(scope="module")
def project(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project whose lake has one micro-batch; no test changes it."""
    directory = write_project(tmp_path_factory.mktemp("project"))
    figures = microbatch(spark, directory).run(rows(spark, PUBLICATIONS), 0)
    assert figures.rows == {"bronze": 8, "silver": 4, "quarantine": 4}
    return directory


@pytest.fixture
def copy(project: Path, tmp_path: Path) -> Path:
    return Path(copytree(project, tmp_path, dirs_exist_ok=True))


def contents(directory: Path) -> dict[str, list[str]]:
    return {name: sorted(map(repr, read(directory / "lake", name))) for name in TABLES}


def orders(directory: Path) -> dict[Any, int]:
    """Return the gold table ``minutes``, by minutes after noon."""
    found = read(directory / "lake", "minutes")
    keyed = {row["window_start"] - NOON: row["orders"] for row in found}
    assert len(keyed) == len(found)
    return keyed


# -- the tables --------------------------------------------------------------------------------


def test_bronze_has_unchanged_publications(project: Path) -> None:
    assert ids(project / "lake", "bronze") == sorted(map(id_of, range(1, 9)))
    (row,) = (row for row in read(project / "lake", "bronze") if row["sequence"] == 4)
    assert row["value"] == b"\xff\xfe"
    assert row["headers"] == [("source", b"test")]


def test_silver_has_typed_publications(project: Path) -> None:
    found = {row["sequence"]: row for row in read(project / "lake", "silver")}
    assert set(found) == set(GOOD)
    assert (found[2]["item"], found[2]["amount"], found[2]["net"]) == ("tea", 1.5, 0.75)
    assert (found[3]["amount"], found[3]["key"]) == (None, "k3")


def test_failed_publication_is_only_in_quarantine_with_the_reason(project: Path) -> None:
    found = {row["sequence"]: row["reason"] for row in read(project / "lake", "quarantine")}
    assert found == {
        4: NOT_UTF8,
        6: "the field amount is no double",
        7: "amount is not negative",
        8: NOT_JSON,
    }


def test_gold_has_the_result_of_the_sql(project: Path) -> None:
    minute = timedelta(minutes=1)
    assert orders(project) == {timedelta(0): 2, minute: 1}
    items = {(row["window_start"], row["item"]): row["amount"]
             for row in read(project / "lake", "items")}  # fmt: skip
    assert items == {(NOON, "tea"): 5.5, (NOON, "mate"): None}


def test_pandas_reads_every_table_and_a_table_without_rows(
    spark: SparkSession, project: Path, tmp_path: Path
) -> None:
    empty = write_project(tmp_path / "empty")
    microbatch(spark, empty)
    for name in TABLES:
        columns = list(pd.read_parquet(empty / "lake" / name).columns)
        found = pd.read_parquet(project / "lake" / name)
        assert len(found) == len(read(project / "lake", name))
        assert list(found.columns) == columns
        assert columns[-1] == "date"


def test_duckdb_reads_every_table_and_a_table_without_rows(
    spark: SparkSession, project: Path, tmp_path: Path
) -> None:
    duckdb = pytest.importorskip("duckdb")
    empty = write_project(tmp_path / "empty")
    microbatch(spark, empty)
    for directory in (project, empty):
        for name in TABLES:
            found = duckdb.sql(f"SELECT count(*) FROM '{directory}/lake/{name}/**/*.parquet'")
            assert found.fetchall() == [(len(read(directory / "lake", name)),)]


# -- later micro-batches -----------------------------------------------------------------------


def test_duplicates_are_dropped_and_rows_are_appended_to_the_same_file(
    spark: SparkSession, copy: Path
) -> None:
    before = files(copy / "lake", "silver")
    new = publication(9, b'{"item": "tea", "amount": 7}', at_s=4)
    again = [PUBLICATIONS[0], PUBLICATIONS[3], PUBLICATIONS[4], new, new]
    figures = microbatch(spark, copy).run(rows(spark, again), 1)
    assert (figures.rows["bronze"], figures.rows["silver"], figures.duplicates) == (1, 1, 4)
    assert ids(copy / "lake", "bronze") == sorted(map(id_of, range(1, 10)))
    assert files(copy / "lake", "silver") == before
    assert orders(copy) == {timedelta(0): 3, timedelta(minutes=1): 1}


def test_late_row_changes_only_its_own_window(spark: SparkSession, copy: Path) -> None:
    late = publication(9, b'{"item": "tea", "amount": 7}', at_s=-86_400 * 3)
    microbatch(spark, copy).run(rows(spark, [late]), 1)
    assert orders(copy)[timedelta(days=-3)] == 1
    assert len(orders(copy)) == 3
    assert {row["date"] for _, row in pd.read_parquet(copy / "lake" / "minutes").iterrows()} >= {
        "2025-12-29", "2026-01-01"
    }  # fmt: skip


def test_first_row_without_a_time_is_reported_and_recomputes_no_window(
    spark: SparkSession, copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runner = microbatch(spark, copy)
    before = {
        path: path.stat() for name in ("items", "minutes") for path in files(copy / "lake", name)
    }
    for number in (9, 10):
        timeless = publication(number, b'{"item": "tea"}', at_s=None)
        assert runner.run(rows(spark, [timeless, PUBLICATIONS[4]]), number).duplicates == 1
    assert {path: path.stat() for path in before} == before
    assert [record.getMessage() for record in caplog.records].count(NO_TIME) == 1


def test_new_field_of_the_payload_becomes_a_column(spark: SparkSession, copy: Path) -> None:
    runner = microbatch(spark, copy)
    added = b'{"item": "tea", "amount": 1, "vip": true, "note": {"a": 1}, "__x": 1, "none": null}'
    runner.run(rows(spark, [publication(9, added, at_s=4)]), 1)
    runner = microbatch(spark, copy)  # after a restart
    runner.run(rows(spark, [publication(10, b'{"item": "tea", "vip": false}', at_s=5)]), 2)
    found = {row["sequence"]: row for row in read(copy / "lake", "silver")}
    assert (found[9]["vip"], found[9]["note"], found[10]["vip"]) == (True, '{"a":1}', False)
    assert found[1]["vip"] is None
    assert not {"__x", "none"} & set(found[9])
    assert "vip" in pd.read_parquet(copy / "lake" / "silver").columns


def test_new_fields_that_cannot_be_columns_stay_in_bronze(spark: SparkSession, copy: Path) -> None:
    gold = "SELECT window_start, s.item, vip FROM silver s JOIN (SELECT 1 AS vip) GROUP BY 1, 2, 3"
    write_project(copy, gold={"guests": gold})
    value = b'{"item": "tea", "Item": "x", "ID": 1, "Date": 2, "a": 1, "A": "x", "vip": true}'
    microbatch(spark, copy).run(rows(spark, [publication(9, value, at_s=4)]), 1)
    more = [publication(10, b'{"item": "mate", "a": 1.5}', at_s=5)]
    runner = microbatch(spark, copy)  # after a restart
    runner.run(rows(spark, more), 2)
    value = '{"aB": 1, "vip": 1, "größe": 2}'.encode()
    runner.run(rows(spark, [publication(11, value, at_s=6)]), 3)
    found = {row["sequence"]: row for row in read(copy / "lake", "silver")}
    assert (found[9]["item"], found[9]["A"], found[10]["item"]) == ("tea", "x", "mate")
    assert (found[11]["aB"], found[11]["größe"]) == (1.0, 2.0)
    assert not {"Item", "ID", "Date", "a", "vip"} & set(found[9])


def test_lake_with_a_column_that_collides_with_another_is_opened_again(
    spark: SparkSession, copy: Path
) -> None:
    state = json.loads((copy / "lake" / "lake.json").read_text())
    state["columns"] |= {"Item": "string", "ID": "bigint"}
    (copy / "lake" / "lake.json").write_text(json.dumps(state))
    figures = microbatch(spark, copy).run(rows(spark, [publication(9, b'{"item": "x"}')]), 1)
    assert figures.rows["silver"] == 1
    assert set(json.loads((copy / "lake" / "lake.json").read_text())["columns"]) == {
        "item", "amount", "net"
    }  # fmt: skip


def test_expression_that_fails_for_a_row_is_null(spark: SparkSession, tmp_path: Path) -> None:
    schema = """\
[columns]
item = "string"
amount = "bigint"
share = { type = "double", sql = "100 / amount" }
number = { type = "int", sql = "cast(item AS int)" }
letter = { type = "string", sql = "split(item, '')[7]" }
picked = { type = "string", sql = "letter_of(item, amount)" }

[expect]
"share is known" = "share IS NOT NULL"
"number is small" = "cast(item AS int) < 9"
"""
    gold = "SELECT window_start, sum(amount) / min(amount - 4) AS n FROM silver GROUP BY 1"
    directory = write_project(tmp_path, schema=schema, gold={"ratio": gold})
    function = "def letter_of(text: str, place: int) -> str:\n    return text[place]\n"
    (directory / "functions.py").write_text(function)
    values = [b'{"item": "tea", "amount": 4}', b'{"item": "tea", "amount": 0}']
    given = rows(spark, [publication(n, value) for n, value in enumerate(values)])
    microbatch(spark, directory).run(given, 0)
    (row,) = read(tmp_path / "lake", "silver")
    assert (row["share"], row["number"], row["letter"], row["picked"]) == (25, None, None, None)
    (bad,) = read(tmp_path / "lake", "quarantine")
    assert bad["reason"] == "share is known"
    assert [row["n"] for row in read(tmp_path / "lake", "ratio")] == [None]


def test_deliveries_are_a_table_that_gold_joins(spark: SparkSession, tmp_path: Path) -> None:
    sql = """\
-- of: deliveries
-- lookback: 1h
SELECT window_start, node, count(*) AS deliveries,
  max((unix_micros(arrived) - unix_micros(timestamp)) / 1000) AS latency_ms
FROM deliveries LEFT JOIN silver USING (id) GROUP BY window_start, node
"""
    pipeline = f"{PIPELINE}deliveries = true\nkeep_values = false\n"
    directory = write_project(tmp_path, pipeline=pipeline, gold={"arrivals": sql})
    runner = microbatch(spark, directory)
    first = delivery(2, "n2", at_s=50.5)  # read before its publication
    runner.run(rows(spark, PUBLICATIONS[:1], [delivery(1, "n2", at_s=10.25), first]), 0)
    runner.run(rows(spark, PUBLICATIONS[1:2], [first]), 1)
    (found,) = read(tmp_path / "lake", "arrivals")
    assert (found["node"], found["deliveries"], found["latency_ms"]) == ("n2", 2, 500)
    assert len(read(tmp_path / "lake", "deliveries")) == 2
    assert {row["value"] for row in read(tmp_path / "lake", "bronze")} == {None}


# -- killed ------------------------------------------------------------------------------------


class Killed(BaseException):
    """Simulated kill, which no handler catches."""


def killed_at(call: int) -> Callable[..., None]:
    """Return a replacement of ``LakeFiles.replace`` that raises at this call."""
    replace, calls = LakeFiles.replace, 0

    def killed(own: LakeFiles, source: str, target: str) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise Killed
        replace(own, source, target)

    return killed


def test_batch_killed_at_any_of_its_writes_runs_again_with_the_same_outcome(
    spark: SparkSession, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(tmp_path)
    empty = tmp_path / "empty"
    microbatch(spark, tmp_path)
    copytree(tmp_path, empty, ignore=lambda *_: ["empty"])
    batch = rows(spark, PUBLICATIONS)
    for call in (1, 2, 4, 8):  # the commit is ready after the first
        again = Path(copytree(empty, tmp_path / f"killed-{call}"))
        runner = microbatch(spark, again)
        with monkeypatch.context() as patched:
            patched.setattr(LakeFiles, "replace", killed_at(call))
            with pytest.raises(Killed):
                runner.run(batch, 0)
        assert (contents(again) == contents(empty)) == (call <= 2)
        figures = microbatch(spark, again).run(batch, 0)
        assert figures.duplicates == (0 if call == 1 else len(PUBLICATIONS))
        assert contents(again) == contents(project)
