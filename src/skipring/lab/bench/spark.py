"""Spark: reads of a topic against Parquet (``skipring bench spark``).

A supervisor and members with all publications on disk run as processes. Both reads have a no-op
sink and run several times, alternately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, sleep
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from skipring.lab.bench.report import Row
from skipring.lab.bench.run import TOPIC
from skipring.lab.bench.servers import RARE_PUBLISHER, BenchProcesses, fill_store
from skipring.lab.usage import tree_cpu_s
from skipring.net.access import Access
from skipring.spark import register, session
from skipring.spark.ring_client import RingClient

RING: Final = "skipring"
PARQUET: Final = "parquet"
COLUMNS: Final = "skipring, id and timestamp"
FILTER: Final = "skipring, a publisher with 1 % of the rows"
PAYLOAD_BYTES: Final = 128  # as in the other benchmarks
MEMBERS: Final = 4
CORES: Final = 2
WARM_UPS: Final = 2  # the first reads of a session compile and fork
REPEATS: Final = 7
FORMING_S: Final = 60.0
POLL_S: Final = 0.1


def measure(rows: int, *, repeats: int = REPEATS) -> Iterator[Row]:
    """Yield a row for each source."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="skipring-bench-")))
        processes = stack.enter_context(BenchProcesses(directory))
        supervisor = processes.start_supervisor()
        for node in (f"n{number}" for number in range(MEMBERS)):
            fill_store(directory / node, rows, PAYLOAD_BYTES, has_keys=True)
            processes.start_node(node)
        pids = [process.pid for process in processes.running.values()]
        _wait_formed(supervisor, MEMBERS)
        master = f"local[{CORES}]"
        spark = stack.enter_context(session.opened(master=master, app="skipring bench"))
        register(spark)
        parquet = str(directory / "parquet")
        _table(spark, supervisor).write.parquet(parquet)
        reads: dict[str, Callable[[], DataFrame]] = {
            RING: lambda: _table(spark, supervisor),
            PARQUET: lambda: spark.read.parquet(parquet),
            COLUMNS: lambda: _table(spark, supervisor, schema="id binary, timestamp timestamp"),
            FILTER: lambda: _table(spark, supervisor).where(f"publisher = '{RARE_PUBLISHER}'"),
        }
        yield from _compared(reads, rows, repeats, pids)


def _compared(
    reads: dict[str, Callable[[], DataFrame]], rows: int, repeats: int, pids: list[int]
) -> Iterator[Row]:
    found: dict[str, list[tuple[float, float]]] = {system: [] for system in reads}
    for turn in range(WARM_UPS + repeats):
        for system, read in reads.items():
            cost = _read_cost(read, pids)
            if turn >= WARM_UPS:
                found[system].append(cost)
    for system, times in found.items():
        walls = [wall for wall, _ in times]
        yield {
            "job": "spark",
            "system": system,
            "rows": rows,
            "rows_per_s": round(rows / median(walls)),
            "rows_per_s_min": round(rows / max(walls)),
            "rows_per_s_max": round(rows / min(walls)),
            "cpu_us_per_row": round(median(cpu for _, cpu in times) / rows * 1e6, 2),
            "repeats": repeats,
        }


def _read_cost(read: Callable[[], DataFrame], pids: list[int]) -> tuple[float, float]:
    """Return wall and CPU time of a read, the processes of the ring included."""
    before, began = tree_cpu_s(pids), perf_counter()
    read().write.format("noop").mode("overwrite").save()
    return perf_counter() - began, tree_cpu_s(pids) - before


def _table(spark: SparkSession, supervisor: str, schema: str | None = None) -> DataFrame:
    reader = spark.read.format("skipring").options(supervisor=supervisor, pushFilters="true")
    reader = reader if schema is None else reader.schema(schema)
    return reader.option("subscribe", TOPIC).load()


def _wait_formed(supervisor: str, members: int) -> None:
    deadline = monotonic() + FORMING_S
    with RingClient(Access(supervisors=(supervisor,))) as client:
        while len(client.located(TOPIC)) < members:
            if monotonic() > deadline:
                raise TimeoutError(f"no ring of {members} after {FORMING_S:.0f} s")
            sleep(POLL_S)
