"""Self-contained HTML page of figures and tables; it loads nothing from the network."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from string import Template
from typing import Any, Final

from msgspec import Struct
from plotly.io import to_json
from plotly.offline import get_plotlyjs

from skipring.report.tables import Table, as_html


class Section(Struct, frozen=True):
    """Section of a page: title, sentence, and optional figure, table and notes."""

    key: str  # anchor within the page, and name of the picture
    title: str
    reading: str
    figure: Any = None  # a plotly Figure; plotly has no types
    table: Table | None = None
    notes: tuple[str, ...] = ()
    fold_table: bool = True  # a long table is collapsed


class HtmlReport(Struct, frozen=True):
    """Contents of a page, from top to bottom; ``parts`` are titles with their sections."""

    title: str
    lead: str
    findings: tuple[str, ...]
    parts: tuple[tuple[str, tuple[Section, ...]], ...]
    made: tuple[tuple[str, str], ...]  # name and value of each fact about the run


_STYLE_FILE: Final = "page.css"
_SCRIPT_FILE: Final = "page.js"

# The browser enforces that the page loads nothing.
_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)

_PAGE: Final = Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
$style</style>
</head>
<body>
<a class="skip" href="#content">To the content</a>
<header>
<h1>$title</h1>
<p class="lead">$lead</p>
<ul class="findings">
$findings</ul>
</header>
<div class="columns">
<nav aria-label="Contents">
$contents</nav>
<main id="content">
$parts
<section id="made">
<h2>How this page was made</h2>
<dl>
$made</dl>
</section>
</main>
</div>
<script>$plotly</script>
<script>$script</script>
</body>
</html>
""")


def render(page: HtmlReport) -> str:
    """Return the page as one HTML file."""
    return _PAGE.substitute(
        policy=_POLICY,
        title=escape(page.title),
        lead=escape(page.lead),
        findings="".join(f"<li>{escape(text)}</li>\n" for text in page.findings),
        contents=_contents(page),
        parts="\n".join(_part(title, sections) for title, sections in page.parts),
        made="".join(
            f"<dt>{escape(what)}</dt><dd>{escape(value)}</dd>\n" for what, value in page.made
        ),
        style=_beside(_STYLE_FILE),
        script=_beside(_SCRIPT_FILE),
        plotly=get_plotlyjs(),
    )


def figure_json(figure: Any) -> str:  # noqa: ANN401  (plotly has no types)
    """Return a figure as JSON for a script element: plotly escapes ``<``."""
    text: str = to_json(figure, validate=False)
    return text


def _beside(name: str) -> str:
    return (files("skipring.report") / name).read_text(encoding="utf-8")


def _contents(page: HtmlReport) -> str:
    parts = [
        f"<li>{escape(title)}<ol>{''.join(map(_entry, sections))}</ol></li>\n"
        for title, sections in page.parts
    ]
    return f'<ol>{"".join(parts)}<li><a href="#made">How this page was made</a></li></ol>\n'


def _entry(section: Section) -> str:
    return f'<li><a href="#{escape(section.key)}">{escape(section.title)}</a></li>'


def _part(title: str, sections: tuple[Section, ...]) -> str:
    return "\n".join([f"<h2>{escape(title)}</h2>", *map(_section, sections)])


def _section(section: Section) -> str:
    pieces = [f"<h3>{escape(section.title)}</h3>", f"<p>{escape(section.reading)}</p>"]
    if section.figure is not None:
        pieces.append(_figure(section))
    if section.table is not None:
        pieces.append(_table(section, section.table))
    pieces += [f'<p class="note">{escape(note)}</p>' for note in section.notes]
    return "\n".join([f'<section id="{escape(section.key)}">', *pieces, "</section>"])


def _figure(section: Section) -> str:
    height = section.figure.layout.height or 420
    return (
        f'<figure role="img" aria-label="{escape(section.title)}">'
        f'<div class="plot" style="min-height:{int(height)}px"></div>'
        f'<script type="application/json">{figure_json(section.figure)}</script></figure>'
    )


def _table(section: Section, table: Table) -> str:
    if not section.fold_table:
        return as_html(table)
    rows = f"{len(table.rows)} row{'s' if len(table.rows) != 1 else ''}"
    return f"<details><summary>The figures as a table ({rows})</summary>{as_html(table)}</details>"
