"""SVG files of figures, drawn by a local Chromium or Chrome."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from base64 import b64decode
from collections.abc import Iterable
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Any, Final

from plotly.offline import get_plotlyjs

from skipring.errors import InputError, SkipringError
from skipring.report.page import figure_json

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
        raise InputError(
            "pictures are drawn by Chromium or Chrome, and neither is on PATH: install one, or "
            "do without the pictures"
        )
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
