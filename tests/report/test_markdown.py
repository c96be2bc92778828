"""Markdown page of a report, and its figures as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from skipring.report.markdown import as_markdown, document, figure_text, write_markdown
from skipring.report.page import HtmlReport, Section
from skipring.report.plots import Axis, Point, Series, line_figure
from skipring.report.tables import Cell, Table, Tone

FIGURE = line_figure(
    [Series("fast", (Point(1.0, 2 / 3, 0.1, 3.0, "2 rounds"),))], Axis("n"), Axis("rounds")
)
FOLDED = Section("a", "Hops", "It takes 3.", FIGURE, Table(("n",), (("8",),)), ("A note.",))
OPEN = Section("b", "Claims", "One.", table=Table(("n",), (("9",),)), fold_table=False)
PAGE = HtmlReport(
    "T", "Lead.", ("Found.",), (("Part", (FOLDED, OPEN)),), (("runs", "3"), ("matrix", "a\nb"))
)


def test_page_has_the_texts_figures_and_tables_of_the_report() -> None:
    text = document(PAGE, "# Title\n")
    assert text.startswith("# Title\n\n## In short\n\nLead.\n\n- Found.\n")
    assert "[Figure: Hops](figures/lab-a.json)" in text
    assert "<details><summary>The figures as a table</summary>\n\n| n |" in text
    assert "### Claims\n\nOne.\n\n| n |" in text
    assert text.endswith("- runs: 3\n")


def test_figure_is_rounded_and_equal_for_equal_data() -> None:
    text = figure_text(FIGURE)
    assert json.loads(text)["data"][0]["y"] == [0.666667]
    assert text == figure_text(FIGURE)


def test_page_replaces_the_figures_of_an_earlier_page(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    for name in ("lab-old.json", "other.json"):
        (tmp_path / "figures" / name).write_text("{}")
    write_markdown(PAGE, "# Title\n", tmp_path / "page.md")
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert names == ["lab-a.json", "other.json"]
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == document(PAGE, "# Title\n")


def test_table_shows_tones_and_aligns_figures() -> None:
    table = Table(("a", "b"), (("x", Cell("y", Tone.GOOD)),), frozenset({"b"}))
    assert list(as_markdown(table)) == ["| a | b |", "| --- | ---: |", "| x | ✓ y |"]


def test_data_cannot_break_a_table() -> None:
    table = Table(("a",), (("x|y\n<b>`*",),))
    assert list(as_markdown(table))[2] == r"| x\|y \<b\>\`\* |"
