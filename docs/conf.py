"""How `make docs` builds these pages; it needs no network."""  # noqa: INP001  (Sphinx runs it)

from __future__ import annotations

import re
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING

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
LINK = re.compile(r"\]\((?P<target>\.\./[^)#\s]+)\)")


def prepare(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Lead links out of docs/ to pages of the site, and list the records of decisions."""
    source[0] = LINK.sub(_led, source[0])
    if docname == "decisions/README":
        source[0] += RECORDS


def _led(match: re.Match[str]) -> str:
    target = match["target"].rstrip("/")
    return f"]({ELSEWHERE.get(target, target)})"


def setup(app: Sphinx) -> None:
    """Register the extension; Sphinx calls this first."""
    skipring.Publication.__name__ = "Publication"  # autodoc shows an alias without its fields
    app.connect("source-read", prepare)
