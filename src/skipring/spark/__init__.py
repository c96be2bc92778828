"""Data source and sink for Apache Spark, and the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # so that this package can be imported where Spark is not installed
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Let a session know the data sources ``skipring`` and ``skipring_deliveries``."""
    from skipring.spark.delivery_source import DeliveriesDataSource  # noqa: PLC0415  (as above)
    from skipring.spark.source import SkipringDataSource  # noqa: PLC0415

    spark.dataSource.register(SkipringDataSource)
    spark.dataSource.register(DeliveriesDataSource)
