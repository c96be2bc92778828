"""Rows of ``skipring bench spark``; speeds depend on the machine."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql import SparkSession

from skipring.lab.bench.spark import COLUMNS, FILTER, PARQUET, RING, measure
from skipring.lab.usage import tree_cpu_s

BUSY = "from time import process_time\nwhile process_time() < 0.5: pass"


def test_cpu_time_includes_ended_children() -> None:
    before = tree_cpu_s()
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    assert tree_cpu_s() - before >= 0.4


@pytest.mark.slow
def test_reads_are_measured(spark: SparkSession) -> None:
    found = list(measure(300, repeats=1))
    assert [row["system"] for row in found] == [RING, PARQUET, COLUMNS, FILTER]
    for row in found:
        assert (row["job"], row["rows"]) == ("spark", 300)
        assert 0 < row["rows_per_s_min"] <= row["rows_per_s"] <= row["rows_per_s_max"]
