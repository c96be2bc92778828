"""Report of the lab, from handmade tables to the page."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from skipring.errors import InputError, StorageError
from skipring.lab.experiments import report
from skipring.lab.experiments.matrix import read_matrix
from skipring.lab.experiments.report import make_page, write_report
from skipring.lab.experiments.runner import run_matrix
from skipring.report.page import HtmlReport, render
from tests.lab.experiments.lab_rows import healed, run, seen, whole_lab, write_lab

FIGURES = [
    *("rounds-by-n", "rounds-by-adversary", "growth", "survival", "layers"),
    *("modes-share", "modes-rounds", "rules-share", "rules-rounds"),
    "without-coins",
    *("messages", "supervisor-healing", "degree-peak"),
    *("supervisor-steady", "messages-steady"),
    *("membership-supervisor", "membership-subscribers", "membership-rounds"),
    *("hops", "messages-per-delivery"),
    *("overlays-degree", "overlays-congestion", "overlays-paths"),
    *("weather-loss", "weather-churn", "weather-scheduler"),
]


BLOCKS = [
    (
        'kind = "converge"\nn = [4, 8, 16]\nadversary = ["A05", "A15"]\nseeds = 3\nclosure = 2\n'
        'mode = ["paper", "fixed", "fast", "deterministic"]\nmax_rounds = 100'
    ),
    'kind = "steady"\nn = [4, 8]\nrounds = 5\nseeds = 2',
    'kind = "subscribe"\nn = [4, 8]\nseeds = 2',
    'kind = "topology"\nn = [4, 8]',
    'kind = "livelock"\nn = 8\nadversary = ["A05", "A22"]\nmax_rounds = 200',
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs, rounds = whole_lab()
    runs.append(healed(8, 3, seed=99, error="ValueError: <b>broken</b>"))
    return write_lab(tmp_path_factory.mktemp("lab") / "lab", runs, rounds)


@pytest.fixture(scope="module")
def page(spark: SparkSession, lab: Path) -> HtmlReport:
    return make_page(spark, lab)


@pytest.mark.heavy
def test_report_on_every_kind_of_run_has_every_figure(page: HtmlReport) -> None:
    drawn = [it.key for _, sections in page.parts for it in sections if it.figure is not None]
    assert drawn == FIGURES
    assert not any(it.key == "left-out" for _, sections in page.parts for it in sections)


@pytest.mark.heavy
def test_headline_is_computed_from_the_runs(page: HtmlReport) -> None:
    assert page.lead.startswith(
        "Runs within the hypotheses of the paper. Mode fast, all rules: all 48 became legitimate "
        "(true share ≥ 92.6 % with 95 %), half of them within 9 rounds, the slowest in 17."
    )
    assert "Mode paper, the pseudocode: 30 of 36 became legitimate" in page.lead


@pytest.mark.heavy
def test_every_section_reads_its_figure_and_every_axis_has_a_title(page: HtmlReport) -> None:
    for _, sections in page.parts:
        for section in sections:
            assert section.reading.endswith(".")
            assert "never" not in section.reading or "paper" in section.reading
            if section.figure is not None:
                assert section.figure.layout.xaxis.title.text
                assert all(trace.text is not None for trace in section.figure.data if trace.name)


@pytest.mark.heavy
def test_failures_are_reported_as_text(page: HtmlReport) -> None:
    html = render(page)
    assert "1 run raised an error" in html
    assert "&lt;b&gt;broken&lt;/b&gt;" in html


@pytest.mark.heavy
def test_cost_of_a_rule_is_compared_with_the_same_runs(page: HtmlReport) -> None:
    (rules,) = [it for _, sections in page.parts for it in sections if it.key == "rules-rounds"]
    assert rules.table is not None
    assert {row[0] for row in rules.table.rows} == {"fast without R9", "fast without S11"}
    assert {row[2] for row in rules.table.rows} == {"1.67"}  # 15 rounds for 9


@pytest.mark.heavy
def test_missing_kinds_of_a_matrix_are_named(spark: SparkSession, tmp_path: Path) -> None:
    one = healed(8, 4, adversary="<A99>")
    lab = write_lab(tmp_path / "lab", [one], seen(one["run_id"], [0, 5]))
    write_report(spark, lab, tmp_path / "sub" / "page.html")
    html = (tmp_path / "sub" / "page.html").read_text(encoding="utf-8")
    assert "this matrix has no runs of kind steady" in html
    assert "this matrix has no runs of kind topology" in html
    assert "&lt;A99&gt;" in html
    body = html[: html.index("plotly.js v")]
    assert "<A99>" not in body


@pytest.mark.slow
def test_page_and_figures_do_not_depend_on_the_number_of_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "m.toml"
    path.write_text("\n".join(['title = "t"', *(f"[[experiment]]\n{each}" for each in BLOCKS)]))
    found = []
    for count in (1, 7):
        lab, out = tmp_path / str(count), tmp_path / f"docs-{count}"
        run_matrix(spark, read_matrix(path), lab, partition_count=count)
        write_report(spark, lab, out / "page.md")
        files = sorted(each for each in out.rglob("*") if each.is_file())
        found.append({each.relative_to(out): each.read_bytes() for each in files})
    assert len(found[0]) > 10
    assert found[0] == found[1]


@pytest.mark.heavy
def test_directory_without_tables_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no table 'runs'.*skipring lab run"):
        write_report(spark, tmp_path, tmp_path / "page.html")
    broken = write_lab(tmp_path / "lab", [run("topology", 8, error="ValueError: x")], [])
    with pytest.raises(InputError, match="no runs that succeeded"):
        write_report(spark, broken, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_page_that_cannot_be_written_is_reported_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(report, "make_page", lambda spark, directory: None)
    monkeypatch.setattr(report, "render", lambda page: "")
    place = tmp_path / "file" / "sub" / "page"
    with pytest.raises(StorageError, match=f"^{place.parent}: Not a directory; check"):
        write_report(Mock(), tmp_path, place)
