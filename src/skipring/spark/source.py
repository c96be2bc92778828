"""Data source ``skipring``: topics as tables and streams, with Kafka's conventions."""

from __future__ import annotations

from secrets import token_hex

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from skipring.errors import InputError
from skipring.spark.arrow import publication_schema, spark_schema
from skipring.spark.batch import BatchReader
from skipring.spark.options import ReadOptions, WriteOptions, includes_headers
from skipring.spark.ring_client import freeze_gc
from skipring.spark.sink import BatchWriter, StreamWriter, check_columns
from skipring.spark.stream import StreamReader


class SkipringDataSource(DataSource):
    """Data source of publications; it sends no request before a query runs."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format("skipring")``."""
        return "skipring"

    def schema(self) -> str:
        """Return the columns of a read; Spark calls this first, in its own process."""
        freeze_gc()
        return spark_schema(publication_schema(with_headers=includes_headers(self.options)))

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of a batch."""
        return BatchReader(ReadOptions.parse(self.options, is_stream=False))

    def streamReader(self, schema: StructType) -> StreamReader:
        """Return the reader of a stream."""
        return StreamReader(ReadOptions.parse(self.options, is_stream=True))

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
