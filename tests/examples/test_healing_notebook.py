"""The notebook about healing: it runs from top to bottom, needs no ring and is correct."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "healing.ipynb"


def notebook() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return found


def sources(kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook()["cells"] if cell["cell_type"] == kind]


@pytest.mark.heavy
def test_notebook_runs_from_top_to_bottom(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(NOTEBOOK.parent)  # where a reader starts it
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(sources("code")):
        exec(compile(cell, f"code cell {number}", "exec"), names)
    said = capsys.readouterr().out
    assert "A15" not in said  # the list ends before it: the cells below describe it
    assert "closure_ok=True" in said
    assert re.search(r"^paper: not healed after 300 rounds$", said, re.MULTILINE)
    assert re.search(r"^fast : \d+ rounds$", said, re.MULTILINE)
    lines = {line.name: line.y for line in names["figure"].data}
    assert list(lines) == ["database", "labels", "ring", "shortcuts", "publications"]
    assert all(line[0] > 0 and line[-1] == 0 for line in lines.values())
    picture = names["Picture"](names["Scenario"](n=4, adversary="A15", publications=8))
    assert ET.fromstring(picture._repr_svg_()).tag.endswith("svg")


def test_notebook_has_format_4_and_unique_cell_names() -> None:
    found = notebook()
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    assert found["metadata"]["kernelspec"]["language"] == "python"
    names = [cell["id"] for cell in found["cells"]]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)
    assert len(set(names)) == len(names)


def test_notebook_stores_no_outputs_and_is_plain_python() -> None:
    for cell in notebook()["cells"]:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None), cell["id"]
            compile("".join(cell["source"]), cell["id"], "exec")  # a magic is not Python


def test_links_of_the_notebook_have_targets() -> None:
    links = re.findall(r"\]\(([^)#]+)", "\n".join(sources("markdown")))
    assert links
    missing = [link for link in links if not (NOTEBOOK.parent / link).is_file()]
    assert missing == []
