"""Upkeep of a lake: changed gold tables, functions, retention and compaction."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from os import utime
from pathlib import Path
from shutil import copytree

import pytest
from pyspark.sql import SparkSession

from skipring.errors import InputError
from skipring.spark.pipeline import lake as lake_module
from skipring.spark.pipeline.lake_files import LakeFiles
from tests.spark.pipeline.lakes import (
    MINUTES,
    NOON,
    PIPELINE,
    SCHEMA,
    files,
    ids,
    microbatch,
    opened,
    publication,
    read,
    rows,
    write_project,
)

pytestmark = pytest.mark.heavy

TEA = b'{"item": "tea", "amount": 4}'
NOW_S = datetime.now(UTC).timestamp() - NOON.timestamp()
SQL = "SELECT window_start, item, count(*) AS orders FROM silver GROUP BY window_start, item"


def test_changed_and_new_gold_tables_are_rebuilt_from_all_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_project(tmp_path, gold={"items": SQL})
    days = [publication(number, TEA, at_s=86_400.0 * number) for number in range(3)]
    microbatch(spark, tmp_path).run(rows(spark, [*days, publication(9, TEA, at_s=None)]), 0)
    changed = SQL.replace("AS orders", "AS sold")
    write_project(tmp_path, gold={"items": changed, "minutes": MINUTES})
    opened(spark, tmp_path)
    assert [row["sold"] for row in read(tmp_path / "lake", "items")] == [1] * 3
    assert sum(row["orders"] for row in read(tmp_path / "lake", "minutes")) == 3


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT count(*) AS n FROM silver", "has no column window_start"),
        ("SELECT nothing FROM silver", "gold/items.sql: .*nothing"),
        ("SELEC", "gold/items.sql: "),
        ("SELECT window_start, 1 AS date FROM silver", "rename the column 'date'"),
    ],
)
def test_wrong_sql_is_reported_at_the_start(
    spark: SparkSession, tmp_path: Path, sql: str, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        opened(spark, write_project(tmp_path, gold={"items": sql}))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ('[columns]\nid = "int"', "cannot have a column 'id'"),
        ('[columns]\na = "integre"', "schema of silver is wrong"),
        ('[columns]\na = { type = "int", sql = "b" }', "schema of silver is wrong"),
        ('[columns]\na = "int"\n[expect]\nx = "b > 0"', "schema of silver is wrong"),
        ('time = "a"\n[columns]\na = "int"', "no column 'a' of type timestamp"),
    ],
)
def test_wrong_schema_is_reported_at_the_start(
    spark: SparkSession, tmp_path: Path, schema: str, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        opened(spark, write_project(tmp_path, schema=schema, gold={}))


def test_functions_are_known_to_sql(spark: SparkSession, tmp_path: Path) -> None:
    schema = SCHEMA.replace("amount / 2", "net_of(amount)")
    write_project(tmp_path, schema=schema, gold={"items": SQL.replace("item,", "net_of(2) AS n,")})
    (tmp_path / "functions.py").write_text(
        "from pyspark.sql.functions import udf\n\n"
        "def net_of(amount: float) -> float:\n    return amount / 4\n\n\n"
        "half = udf(lambda x: x // 2, 'int')\n"
    )
    microbatch(spark, tmp_path).run(rows(spark, [publication(1, TEA)]), 0)
    assert [row["net"] for row in read(tmp_path / "lake", "silver")] == [1.0]


def test_event_time_of_the_payload_determines_dates_and_windows(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = 'time = "placed"\n[columns]\nplaced = "timestamp"\n'
    write_project(tmp_path, schema=schema, gold={"minutes": MINUTES})
    value = b'{"placed": "2026-03-02T09:00:10Z"}'
    microbatch(spark, tmp_path).run(rows(spark, [publication(1, value)]), 0)
    (row,) = read(tmp_path / "lake", "minutes")
    assert row["window_start"] == datetime(2026, 3, 2, 9, tzinfo=UTC)
    assert [path.parent.name for path in files(tmp_path / "lake", "silver")][1:] == [
        "date=2026-03-02"
    ]


def test_expired_dates_are_removed(spark: SparkSession, tmp_path: Path) -> None:
    write_project(tmp_path, pipeline=f'{PIPELINE}retention = "2d"\n', gold={"items": SQL})
    given = [publication(1, TEA, at_s=NOW_S), publication(2, TEA, at_s=NOW_S - 4 * 86_400)]
    microbatch(spark, tmp_path).run(rows(spark, given), 0)
    opened(spark, tmp_path)
    for name in ("bronze", "silver", "items"):
        assert len(read(tmp_path / "lake", name)) == 1


def test_expired_files_of_rows_without_a_time_are_removed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_module, "OPEN_BYTES_MAX", 0)  # each micro-batch begins a file
    write_project(tmp_path, pipeline=f'{PIPELINE}retention = "2d"\n', gold={})
    runner = microbatch(spark, tmp_path)
    for number in range(2):
        runner.run(rows(spark, [publication(number, TEA, at_s=None)]), number)
    for name in ("bronze", "silver"):
        old = tmp_path / "lake" / name / lake_module.TIMELESS / "part-000000.parquet"
        utime(old, (NOON.timestamp(), NOON.timestamp()))
    runner = microbatch(spark, tmp_path)
    for name in ("bronze", "silver"):
        assert [row["sequence"] for row in read(tmp_path / "lake", name)] == [1]
    assert runner.run(rows(spark, [publication(1, TEA, at_s=None)]), 2).duplicates == 1


def test_small_files_are_merged_without_changing_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_module, "OPEN_BYTES_MAX", 0)  # each micro-batch begins a file
    write_project(tmp_path)
    runner = microbatch(spark, tmp_path)
    for number in range(3):
        runner.run(rows(spark, [publication(number, TEA, at_s=number)]), number)
    before = ids(tmp_path / "lake", "silver")
    assert len(files(tmp_path / "lake", "silver")) == 4
    assert opened(spark, tmp_path).optimize() == 6  # three of bronze, three of silver
    assert len(files(tmp_path / "lake", "silver")) == 2
    assert ids(tmp_path / "lake", "silver") == before
    again = rows(spark, [publication(number, TEA, at_s=number) for number in range(4)])
    assert microbatch(spark, tmp_path).run(again, 3).duplicates == 3


class Killed(BaseException):
    """Simulated kill, which no handler catches."""


def test_no_row_is_visible_twice_while_files_are_merged_or_after_a_kill(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_module, "OPEN_BYTES_MAX", 0)  # each micro-batch begins a file
    runner = microbatch(spark, write_project(tmp_path / "all", gold={}))
    for number in range(6):
        runner.run(rows(spark, [publication(number, TEA, at_s=number)]), number)
    largest = max(path.stat().st_size for path in files(tmp_path / "all" / "lake", "silver"))
    monkeypatch.setattr(lake_module, "FILE_BYTES", 3 * largest)  # two merged files
    steps = 0
    while True:  # killed before each step
        directory = Path(copytree(tmp_path / "all", tmp_path / f"killed-{steps}"))
        every = ids(directory / "lake", "silver")
        with monkeypatch.context() as patched:
            watch_steps(patched, directory / "lake", steps)
            try:
                opened(spark, directory).optimize()
                break
            except Killed:
                steps += 1
        opened(spark, directory).optimize()
        assert ids(directory / "lake", "silver") == every
    assert steps == 6  # two groups: two files are removed, then the merged one is put in place
    assert len(files(directory / "lake", "silver")) == 3


def watch_steps(patched: pytest.MonkeyPatch, lake: Path, steps: int) -> None:
    """Check before each change of silver that no row is visible twice; kill after some of them."""
    count = 0

    def watched(change: Callable[..., None]) -> Callable[..., None]:
        def step(own: LakeFiles, *paths: str) -> None:
            nonlocal count
            if paths[-1].startswith("silver/"):
                seen = ids(lake, "silver")
                assert len(seen) == len(set(seen))
                if count == steps:
                    raise Killed
                count += 1
            change(own, *paths)

        return step

    for name in ("replace", "remove"):
        patched.setattr(LakeFiles, name, watched(getattr(LakeFiles, name)))
