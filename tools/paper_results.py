"""Page docs/paper-results.md and its pictures, from the tables of a lab.

``python tools/paper_results.py DIR`` reads the directory of ``skipring lab run``. A local Chromium
or Chrome draws the pictures.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterable, Iterator
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Any, Final

from plotly.offline import get_plotlyjs

from skipring.errors import InputError, SkipringError
from skipring.lab.experiments.report import make_page
from skipring.report.page import HtmlReport, Section, figure_json
from skipring.report.tables import Cell, Table
from skipring.spark import session

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
PREFIX: Final = "lab-"
_MARKDOWN_SPECIAL: Final = str.maketrans({char: f"\\{char}" for char in "\\|*_`<>[]"})

_OPENING: Final = """\
# The paper and what was measured

Every theorem and lemma of the paper, compared with the measurements of the experiment lab.
This page is written by a command and not by hand:

```console
$ skipring lab run scenarios/lab-small.toml --out DIR
$ python tools/paper_results.py DIR
```

The same matrix gives the same rows on any machine, and so the same page. The known result of each
statement, with its tests, is in [paper-map.md](paper-map.md); numbers of decisions
lead to [decisions](decisions/README.md).
"""


def document(page: HtmlReport) -> str:
    """Return the page in Markdown."""
    return "\n".join(_lines(page)).rstrip() + "\n"


def _lines(page: HtmlReport) -> Iterator[str]:
    yield _OPENING
    yield "## In short"
    yield f"\n{page.lead}\n"
    yield from (f"- {text}" for text in page.findings)
    for title, sections in page.parts:
        yield f"\n## {title}"
        for section in sections:
            yield from _section(section)
    yield "\n## How this page was made\n"
    yield from (f"- {what}: {value}" for what, value in page.made if "\n" not in value)


def _section(section: Section) -> Iterator[str]:
    yield f"\n### {section.title}\n\n{section.reading}\n"
    if section.figure is not None:
        yield f"![{section.title}](images/{PREFIX}{section.key}.svg)\n"
    if section.table is not None:
        table = "\n".join(as_markdown(section.table))
        folded = f"<details><summary>The figures as a table</summary>\n\n{table}\n\n</details>\n"
        yield folded if section.fold_table else f"{table}\n"
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


def _row(cells: Iterator[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(' '.join(cell.split()) for cell in cells)} |"


# --- pictures --------------------------------------------------------------------------

BROWSERS: Final = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
)
WIDTH: Final = 860  # Guess: fits a page of documentation.
DEADLINE_S: Final = 120.0  # Guess: a figure takes far less than a second.
_LIGHT: Final = {"paper": "#ffffff", "ink": "#1d2530", "grid": "#e4e8ed"}

_PAGE: Final = Template("""\
<!DOCTYPE html><meta charset="utf-8"><pre id="pictures"></pre>
<script>$plotly</script>
<script>
(async () => {
  const pictures = {};
  for (const [name, figure] of Object.entries($figures)) {
    const layout = { ...figure.layout, paper_bgcolor: "$paper", plot_bgcolor: "$paper",
      width: $width, font: { ...figure.layout.font, family: "sans-serif", color: "$ink" } };
    for (const key of Object.keys(layout).filter((key) => /^[xy]axis\\d*$$/.test(key))) {
      layout[key] = { ...layout[key], gridcolor: "$grid", linecolor: "$grid",
        zerolinecolor: "$grid" };
    }
    const url = await Plotly.toImage({ data: figure.data, layout },
      { format: "svg", width: $width, height: layout.height });
    pictures[name] = decodeURIComponent(url.slice(url.indexOf(",") + 1));
  }
  const bytes = new TextEncoder().encode(JSON.stringify(pictures));
  document.getElementById("pictures").textContent =
    btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
})();
</script>
""")


def find_browser() -> str:
    """Return the browser that draws pictures; raise InputError if there is none."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise InputError("pictures are drawn by Chromium or Chrome: install one")
    return found


def write_pictures(figures: Iterable[tuple[str, Any]], folder: Path) -> list[Path]:
    """Write every named figure as NAME.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in _drawn(dict(figures)).items():
        path = folder / f"{name}.svg"
        path.write_text(_lean(text) + "\n", encoding="utf-8")
        written.append(path)
    return written


def _drawn(figures: dict[str, Any]) -> dict[str, str]:
    """Return all figures as SVG from one browser run, since a start takes a second."""
    listed = ",".join(f"{json.dumps(name)}:{figure_json(it)}" for name, it in figures.items())
    page = _PAGE.substitute(
        _LIGHT, plotly=get_plotlyjs(), figures=f"{{{listed}}}", width=str(WIDTH)
    )
    with TemporaryDirectory(prefix="skipring-pictures-") as folder:
        file = Path(folder) / "page.html"
        file.write_text(page, encoding="utf-8")
        shown = _dom(file, Path(folder) / "profile")
    match = re.search(r'<pre id="pictures">([A-Za-z0-9+/=]+)</pre>', shown)
    if match is None:
        raise SkipringError("the browser drew no pictures; try another one of " + str(BROWSERS))
    drawn: dict[str, str] = json.loads(b64decode(match[1]))
    return drawn


def _dom(page: Path, profile: Path) -> str:
    """Return the HTML of a page after the browser has run its scripts."""
    # A browser does not sandbox its tabs for root; the page is generated here and loads nothing.
    rootless = ["--no-sandbox"] if os.geteuid() == 0 else []
    command = [
        find_browser(),
        *("--headless", "--disable-gpu", "--no-first-run", f"--user-data-dir={profile}"),
        *("--virtual-time-budget=60000", *rootless, "--dump-dom", page.as_uri()),
    ]
    try:
        # All arguments are fixed except the browser, which is the first on the user's PATH.
        done = subprocess.run(  # noqa: S603  (the browser that was found)
            command, capture_output=True, timeout=DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise SkipringError(f"the browser drew nothing in {DEADLINE_S:.0f} s; try again") from None
    return done.stdout.decode("utf-8", "replace")


def _lean(svg: str) -> str:
    """Return an SVG without attributes that only an interactive figure needs."""
    svg = re.sub(r' (?:class|data-[a-z-]+|pointer-events)="[^"]*"', "", svg)
    svg = re.sub(r" ?(?:cursor|pointer-events|vector-effect): [a-z-]+;", "", svg)
    return re.sub(r"(\.\d)\d+(?=[^\d%])", r"\1", svg)  # a tenth of a pixel is enough


def main(directory: Path) -> None:
    """Write the page and its pictures."""
    find_browser()  # fail before minutes of work
    with session.opened(app="skipring lab report") as spark:
        page = make_page(spark, directory)
    figures = [(PREFIX + it.key, it.figure) for _, part in page.parts for it in part if it.figure]
    write_pictures(figures, DOCS / "images")
    (DOCS / "paper-results.md").write_text(document(page), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
