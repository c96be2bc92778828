"""How `make docs` builds these pages; it needs no network."""  # noqa: INP001  (Sphinx runs it)

from __future__ import annotations

import re
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING

from plotly.offline import get_plotlyjs

import skipring

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "skipring"
author = "the authors of skipring"
release = version = version_of("skipring")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}
default_role = "literal"  # single backticks in docstrings are code, as in Markdown
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_class_signature = "separated"

html_theme = "furo"
html_title = "skipring"
html_copy_source = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}

# On GitHub these lead to files beside docs/; in the built pages there is something better, or the
# file itself to download.
ELSEWHERE = {
    "../README.md": "index.md",
    "../CONTRIBUTING.md": "index.md#for-contributors",
    "../examples": "examples.md",
    "../examples/spark/README.md": "spark.md#examples",
}
RECORDS = """
```{toctree}
:hidden:
:glob:

[0-9]*
```
"""
# The build draws the figures of the lab's page; elsewhere the page links to their data.
FIGURE = re.compile(
    r"^\[Figure: (?P<title>[^\]]+)\]\((?P<path>figures/[a-z-]+\.json)\)$", re.MULTILINE
)
PLOTLY = "plotly.min.js"
DRAWN = """
```{{raw}} html
<script src="_static/{script}"></script>
<div id="{name}" role="img" aria-label="{title}"></div>
<script>{{ const figure = {figure};
Plotly.newPlot("{name}", figure.data, figure.layout, {{ responsive: true }}); }}</script>
```
"""
LINK = re.compile(r"\]\((?P<target>\.\./[^)#\s]+)\)")


def prepare(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Lead links out of docs/ to pages of the site, and list the records of decisions."""
    source[0] = FIGURE.sub(_drawn, LINK.sub(_led, source[0]))
    if docname == "decisions/README":
        source[0] += RECORDS


def _drawn(match: re.Match[str]) -> str:
    path = Path(__file__).parent / match["path"]
    figure = " ".join(path.read_text(encoding="utf-8").split("\n")).replace("</", "<\\/")
    return DRAWN.format(script=PLOTLY, name=path.stem, title=match["title"], figure=figure)


def write_plotly(app: Sphinx, _error: Exception | None) -> None:
    """Write the library that draws figures; it comes with the package plotly."""
    if app.builder.format == "html":
        (Path(app.outdir) / "_static" / PLOTLY).write_text(get_plotlyjs(), encoding="utf-8")


def _led(match: re.Match[str]) -> str:
    target = match["target"].rstrip("/")
    return f"]({ELSEWHERE.get(target, target)})"


def setup(app: Sphinx) -> None:
    """Register the extension; Sphinx calls this first."""
    skipring.Publication.__name__ = "Publication"  # autodoc shows an alias without its fields
    app.connect("source-read", prepare)
    app.connect("build-finished", write_plotly)
