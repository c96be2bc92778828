"""The page of a report: self-contained, and safe for any data."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import plotly.graph_objects as go
import pytest

from skipring.report.page import HtmlReport, Section, render
from skipring.report.plots import Axis, Point, Series, dot_figure, line_figure, step_figure
from skipring.report.tables import Cell, Table, Tone, as_html, as_markdown, number, percent

EVIL = "</script><script>alert(1)</script>&\"'|<b>"


class Reader(HTMLParser):
    """Elements and script texts that a browser would find in a page."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data
        else:
            self.texts.append(data)


def figure(name: str = "a") -> go.Figure:
    point = Point(8, 3, 2, 5, name)
    return line_figure([Series(name, (point,))], Axis("n", is_log=True), Axis("rounds"))


@pytest.fixture(scope="module")
def html() -> str:
    table = Table(("what", "value"), ((EVIL, Cell(EVIL, Tone.BAD)),), frozenset({"value"}))
    sections = (
        Section("one", EVIL, EVIL, figure(EVIL), table, (EVIL,)),
        Section("two", "Two", "Second.", table=table, fold_table=False),
    )
    return render(HtmlReport(EVIL, EVIL, (EVIL,), (("Part", sections),), ((EVIL, EVIL),)))


@pytest.fixture(scope="module")
def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    return reader


def test_page_loads_nothing(read: Reader) -> None:
    for tag, attributes in read.elements:
        assert not {"src", "srcset", "data", "action"} & set(attributes), tag
        assert tag not in ("link", "iframe", "object", "embed", "img", "base")
        assert (attributes.get("href") or "#").startswith("#")


def test_styles_load_nothing(html: str) -> None:
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_content_security_policy_forbids_loading(read: Reader) -> None:
    (policy,) = [
        attributes["content"]
        for tag, attributes in read.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def test_texts_from_data_are_escaped(read: Reader) -> None:
    assert sum("alert(1)" in text for text in read.texts) >= 10
    assert [tag for tag, _ in read.elements].count("b") == 0
    assert not any(script.strip() == "alert(1)" for script in read.scripts)


def test_figure_is_in_the_element_that_the_script_reads(read: Reader) -> None:
    (content,) = [
        json.loads(script)
        for script, (_, attributes) in zip(
            read.scripts, [it for it in read.elements if it[0] == "script"], strict=True
        )
        if attributes.get("type") == "application/json"
    ]
    assert content["data"][0]["name"] == EVIL
    assert content["layout"]["height"] > 0


def test_plotly_is_included_once(html: str) -> None:
    assert len(re.findall(r"plotly\.js v\d", html)) == 1


def test_every_link_of_the_contents_has_a_section(read: Reader) -> None:
    ids = {attributes.get("id") for _, attributes in read.elements}
    targets = [attributes["href"] for tag, attributes in read.elements if tag == "a"]
    assert len(targets) == 4
    assert {target.removeprefix("#") for target in targets if target} <= ids


def test_page_has_styles_for_dark_and_print(html: str) -> None:
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html


# --- tables ----------------------------------------------------------------------------


def test_table_is_equal_in_html_and_markdown() -> None:
    table = Table(("a", "b"), (("x", Cell("y", Tone.GOOD)),), frozenset({"b"}))
    assert list(as_markdown(table)) == ["| a | b |", "| --- | ---: |", "| x | ✓ y |"]
    assert '<td class="figure"><span class="good">✓ y</span></td>' in as_html(table)


def test_data_cannot_break_a_markdown_table() -> None:
    table = Table(("a",), (("x|y\n<b>`*",),))
    assert list(as_markdown(table))[2] == r"| x\|y \<b\>\`\* |"


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


# --- plots -----------------------------------------------------------------------------


def test_series_differ_in_more_than_colour() -> None:
    names = [f"s{number}" for number in range(30)]
    series = [Series(name, (Point(8, 1, 1, 1, name),)) for name in names]
    drawn = line_figure(series, Axis("n", is_log=True), Axis("y")).data
    looks = {(it.line.color, it.line.dash, it.marker.symbol) for it in drawn}
    assert len(looks) == len(names)
    assert len({(it.line.dash, it.marker.symbol) for it in drawn}) > len(names) // 2


def test_infinite_values_are_omitted() -> None:
    inf = float("inf")
    points = (Point(8, 1, 1, inf, "a"), Point(16, inf, inf, inf, "b"))
    (line,) = line_figure([Series("s", points)], Axis("n"), Axis("y")).data
    assert list(line.x) == [8]
    assert list(line.error_y.array) == [0]


def test_dots_are_in_the_rows_of_their_names() -> None:
    one = Series("s", (Point(0, 5, 4, 6, ""), Point(1, 9, 9, 9, "")))
    drawn = dot_figure(["first", "second"], [one], Axis("rounds"))
    assert list(drawn.data[0].y) == [0, 1]
    assert list(drawn.layout.yaxis.ticktext) == ["first", "second"]


def test_steps_have_a_band_between_their_bounds() -> None:
    points = (Point(1, 100, 90, 100, ""), Point(2, 50, 30, 70, ""))
    low, high, middle = step_figure([Series("s", points)], Axis("t"), Axis("%")).data
    assert (list(low.y), list(high.y), list(middle.y)) == ([90, 30], [100, 70], [100, 50])
    assert high.fill == "tonexty"
