"""Build of docs/ without warnings, with every public name."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import skipring
from skipring import errors
from tests.house.test_house import ROOT, run

DOCS = ROOT / "docs"
PATIENCE_S = 300.0
# Resources that a page loads when it is opened, without the links that a reader may follow.
LOADED = re.compile(r"<(?:script|img|link|iframe)\b[^>]*?\b(?:src|href)=\"(?P<target>[^\"]+)\"")


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Run the command of `make docs`."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(source), str(target)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=ROOT
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    built = build(DOCS, target)
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    return target


@pytest.mark.heavy
def test_every_page_is_built_without_a_warning(site: Path) -> None:
    pages = [page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")]
    assert len(pages) > 50
    assert [page for page in pages if not (site / page).is_file()] == []


@pytest.mark.heavy
def test_reference_contains_every_public_name(site: Path) -> None:
    text = (site / "reference.html").read_text("utf-8")
    anchors = set(re.findall(r'id="(skipring[\w.]*)"', text))
    names = {f"skipring.{name}" for name in skipring.__all__ if name not in ("blocking", "errors")}
    raised = {f"skipring.errors.{name}" for name in vars(errors) if name.endswith("Error")}
    others = {
        *("skipring.blocking.connect", "skipring.blocking.Subscription.read"),
        *("skipring.testing.Cluster.wait_healthy", "skipring.spark.register"),
        *("skipring.spark.session.start", "skipring.Publication.payload"),
    }
    assert (names | raised | others) - anchors == set()


@pytest.mark.heavy
def test_pages_load_nothing_from_the_network(site: Path) -> None:
    loaded = {
        match["target"]
        for page in site.rglob("*.html")
        for match in LOADED.finditer(page.read_text("utf-8"))
    }
    assert loaded
    assert [target for target in loaded if re.match(r"(https?:)?//", target)] == []


@pytest.mark.heavy
def test_broken_links_are_build_warnings(tmp_path: Path) -> None:
    shutil.copy(DOCS / "conf.py", tmp_path)
    (tmp_path / "index.md").write_text("# A\n\n```{toctree}\npage\n```\n")
    (tmp_path / "page.md").write_text("# B\n\n[back](index.md)\n")
    assert build(tmp_path, tmp_path / "before").returncode == 0
    (tmp_path / "page.md").write_text("# B\n\n[a](no1.md) [a](page.md#no2) [a](../no3.py)\n")
    built = build(tmp_path, tmp_path / "after")
    assert built.returncode != 0
    assert [name for name in ("no1.md", "no2", "no3.py") if name not in built.stderr] == []


def test_make_without_a_target_lists_the_docs_target() -> None:
    assert re.search(r"^make docs +\w", run("make").stdout, re.MULTILINE)
