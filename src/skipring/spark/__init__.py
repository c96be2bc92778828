"""The data pipeline on Apache Spark: source and sink, pipeline, and the experiment lab."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # so that this package can be imported where Spark is not installed
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Let a session know the data source ``skipring``."""
    from skipring.spark.source import SkipringDataSource  # noqa: PLC0415  (as above)

    spark.dataSource.register(SkipringDataSource)
