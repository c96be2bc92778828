"""Report on a lake: its figures, and a page that shows them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from skipring.errors import InputError
from skipring.spark.pipeline.project import read_project
from skipring.spark.pipeline.report import write_report
from tests.spark.pipeline.lakes import (
    NOON,
    PIPELINE,
    microbatch,
    publication,
    rows,
    write_project,
)
from tests.spark.rings import TOPIC

pytestmark = pytest.mark.heavy

AGES = (timedelta(hours=1), timedelta(days=9))


def page_of(spark: SparkSession, directory: Path) -> str:
    out = directory / "page" / "report.html"
    write_report(spark, read_project(directory), out)
    return out.read_text("utf-8")


def test_page_shows_gold_quarantine_and_the_balance(spark: SparkSession, tmp_path: Path) -> None:
    given = [
        publication(1, b'{"item": "tea", "amount": 4}'),
        publication(2, b'{"item": "mate", "amount": 4}', at_s=60),
        publication(3, b"<b>bad</b>"),
        publication(4, b'{"item": "tea"}', at_s=None),
    ]
    microbatch(spark, write_project(tmp_path)).run(rows(spark, given), 0)
    text = page_of(spark, tmp_path)
    assert f"4 publications of {TOPIC} from 2026-01-01 12:00 to 2026-01-01 12:01 UTC." in text
    assert "✓ Exactly once: 4 ids, each once in silver or in quarantine." in text
    assert "1 publications are in quarantine." in text
    assert "&lt;b&gt;bad&lt;/b&gt;" in text
    for title in ("Publications over time", "items: amount", "minutes: orders"):
        assert title in text


def test_publications_that_expired_in_one_table_are_not_reported_as_wrong(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = 'time = "placed"\n[columns]\nplaced = "timestamp"\n'
    pipeline = f'{PIPELINE}retention = "2d"\n'
    write_project(tmp_path, pipeline=pipeline, schema=schema, gold={})
    now = datetime.now(UTC)
    given = [
        publication(number, b'{"placed": "%s"}' % (now - placed).isoformat().encode(),
                    at_s=(now - sent - NOON).total_seconds())
        for number, (sent, placed) in enumerate(product(AGES, AGES))
    ]  # fmt: skip
    microbatch(spark, tmp_path).run(rows(spark, given), 0)
    microbatch(spark, tmp_path)  # the dates expire
    assert "✓ Exactly once: 2 ids, each once in silver or in quarantine, except 1 whose" in page_of(
        spark, tmp_path
    )


def test_missing_and_duplicated_ids_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    given = [publication(number, b'{"item": "tea"}') for number in range(3)]
    microbatch(spark, write_project(tmp_path)).run(rows(spark, given), 0)
    silver = tmp_path / "lake" / "silver" / "date=2026-01-01"
    (silver / "copy.parquet").write_bytes((silver / "part-000000.parquet").read_bytes())
    for path in (tmp_path / "lake" / "bronze" / "date=2026-01-01").iterdir():
        path.unlink()
    assert "✗ 3 duplicated; 3 not in bronze" in page_of(spark, tmp_path)


def test_empty_lake_has_a_page_and_no_lake_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_project(tmp_path)
    with pytest.raises(InputError, match="is no lake yet"):
        page_of(spark, tmp_path)
    microbatch(spark, tmp_path)
    assert "No data yet." in page_of(spark, tmp_path)
