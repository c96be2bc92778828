"""Markdown page and pictures of the documentation, from a report of the lab."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from skipring.errors import InputError
from skipring.report.page import HtmlReport, Section
from skipring.report.plots import Axis, Point, Series, line_figure
from skipring.report.tables import Cell, Table, Tone
from tools.paper_results import BROWSERS, as_markdown, document, find_browser, write_pictures


def test_page_has_the_texts_figures_and_tables_of_the_report() -> None:
    folded = Section("a", "Hops", "It takes 3.", object(), Table(("n",), (("8",),)), ("A note.",))
    open_table = Section("b", "Claims", "One.", table=Table(("n",), (("9",),)), fold_table=False)
    made = (("runs", "3"), ("matrix", "a\nb"))
    text = document(HtmlReport("T", "Lead.", ("Found.",), (("Part", (folded, open_table)),), made))
    assert "![Hops](images/lab-a.svg)" in text
    assert "<details><summary>The figures as a table</summary>\n\n| n |" in text
    assert "### Claims\n\nOne.\n\n| n |" in text
    assert text.endswith("- runs: 3\n")


def test_table_shows_tones_and_aligns_figures() -> None:
    table = Table(("a", "b"), (("x", Cell("y", Tone.GOOD)),), frozenset({"b"}))
    assert list(as_markdown(table)) == ["| a | b |", "| --- | ---: |", "| x | ✓ y |"]


def test_data_cannot_break_a_table() -> None:
    table = Table(("a",), (("x|y\n<b>`*",),))
    assert list(as_markdown(table))[2] == r"| x\|y \<b\>\`\* |"


def test_pictures_without_a_browser_are_refused_before_any_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="Chromium or Chrome: install one"):
        find_browser()


def _has_browser() -> bool:
    return any(map(shutil.which, BROWSERS))


@pytest.mark.heavy
@pytest.mark.skipif(not _has_browser(), reason="no Chromium or Chrome on this machine")
def test_pictures_are_small_and_contain_no_local_path(tmp_path: Path) -> None:
    series = [Series("fast", (Point(1.0, 2.0, 1.0, 3.0, "2 rounds"),))]
    figure = line_figure(series, Axis("n"), Axis("rounds"))
    names = ["rounds-by-n", "rounds-by-adversary"]
    written = write_pictures([(name, figure) for name in names], tmp_path)
    assert [path.name for path in written] == ["rounds-by-n.svg", "rounds-by-adversary.svg"]
    for path in written:
        text = path.read_text(encoding="utf-8")
        assert text.startswith("<svg")
        assert "rounds" in text
        assert len(text) < 100_000
        addresses = set(re.findall(r"[a-z]+://[^\s\"'<>)]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
        assert "/tmp" not in text
