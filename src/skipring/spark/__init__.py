"""Data source and sink for Apache Spark, and the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the package can be imported without Spark
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the data sources ``skipring`` and ``skipring_deliveries`` with a session."""
    from skipring.spark.delivery_source import DeliveriesDataSource  # noqa: PLC0415  (as above)
    from skipring.spark.source import SkipringDataSource  # noqa: PLC0415

    spark.dataSource.register(SkipringDataSource)
    spark.dataSource.register(DeliveriesDataSource)
