"""Clients of a ring: garbage collection in Spark's processes, and certificates."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from skipring.core.events import PublishRequested
from skipring.errors import InputError, UnreachableError
from skipring.node.host import NodeHost
from skipring.node.settings import NodeSettings
from skipring.node.supervisor_host import SupervisorHost
from skipring.security.ca import issue, make_authority
from skipring.security.credentials import Credentials
from skipring.spark.batch import BatchReader
from skipring.spark.options import ReadOptions, WriteOptions
from skipring.spark.ring_client import freeze_gc
from skipring.spark.sink import publish_rows
from skipring.spark.source import SkipringDataSource
from skipring.storage.store import PublicationStore
from tests.spark.reading import rows_of
from tests.spark.rings import TOPIC, running_loop
from tests.support.rings import until

TICK_S = 0.05
DEADLINE_S = 30.0

Result = TypeVar("Result")


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


class Secured:
    """Supervisor and node that require certificates."""

    def __init__(self, directory: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._papers = make_authority(directory / "papers", days=10)
        for name in ("supervisor", "a", "spark"):
            issue(self._papers, name, self._papers, days=5, hosts=[])
        self._store = PublicationStore.open(directory / "a")
        self.supervisor = SupervisorHost(
            NodeSettings(tick_s=TICK_S, credentials=self._credentials("supervisor")), rng=Random(0)
        )

    def _credentials(self, name: str) -> Credentials:
        return Credentials(*(Path(file) for file in self.options(name).values()))

    def options(self, name: str) -> dict[str, str]:
        """Return the files of a certificate as options."""
        files = {"ca": "ca.pem", "cert": f"{name}.pem", "key": f"{name}.key"}
        return {option: str(self._papers / file) for option, file in files.items()}

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    async def start(self) -> None:
        await self.supervisor.start("127.0.0.1", 0)
        settings = NodeSettings(
            supervisors=(self.supervisor.address,),
            tick_s=TICK_S,
            flush_s=TICK_S,
            credentials=self._credentials("a"),
        )
        self.node = NodeHost("a", settings, rng=Random(1), store=self._store)
        await self.node.start("127.0.0.1", 0)
        self.node.subscribe(TOPIC)
        await until(lambda: bool(self.supervisor.members().get(TOPIC)))
        for number in range(10):
            await self.node.publish(TOPIC, PublishRequested(payload=b"%d" % number))

    async def stop(self) -> None:
        await self.node.close()
        await self.supervisor.close()
        self._store.close()


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    with running_loop() as loop:
        secured = Secured(tmp_path, loop)
        secured.run(secured.start())
        yield secured
        secured.run(secured.stop())


def test_client_with_a_certificate_reads_and_writes(secured: Secured) -> None:
    access = {"supervisor": secured.supervisor.address, **secured.options("spark")}
    rows = pa.RecordBatch.from_pydict({"value": [b"more"]})
    publish_rows(WriteOptions.parse({**access, "topic": TOPIC}), "w", "", iter([rows]))
    options = ReadOptions.parse({**access, "subscribe": TOPIC}, is_stream=False)
    reader = BatchReader(options)
    values = sorted(row["value"] for row in rows_of(reader, reader.partitions()))
    assert values == [*(b"%d" % number for number in range(10)), b"more"]


def test_client_without_a_certificate_gets_the_likely_cause(secured: Secured) -> None:
    given = {"supervisor": secured.supervisor.address, "subscribe": TOPIC}
    reader = BatchReader(ReadOptions.parse(given, is_stream=False))
    with pytest.raises(UnreachableError, match="speaks TLS, and this process has no certificate"):
        reader.partitions()


def test_file_that_is_not_a_certificate_is_refused(secured: Secured, tmp_path: Path) -> None:
    given = {"supervisor": secured.supervisor.address, "subscribe": TOPIC}
    files = {**secured.options("spark"), "cert": str(tmp_path / "none.pem")}
    reader = BatchReader(ReadOptions.parse({**given, **files}, is_stream=False))
    with pytest.raises(InputError, match=r"none\.pem"):
        reader.partitions()
