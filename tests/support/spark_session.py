"""Settings of the Spark session that all tests of a process share."""

from __future__ import annotations

# Measured: with few rows most of the time goes into planning and compilation.
FEW_ROWS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}

SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "1g",
    **FEW_ROWS,
}
