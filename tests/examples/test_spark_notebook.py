"""Examples for Spark: the notebook runs and leaves nothing, and the definitions are valid."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from pyspark.pipelines.flow import AutoCdcFlow, Flow
from pyspark.pipelines.graph_element_registry import (
    GraphElementRegistry,
    graph_element_registration_context,
)
from pyspark.pipelines.output import Output
from pyspark.sql import DataFrame, SparkSession

from tests.support.processes import MARK, left_of, nothing_left

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "spark"
NOTEBOOK = EXAMPLES / "first-look.ipynb"
DEFINITIONS = EXAMPLES / "declarative" / "transformations" / "orders.py"
PATIENCE_S = 400.0

ORDER = '{"number": %d, "placed": "2026-03-02T09:%02d:00Z", "item": "tea", "amount": 4.5}'

# As a kernel does it: one cell after the other, in one namespace.
PROGRAM = """
import sys
cells = sys.stdin.read().split(sys.argv[1])
names = {"__name__": "__main__"}
for number, cell in enumerate(cells):
    exec(compile(cell, f"code cell {number}", "exec"), names)
print("bars:", [bar.name for bar in names["figure"].data])
"""


def notebook() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return found


def sources(kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook()["cells"] if cell["cell_type"] == kind]


def run(cells: list[str], directory: Path, mark: str) -> tuple[int, str, str]:
    """Run cells in a process; return exit status, output and errors.

    The output goes to files: a pipe would stay open as long as any child process runs.
    """
    between = f"\n# {token_hex(8)}\n"
    said, errors = directory / "said", directory / "errors"
    with said.open("w") as stdout, errors.open("w") as stderr:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, between],
            input=between.join(cells),
            cwd=directory,
            env=os.environ | {MARK: mark, "MASTER": "local[2]", "TMPDIR": str(directory)},
            stdout=stdout,
            stderr=stderr,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    return done.returncode, said.read_text("utf-8"), errors.read_text("utf-8")


@pytest.mark.slow
def test_notebook_runs_completely_and_leaves_nothing(tmp_path: Path) -> None:
    mark = token_hex(8)
    with nothing_left(mark):
        status, said, errors = run(sources("code"), tmp_path, mark)
        assert status == 0, said + errors
        assert left_of(mark) == []
    assert "orders: healthy (3 members, 3000 publications" in said
    assert "4000 rows, 4000 distinct publications" in said
    assert "orders: healthy (2 members, 4000 publications" in said
    assert said.endswith("all stopped\nbars: ['shop', 'web']\n")
    assert [path.name for path in tmp_path.iterdir() if "skipring" in path.name] == []


@pytest.mark.slow
def test_interrupted_notebook_stops_its_ring(tmp_path: Path) -> None:
    mark = token_hex(8)
    cells = sources("code")
    started = next(number for number, cell in enumerate(cells) if 'start("node"' in cell)
    with nothing_left(mark):
        status, said, errors = run([*cells[: started + 1], "raise SystemExit(3)"], tmp_path, mark)
        assert status == 3, said + errors
        assert "supervisor at 127.0.0.1:" in said
        assert left_of(mark) == []


def test_notebook_is_plain_python_in_format_4_without_outputs() -> None:
    found = notebook()
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    assert found["metadata"]["kernelspec"]["language"] == "python"
    names = [cell["id"] for cell in found["cells"]]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)
    assert len(set(names)) == len(names)
    for cell in found["cells"]:
        assert cell["cell_type"] in ("code", "markdown")
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None), cell["id"]
            compile("".join(cell["source"]), "cell", "exec")  # a magic is not Python


def test_links_of_the_notebook_have_targets_and_no_path_of_a_machine() -> None:
    assert re.findall(r"""["'( ]/\w+|[A-Z]:\\""", NOTEBOOK.read_text(encoding="utf-8")) == []
    links = re.findall(r"\]\(([^)#]+)", "\n".join(sources("markdown")))
    assert links
    assert [link for link in links if not (NOTEBOOK.parent / link).is_file()] == []


# -- the declarative pipeline ------------------------------------------------------------


class Definitions(GraphElementRegistry):
    """Definitions of a file, by name; the registry of Spark needs a server of Spark Connect."""

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}
        self.flows: dict[str, Flow] = {}

    def register_output(self, output: Output) -> None:
        self.kinds[output.name] = type(output).__name__

    def register_flow(self, flow: Flow) -> None:
        self.flows[flow.target] = flow

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
        raise NotImplementedError

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        raise NotImplementedError

    def frame(self, name: str) -> DataFrame:
        """Return the DataFrame of a table."""
        return self.flows[name].func()


@pytest.fixture
def definitions(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Definitions]:
    monkeypatch.setenv("SKIPRING_SUPERVISOR", "127.0.0.1:1")  # no request is sent
    found = Definitions()
    spec = importlib.util.spec_from_file_location("orders", DEFINITIONS)
    assert spec is not None
    assert spec.loader is not None
    with graph_element_registration_context(found):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    yield found
    for name in found.kinds:
        spark.catalog.dropTempView(name)


@pytest.mark.heavy
def test_declarative_example_computes_the_documented_tables(
    definitions: Definitions, spark: SparkSession
) -> None:
    assert definitions.kinds == {
        "orders_raw": "StreamingTable",
        "orders_parsed": "StreamingTable",
        "orders_per_minute": "MaterializedView",
    }
    raw = definitions.frame("orders_raw")
    assert raw.isStreaming
    raw.createOrReplaceTempView("orders_raw")
    parsed = definitions.frame("orders_parsed")
    assert parsed.isStreaming
    assert parsed.columns == ["id", "publisher", "number", "placed", "item", "amount"]

    values = [ORDER % (1, 7), ORDER % (2, 7), "no order", ORDER % (3, 8)]
    rows = [(bytes([n]), "shop", value.encode()) for n, value in enumerate(values)]
    columns = "id BINARY, publisher STRING, value BINARY"
    spark.createDataFrame(rows, columns).createOrReplaceTempView("orders_raw")
    with pytest.MonkeyPatch.context() as patch:  # a view of some rows instead of a stream
        patch.setattr(SparkSession, "readStream", property(lambda session: session.read))
        definitions.frame("orders_parsed").createOrReplaceTempView("orders_parsed")
    per_minute = definitions.frame("orders_per_minute").orderBy("minute").collect()
    assert [(row["orders"], row["amount"]) for row in per_minute] == [(2, 9.0), (1, 4.5)]


def test_page_of_the_declarative_example_names_its_tables() -> None:
    named = re.findall(r"^\| `(\w+)` \|", (EXAMPLES / "README.md").read_text("utf-8"), re.MULTILINE)
    assert named == re.findall(r"^def (\w+)", DEFINITIONS.read_text("utf-8"), re.MULTILINE)
