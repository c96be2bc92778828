"""Markdown page of figures and tables, with the figures as JSON files beside it.

The documentation build draws the figures; elsewhere the page links to their data. Text and JSON are
the same on every machine: coordinates have six significant digits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from skipring.report.page import HtmlReport, Section, figure_json
from skipring.report.tables import Cell, Table

FIGURES: Final = "figures"  # folder beside the page
PREFIX: Final = "lab-"
_DIGITS: Final = 6
_MARKDOWN_SPECIAL: Final = str.maketrans({char: f"\\{char}" for char in "\\|*_`<>[]"})


def write_markdown(page: HtmlReport, opening: str, out: Path) -> None:
    """Write the page and its figures; remove figures that it no longer has."""
    folder = out.parent / FIGURES
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{PREFIX}*.json"):
        old.unlink()
    for section in _sections(page):
        if section.figure is not None:
            (folder / _name(section)).write_text(figure_text(section.figure), encoding="utf-8")
    out.write_text(document(page, opening), encoding="utf-8")


def figure_text(figure: Any) -> str:  # noqa: ANN401  (plotly has no types)
    """Return a figure as JSON with rounded coordinates, and without the default template."""
    values = json.loads(figure_json(figure))
    values["layout"].pop("template", None)
    return json.dumps(_rounded(values), ensure_ascii=False, sort_keys=True, indent=0) + "\n"


def _rounded(value: Any) -> Any:  # noqa: ANN401  (JSON)
    match value:
        case float():
            return float(f"{value:.{_DIGITS}g}")
        case list():
            return [_rounded(item) for item in value]
        case dict():
            return {key: _rounded(item) for key, item in value.items()}
        case _:
            return value


def document(page: HtmlReport, opening: str) -> str:
    """Return the page in Markdown."""
    return "\n".join(_lines(page, opening)).rstrip() + "\n"


def _lines(page: HtmlReport, opening: str) -> Iterator[str]:
    yield opening
    yield "## In short"
    yield f"\n{page.lead}\n"
    yield from (f"- {text}" for text in page.findings)
    for title, sections in page.parts:
        yield f"\n## {title}"
        for section in sections:
            yield from _section(section)
    yield "\n## How this page was made\n"
    yield from (f"- {what}: {value}" for what, value in page.made if "\n" not in value)


def _sections(page: HtmlReport) -> Iterator[Section]:
    for _, sections in page.parts:
        yield from sections


def _name(section: Section) -> str:
    return f"{PREFIX}{section.key}.json"


def _section(section: Section) -> Iterator[str]:
    yield f"\n### {section.title}\n\n{section.reading}\n"
    if section.figure is not None:
        yield f"[Figure: {section.title}]({FIGURES}/{_name(section)})\n"
    if section.table is not None:
        table = "\n".join(as_markdown(section.table))
        folded = f"<details><summary>The figures as a table</summary>\n\n{table}\n\n</details>\n"
        yield folded if section.fold_table else f"{table}\n"
    if len(section.notes) > 1:
        yield from (f"- {note}" for note in section.notes)
    else:
        yield from (f"{note}\n" for note in section.notes)


def as_markdown(table: Table) -> Iterator[str]:
    """Yield the lines of the table in Markdown."""
    yield _row(table.headings)
    yield _row("---:" if name in table.figures else "---" for name in table.headings)
    for row in table.rows:
        yield _row(
            (value.signed if isinstance(value, Cell) else value).translate(_MARKDOWN_SPECIAL)
            for value in row
        )


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(' '.join(cell.split()) for cell in cells)} |"
