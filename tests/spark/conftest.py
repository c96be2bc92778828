"""One Spark session for all tests of a process; it and its JVM end with the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from skipring.spark import session

SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    # Java's second compiler takes seconds, for programs that run longer than these.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    started = session.start(master="local[2,2]", conf=SMALL, app="tests")
    yield started
    session.stop(started)
