"""Data source and sink for Apache Spark, and the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # the package can be imported without Spark
    from pyspark.sql import SparkSession


FILTERS: Final = "spark.sql.python.filterPushdown.enabled"  # since Spark 4.1, off by default


def register(spark: SparkSession) -> None:
    """Register the data sources ``skipring`` and ``skipring_deliveries`` with a session.

    Enable filters that members evaluate. Raise InputError if the workers of the session cannot
    import skipring.
    """
    from skipring.spark.delivery_source import DeliveriesDataSource  # noqa: PLC0415  (as above)
    from skipring.spark.session.executors import check_workers  # noqa: PLC0415
    from skipring.spark.source import SkipringDataSource  # noqa: PLC0415

    check_workers(spark)
    spark.conf.set(FILTERS, "true")
    spark.dataSource.register(SkipringDataSource)
    spark.dataSource.register(DeliveriesDataSource)
