"""Example for Spark Declarative Pipelines, from a ring to its tables, twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from secrets import token_hex

import pandas as pd
import pytest

from skipring.spark.session.java import find_java, make_java_home
from tests.spark.rings import TOPIC, running_ring
from tests.support.processes import MARK, left_of, nothing_left

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "spark" / "declarative"
ORDER = b'{"number": %d, "placed": "2026-03-02T09:%02d:00Z", "item": "tea", "amount": 4.5}'
PATIENCE_S = 1500.0  # a machine may be busy


def run(directory: Path, supervisor: str, mark: str) -> None:
    """Run the pipeline as its page shows; its catalog and tables are in the directory."""
    program = shutil.which("spark-pipelines", path=Path(sys.executable).parent)
    assert program is not None
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
    }
    done = subprocess.run(
        [program, "run", *(f"--conf={name}={value}" for name, value in settings.items())],
        cwd=directory,
        env={
            **os.environ,
            MARK: mark,
            "JAVA_HOME": str(make_java_home(find_java(os.environ), directory)),
            "PYSPARK_PYTHON": sys.executable,
            "SKIPRING_SUPERVISOR": supervisor,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(directory),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.heavy
@pytest.mark.slow
def test_declarative_example_continues_from_a_ring_to_its_tables(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="needs pyspark[pipelines]")
    directory, mark = tmp_path / "declarative", token_hex(8)
    shutil.copytree(EXAMPLE, directory)
    specification = directory / "spark-pipeline.yml"
    text = specification.read_text(encoding="utf-8")
    storage = text.replace("file:/tmp/orders-pipeline", f"file:{directory}/storage")
    assert storage != text
    specification.write_text(storage)
    with nothing_left(mark), running_ring(2, tmp_path / "ring") as ring:
        ring.publish([ORDER % (1, 7), ORDER % (2, 7), b"no order"])
        ring.wait_durable()
        run(directory, ring.supervisor, mark)
        ring.publish([ORDER % (3, 8)])
        ring.wait_durable()
        run(directory, ring.supervisor, mark)
    assert left_of(mark) == []
    tables = {
        path.name: pd.read_parquet(path) for path in (directory / "spark-warehouse").iterdir()
    }
    assert {name: len(rows) for name, rows in tables.items()} == {
        "orders_raw": 4,
        "orders_parsed": 3,
        "orders_per_minute": 2,
    }
    assert set(tables["orders_raw"]["topic"]) == {TOPIC}
    assert sorted(tables["orders_per_minute"]["orders"]) == [1, 2]
