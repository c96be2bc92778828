"""One Spark session for all tests of a process; it and its JVM end with the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from skipring.spark.session import builder as session

# Measured: with few rows most of the time goes into making plans and compiling them.
FEW_ROWS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}

SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    **FEW_ROWS,
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    started = session.start(master="local[2,2]", conf=SMALL, app="tests")
    yield started
    session.stop(started)
