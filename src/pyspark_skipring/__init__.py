"""Entry point by which PySpark finds the data source ``skipring``."""

from skipring.spark.source import SkipringDataSource as DefaultSource

__all__ = ["DefaultSource"]
