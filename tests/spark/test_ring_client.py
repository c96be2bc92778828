"""What Spark's processes are spared."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from pyspark.sql.datasource import InputPartition

from skipring.spark.batch import BatchReader
from skipring.spark.options import ReadOptions
from skipring.spark.ring_client import freeze_gc
from skipring.spark.source import SkipringDataSource

GIVEN = {"supervisor": "127.0.0.1:9", "subscribe": "orders"}


@pytest.fixture(autouse=True)
def _new_process() -> Iterator[None]:
    """As if nothing had been read yet."""
    gc.unfreeze()
    freeze_gc.cache_clear()
    yield
    gc.unfreeze()


def test_a_task_leaves_out_what_is_loaded_when_garbage_is_looked_for() -> None:
    reader = BatchReader(ReadOptions.parse(GIVEN, is_stream=False))
    assert list(reader.read(InputPartition(None))) == []
    assert gc.get_freeze_count() > 10_000


def test_so_does_the_process_that_is_asked_for_the_columns() -> None:
    SkipringDataSource(GIVEN).schema()
    assert gc.get_freeze_count() > 10_000


def test_what_comes_later_can_be_collected() -> None:
    freeze_gc()
    gc.unfreeze()
    freeze_gc()
    assert gc.get_freeze_count() == 0
