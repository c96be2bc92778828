"""Data source ``skipring``: topics as tables and streams, with Kafka's conventions."""

from __future__ import annotations

import sys
from secrets import token_hex
from typing import Final

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from skipring.errors import InputError
from skipring.spark.arrow import RowForm, column_types, publication_schema, spark_schema
from skipring.spark.batch import BatchReader, FilteredBatchReader, TableReader
from skipring.spark.options import ReadOptions, WriteOptions, included_headers
from skipring.spark.ring_client import freeze_gc
from skipring.spark.sink import BatchWriter, StreamWriter, check_columns
from skipring.spark.stream import StreamReader

# Spark plans a read with filters in a process that runs this module. In its other processes it
# refuses a reader that evaluates filters, unless spark.sql.python.filterPushdown.enabled is set.
PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"
# Spark 4.1 to 4.3 keep the pushed filters of one query of a DataFrame for its other queries, which
# then miss rows. The version that also pushes limits keeps them apart.
ARE_FILTERS_SCOPED: Final = hasattr(DataSourceReader, "pushLimit")


class SkipringDataSource(DataSource):
    """Data source of publications; it sends no request before a query runs."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format("skipring")``."""
        return "skipring"

    def schema(self) -> str:
        """Return the columns of a read; Spark calls this first, in its own process."""
        freeze_gc()
        return spark_schema(publication_schema(included_headers(self.options)))

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of a batch, with the columns of a schema."""
        options = ReadOptions.parse(self.options, is_stream=False)
        if options.is_table:
            return TableReader(options, row_form(schema))
        chosen = options.pushes_filters
        is_pushed = ARE_FILTERS_SCOPED if chosen is None else chosen
        kind = FilteredBatchReader if is_pushed and PUSHING in sys.modules else BatchReader
        return kind(options, row_form(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        """Return the reader of a stream, with the columns of a schema."""
        return StreamReader(ReadOptions.parse(self.options, is_stream=True), row_form(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a batch."""
        if overwrite:
            raise InputError('publications cannot be overwritten; write with mode("append")')
        options = WriteOptions.parse(self.options)
        check_columns(schema, options)
        return BatchWriter(options, options.write_id or token_hex(16))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return the writer of a stream."""
        options = WriteOptions.parse(self.options)
        check_columns(schema, options)
        return StreamWriter(options)


def row_form(schema: StructType) -> RowForm:
    """Return the columns of a schema; raise InputError for an unknown column."""
    known = column_types()
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if field.name not in known:
            raise InputError(f"no column {field.name!r}; the columns are {', '.join(known)}")
        if kind not in known[field.name]:
            raise InputError(f"column {field.name} is {' or '.join(known[field.name])}, not {kind}")
    return RowForm(schema=to_arrow_schema(schema, timezone="UTC"))
