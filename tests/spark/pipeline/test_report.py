"""Report on a lake: without data, with deliveries, and with values that look like markup."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from skipring.report.page import render
from skipring.spark.pipeline.aggregates import POINTS_MAX, bucket_s
from skipring.spark.pipeline.manifest import Manifest, write_manifest
from skipring.spark.pipeline.microbatch import Steps
from skipring.spark.pipeline.report import Found, look, make_page, write_report
from skipring.spark.pipeline.runner import prepare
from skipring.spark.pipeline.silver import PayloadFormat
from tests.spark.pipeline.lakes import delivery, publication, rows
from tests.spark.rings import TOPIC

ABOUT = Manifest(supervisors=("127.0.0.1:7400",), topics=(TOPIC,), values=PayloadFormat.TEXT)
BAD = b"\xff<script>alert(1)</script>"
LATE_S = 9e12  # some hundred thousand years after noon: no latency follows from it
REPAIRED_S = 5.781
REPAIR: dict[str, Any] = {"hops": 0, "origin": "repair"}


def text_of(page: str) -> str:
    """Return the visible text, without scripts."""
    return re.sub(r"<[^>]*>", " ", re.sub(r"(?s)<(script|style).*?</\1>", " ", page))


@pytest.mark.heavy
def test_report_on_an_empty_lake_states_that_there_is_no_data(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_manifest(tmp_path, ABOUT)
    out = tmp_path / "pages" / "report.html"
    write_report(spark, tmp_path, ABOUT, out)
    text = text_of(out.read_text(encoding="utf-8"))
    assert "0 publications with 0 bytes" in text
    assert "Exactly once: 0 ids in bronze" in text
    assert "No data yet." in text
    assert "Nothing was rejected." in text


@pytest.fixture(scope="module")
def found(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Return the aggregates of a lake with duplicates, invalid values and implausible times."""
    prepare(spark)
    lake = tmp_path_factory.mktemp("lake")
    write_manifest(lake, ABOUT)
    sent = [publication(number, b"x") for number in (*range(8), 0)]
    sent += [publication(8, b"x", at_s=LATE_S), publication(9, BAD, publisher="<b>")]
    arrived = [delivery(number, "n2", at_s=0.003 + 0.001 * number) for number in range(3)]
    arrived += [delivery(number, "n2", at_s=REPAIRED_S, **REPAIR) for number in range(3, 8)]
    arrived += [delivery(8, "n2", at_s=1), delivery(1, "n3", at_s=REPAIRED_S, **REPAIR)]
    figures = Steps(lake, PayloadFormat.TEXT, 60).take(rows(spark, sent, arrived), 0)
    assert (figures.bronze, figures.windows) == (11, 2)  # one window, and no time
    return look(spark, lake, ABOUT)


def page_of(found: Found) -> str:
    return render(make_page(found, ABOUT, Path("lake")))


@pytest.mark.heavy
def test_report_shows_deliveries_and_escapes_rejected_values(found: Found) -> None:
    page = page_of(found)
    text = text_of(page)
    assert "<script>alert(1)" not in page
    assert "\\xff&lt;script&gt;alert(1)" in page
    assert "&lt;b&gt;" in page
    assert "40.0 % of the deliveries came by broadcast, 60.0 % by repair" in text
    assert "Without a plausible time: 1 publication." in text
    assert re.search(r"duplicates removed\s+1\b", text)
    assert page.count('<div class="plot"') == 7


@pytest.mark.heavy
def test_headline_and_tables_have_the_latency_of_the_same_deliveries(found: Found) -> None:
    text = text_of(page_of(found))
    spread = dict(zip(found.distribution.origin, found.distribution.latency_ms, strict=True))
    assert spread["spread"][50] == 4
    for table in (found.nodes, found.publishers, found.latencies):
        known = table[["p50", "p95", "p99"]].dropna().to_numpy().tolist()
        assert known == [pytest.approx([4, 4.9, 4.98])]
    assert "Half of the broadcast deliveries arrived within 4 ms." in text
    assert text.count("spread p50 in ms") == 2
    assert re.search(r"n2\s+9\s+4\s+4\.90\s+4\.98\s+55\.6 %", text)
    assert re.search(r"n3\s+1\s+–\s+–\s+–\s+100 %", text)  # noqa: RUF001
    assert "repair: half within 5,781 ms" in text


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("missing", "plots"),
    [(["distribution"], 6), (["latencies", "distribution", "hops", "nodes"], 2)],
)
def test_report_omits_figures_without_data(found: Found, missing: list[str], plots: int) -> None:
    empty = {name: getattr(found, name).head(0) for name in missing}
    page = page_of(replace(found, **empty))
    assert page.count('<div class="plot"') == plots
    assert "Half of the broadcast deliveries" not in text_of(page)


@pytest.mark.parametrize(
    ("length_s", "expected_s"), [(0, 60), (3600, 60), (60 * POINTS_MAX + 1, 120), (86_400, 480)]
)
def test_figure_has_whole_windows_and_a_limited_number_of_points(
    length_s: float, expected_s: int
) -> None:
    assert bucket_s(1e9, 1e9 + length_s, 60) == expected_s
