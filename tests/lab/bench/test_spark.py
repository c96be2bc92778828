"""Rows of ``skipring bench spark``; speeds depend on the machine."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql import SparkSession

from skipring.lab.bench.spark import measure
from skipring.lab.usage import tree_cpu_s

BUSY = "from time import process_time\nwhile process_time() < 0.5: pass"


def test_cpu_time_includes_ended_children() -> None:
    before = tree_cpu_s()
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    assert tree_cpu_s() - before >= 0.4


@pytest.mark.slow
def test_reads_and_runs_are_measured_and_ratios_are_last(spark: SparkSession) -> None:
    ring, parquet, columns, filtered, lab, last = measure(300, 20, repeats=1)
    assert (ring["system"], parquet["system"]) == ("skipring", "parquet")
    for row in (ring, parquet, columns, filtered):
        assert (row["job"], row["rows"]) == ("spark", 300)
        assert row["rows_per_s_min"] <= row["rows_per_s"] <= row["rows_per_s_max"]
    assert (lab["job"], lab["runs"], lab["n"]) == ("lab", 20, 16)
    for name in ("plain", "sampled", "spark", "spark_first"):
        assert lab[f"{name}_wall_s"] > 0
    speeds = ring["rows_per_s"] / parquet["rows_per_s"]
    assert last["ratios"]["rows_per_s_over_parquet"] == pytest.approx(speeds, rel=0.1, abs=0.01)
    cpu = lab["spark_cpu_s"] / lab["plain_cpu_s"]  # of rounded figures
    assert last["ratios"]["lab_cpu_over_plain"] == pytest.approx(cpu, rel=0.1, abs=0.1)
