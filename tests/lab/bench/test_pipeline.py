"""Rows of ``skipring bench pipeline``; times depend on the machine."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from skipring.lab.bench.pipeline import measure


@pytest.mark.slow
def test_batches_and_report_are_measured(spark: SparkSession) -> None:
    young, old, report = measure(3, repeats=1)
    assert (young["job"], young["lake"], young["rows"]) == ("batch", "young", 0)
    assert (old["lake"], old["rows"], report["rows"]) == ("old", 1500, 1500)
    for row in (young, old, report):
        assert row["cpu_s"] > 0
