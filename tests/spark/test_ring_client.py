"""Clients of a ring: garbage collection in Spark's processes, and certificates."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from skipring.core.batches import BatchRecord
from skipring.errors import InputError, UnreachableError
from skipring.node.host import NodeHost
from skipring.node.settings import NodeSettings
from skipring.node.supervisor_host import SupervisorHost
from skipring.spark.batch import BatchReader
from skipring.spark.options import ReadOptions, WriteOptions
from skipring.spark.ring_client import freeze_gc
from skipring.spark.sink import publish_rows
from skipring.spark.source import SkipringDataSource
from skipring.storage.store import LogStore
from tests.spark.reading import rows_of
from tests.spark.rings import TOPIC, running_loop
from tests.support.papers import Papers
from tests.support.rings import LOOPBACK, until

TICK_S = 0.05
DEADLINE_S = 30.0
CLIENT = "spark"


# -- garbage collection ------------------------------------------------------------------------

GIVEN = {"supervisor": "127.0.0.1:9", "subscribe": TOPIC}


def read_empty_partition() -> None:
    reader = BatchReader(ReadOptions.parse(GIVEN, is_stream=False))
    assert list(reader.read(InputPartition(None))) == []


@pytest.mark.parametrize("start", [read_empty_partition, SkipringDataSource(GIVEN).schema])
def test_loaded_objects_are_frozen_once_in_each_process(start: Callable[[], object]) -> None:
    gc.unfreeze()
    freeze_gc.cache_clear()  # as in a new process
    start()
    assert gc.get_freeze_count() > 10_000
    gc.unfreeze()
    freeze_gc()
    assert gc.get_freeze_count() == 0  # later objects can be collected


# -- certificates ------------------------------------------------------------------------------


@asynccontextmanager
async def secured_node(directory: Path) -> AsyncIterator[str]:
    """Run a supervisor and a node that require certificates; yield the supervisor's address."""
    papers = Papers(directory)
    papers.of(CLIENT)
    settings = NodeSettings(tick_s=TICK_S, credentials=papers.of("supervisor"))
    supervisor = SupervisorHost(settings, rng=Random(0))
    await supervisor.start(LOOPBACK, 0)
    settings = NodeSettings(
        supervisors=(supervisor.address,),
        tick_s=TICK_S,
        flush_s=TICK_S,
        credentials=papers.of("a"),
    )
    with LogStore.open(directory / "a") as store:
        node = NodeHost("a", settings, rng=Random(1), store=store)
        await node.start(LOOPBACK, 0)
        node.subscribe(TOPIC)
        await until(lambda: bool(supervisor.members().get(TOPIC)))
        for number in range(10):
            await node.publish(TOPIC, BatchRecord(b"%d" % number))
        yield supervisor.address
        await node.close()
    await supervisor.close()


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[str]:
    """Return the address of a supervisor that requires certificates."""
    with running_loop() as loop:
        ring = secured_node(tmp_path)
        yield asyncio.run_coroutine_threadsafe(ring.__aenter__(), loop).result(DEADLINE_S)
        ended = asyncio.run_coroutine_threadsafe(ring.__aexit__(None, None, None), loop)
        ended.result(DEADLINE_S)


def files(directory: Path) -> dict[str, str]:
    """Return the files of the client's certificate as options."""
    names = {"ca": "ca.pem", "cert": f"{CLIENT}.pem", "key": f"{CLIENT}.key"}
    return {option: str(directory / "cluster" / name) for option, name in names.items()}


def test_client_with_a_certificate_reads_and_writes(supervisor: str, tmp_path: Path) -> None:
    access = {"supervisor": supervisor, **files(tmp_path)}
    rows = pa.RecordBatch.from_pydict({"value": [b"more"]})
    publish_rows(WriteOptions.parse({**access, "topic": TOPIC}), "w", "", iter([rows]))
    options = ReadOptions.parse({**access, "subscribe": TOPIC}, is_stream=False)
    reader = BatchReader(options)
    values = sorted(row["value"] for row in rows_of(reader, reader.partitions()))
    assert values == [*(b"%d" % number for number in range(10)), b"more"]


def test_client_without_a_certificate_gets_the_likely_cause(supervisor: str) -> None:
    given = {"supervisor": supervisor, "subscribe": TOPIC}
    reader = BatchReader(ReadOptions.parse(given, is_stream=False))
    with pytest.raises(UnreachableError, match="speaks TLS, and this process has no certificate"):
        reader.partitions()


def test_file_that_is_not_a_certificate_is_refused(supervisor: str, tmp_path: Path) -> None:
    given = {"supervisor": supervisor, "subscribe": TOPIC, **files(tmp_path)}
    given["cert"] = str(tmp_path / "none.pem")
    reader = BatchReader(ReadOptions.parse(given, is_stream=False))
    with pytest.raises(InputError, match=r"none\.pem"):
        reader.partitions()
