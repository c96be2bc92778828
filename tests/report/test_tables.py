"""Tables: HTML, and the digits of figures."""

from __future__ import annotations

import pytest

from skipring.report.tables import Cell, Table, Tone, as_html, number, percent


def test_cell_shows_its_tone_and_column_its_figures() -> None:
    table = Table(("a", "b"), (("x", Cell("y", Tone.GOOD)),), frozenset({"b"}))
    assert '<td class="figure"><span class="good">✓ y</span></td>' in as_html(table)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345.0, "12,345"),
        (0.12345, "0.123"),
        (1.5, "1.50"),
        (-2.25, "\u22122.25"),
        (1234.5, "1,234"),
        (0.000012, "0.0000"),
        (float("inf"), "never"),
        (float("nan"), "\u2013"),
    ],
)
def test_figure_has_the_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_almost_100_percent_is_not_written_as_100() -> None:
    assert percent(1.0) == "100 %"
    assert percent(0.99996) == "99.996 %"
    assert percent(0.5) == "50.0 %"
    assert percent(0.0) == "0 %"
