"""The report on a lake: of none, of one row, and of rows that want to be markup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from skipring.spark.pipeline.aggregates import POINTS_MAX, bucket_s
from skipring.spark.pipeline.manifest import Manifest, write_about
from skipring.spark.pipeline.microbatch import Steps
from skipring.spark.pipeline.report import look, write_report
from skipring.spark.pipeline.runner import prepare
from skipring.spark.pipeline.silver import PayloadFormat
from tests.spark.pipeline.lakes import delivery, publication, rows
from tests.spark.rings import TOPIC

ABOUT = Manifest(supervisors=("127.0.0.1:7400",), topics=(TOPIC,), values=PayloadFormat.TEXT)


def text_of(page: str) -> str:
    """What a person reads, without the scripts."""
    return re.sub(r"<[^>]*>", " ", re.sub(r"(?s)<(script|style).*?</\1>", " ", page))


def page_on(spark: SparkSession, lake: Path) -> str:
    out = lake / "pages" / "report.html"
    write_report(spark, lake, ABOUT, out)
    return out.read_text(encoding="utf-8")


@pytest.mark.heavy
def test_an_empty_lake_has_a_report_that_says_so(spark: SparkSession, tmp_path: Path) -> None:
    write_about(tmp_path, ABOUT)
    text = text_of(page_on(spark, tmp_path))
    assert "0 publications with 0 bytes" in text
    assert "Exactly once: 0 ids in bronze" in text
    assert "Nothing is known yet." in text
    assert "Nothing was rejected." in text


@pytest.mark.heavy
def test_a_lake_with_one_row_has_a_report(spark: SparkSession, tmp_path: Path) -> None:
    prepare(spark)
    write_about(tmp_path, ABOUT)
    Steps(tmp_path, PayloadFormat.TEXT, 60).take(rows(spark, [publication(1, b"one")]), 0)
    page = page_on(spark, tmp_path)
    text = text_of(page)
    assert "1 publication" in text
    assert "Exactly once: 1 ids in bronze" in text
    assert page.count('<div class="plot"') == 2  # rates only: nothing was delivered


@pytest.mark.heavy
def test_a_report_shows_deliveries_and_what_is_rejected_is_never_markup(
    spark: SparkSession, tmp_path: Path
) -> None:
    prepare(spark)
    write_about(tmp_path, ABOUT)
    bad = b"\xff<script>alert(1)</script>"
    came = [
        delivery(1, "n2", at_s=0.01),
        delivery(1, "n3", at_s=2, hops=0, origin="repair"),
    ]
    sent = [publication(1, b"one"), publication(2, bad, publisher="<b>"), publication(1, b"one")]
    sent.append(publication(3, bad, at_s=9e12))  # in some hundred thousand years
    figures = Steps(tmp_path, PayloadFormat.TEXT, 60).take(rows(spark, sent, came), 0)
    assert (figures.bronze, figures.windows) == (4, 2)
    page = page_on(spark, tmp_path)
    text = text_of(page)
    assert "<script>alert(1)" not in page
    assert "\\xff&lt;script&gt;alert(1)" in page
    assert "&lt;b&gt;" in page
    assert "50.0 % of the deliveries came by spreading, 50.0 % by repair" in text
    assert "1 publication carried no time, or an absurd one" in text
    assert re.search(r"duplicates removed\s+1\b", text)
    assert page.count('<div class="plot"') == 7


@pytest.mark.heavy
def test_headline_and_tables_give_the_latency_of_the_same_deliveries(
    spark: SparkSession, tmp_path: Path
) -> None:
    prepare(spark)
    write_about(tmp_path, ABOUT)
    sent = [publication(number, b"x") for number in range(8)]
    sent.append(publication(8, b"x", at_s=9e12))  # an absurd time: no latency follows from it
    came = [delivery(number, "n2", at_s=0.003 + 0.001 * number) for number in range(3)]
    came += [delivery(number, "n2", at_s=5.781, hops=0, origin="repair") for number in range(3, 8)]
    came += [delivery(8, "n2", at_s=1)]
    Steps(tmp_path, PayloadFormat.TEXT, 60).take(rows(spark, sent, came), 0)

    found = look(spark, tmp_path, ABOUT)
    text = text_of(page_on(spark, tmp_path))

    spread = dict(zip(found.distribution.origin, found.distribution.latency_ms, strict=True))
    assert spread["spread"][50] == 4
    for table in (found.nodes, found.publishers, found.latencies):
        assert table[["p50", "p95", "p99"]].to_numpy().tolist() == [pytest.approx([4, 4.9, 4.98])]
    assert "Half of what was spread arrived within 4 ms." in text
    assert text.count("spread p50 in ms") == 2
    assert re.search(r"n2\s+9\s+4\s+4\.90\s+4\.98\s+55\.6 %", text)


@pytest.mark.heavy
def test_node_that_got_everything_by_repair_has_no_latency_of_spreading(
    spark: SparkSession, tmp_path: Path
) -> None:
    prepare(spark)
    write_about(tmp_path, ABOUT)
    came = [delivery(1, "n2", at_s=5.781, hops=0, origin="repair")]
    Steps(tmp_path, PayloadFormat.TEXT, 60).take(rows(spark, [publication(1, b"x")], came), 0)
    text = text_of(page_on(spark, tmp_path))
    assert "Half of what was spread" not in text
    assert re.search(r"n2\s+1\s+–\s+–\s+–\s+100 %", text)  # noqa: RUF001
    assert "repair: half within 5,781 ms" in text


@pytest.mark.parametrize(
    ("length_s", "expected_s"), [(0, 60), (3600, 60), (60 * POINTS_MAX + 1, 120), (86_400, 480)]
)
def test_a_figure_has_whole_windows_and_not_too_many(length_s: float, expected_s: int) -> None:
    assert bucket_s(1e9, 1e9 + length_s, 60) == expected_s
