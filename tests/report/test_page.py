"""The page of a report: self-contained, and safe for any data."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import plotly.graph_objects as go
import pytest

from skipring.report.page import HtmlReport, Section, render
from skipring.report.plots import Axis, Point, Series, line_figure
from skipring.report.tables import Cell, Table, Tone

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
