"""Where PySpark finds the data source ``skipring`` by itself."""

from skipring.spark.source import SkipringDataSource as DefaultSource

__all__ = ["DefaultSource"]
