"""Reading a topic with Spark, beside reading the same rows from Parquet (``skipring bench spark``).

A supervisor and some members run as processes of their own, with everything on their disks. Both
reads go to nowhere, so that only reading is measured, in turns, each several times.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, sleep
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from skipring.lab.bench import lab
from skipring.lab.bench.goals import at_least, at_most
from skipring.lab.bench.peers.run import TOPIC
from skipring.lab.bench.processes import cpu_s
from skipring.lab.bench.stores import fill_store
from skipring.lab.experiments.running import settings_for
from skipring.net.access import Access
from skipring.spark import register, session
from skipring.spark.ring_client import RingClient

RING: Final = "skipring"
PARQUET: Final = "parquet"
PAYLOAD_BYTES: Final = 128  # as in the other benchmarks
MEMBERS: Final = 4
CORES: Final = 2
WARM_UPS: Final = 2  # the first reads of a session compile and fork
REPEATS: Final = 7
FORMING_S: Final = 60.0
AGAIN_S: Final = 0.1
WANTED: Final = 0.5  # of the rows per second that Parquet gives

Rows = Generator[dict[str, Any], None, dict[str, float]]  # and the ratios at the end


def measure(rows: int, runs: int, *, repeats: int = REPEATS) -> Iterator[dict[str, Any]]:
    """Yield one row a measurement, the ratios last."""
    ratios = yield from _measured_reads(rows, repeats)
    master = f"local[{CORES}]"
    conf = settings_for(master)
    with session.opened(master=master, conf=conf, app="skipring bench") as spark:
        row = lab.measure(spark, runs=runs)
    yield row
    for what in ("cpu", "wall"):
        cost = 1 + row[f"overhead_{what}"]
        ratios |= at_most(f"lab_{what}_over_plain", cost, 1 + lab.OVERHEAD_WANTED)
    yield {"ratios": ratios}


def _measured_reads(rows: int, repeats: int) -> Rows:
    """Rows of both ways to read; return the ratios."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="skipring-bench-")))
        nodes = [f"n{number}" for number in range(MEMBERS)]
        for node in nodes:
            fill_store(directory / node, rows, PAYLOAD_BYTES)
        ring = stack.enter_context(running_ring(directory, nodes))
        master = f"local[{CORES}]"
        spark = stack.enter_context(session.opened(master=master, app="skipring bench"))
        register(spark)
        parquet = str(directory / "parquet")
        _table(spark, ring.supervisor).write.parquet(parquet)
        reads: dict[str, Callable[[], DataFrame]] = {
            RING: lambda: _table(spark, ring.supervisor),
            PARQUET: lambda: spark.read.parquet(parquet),
        }
        return (yield from _compared(reads, rows, repeats, ring.pids))


def _compared(
    reads: dict[str, Callable[[], DataFrame]], rows: int, repeats: int, pids: list[int]
) -> Rows:
    found: dict[str, list[tuple[float, float]]] = {system: [] for system in reads}
    for turn in range(WARM_UPS + repeats):
        for system, read in reads.items():
            taken = _taken(read, pids)
            if turn >= WARM_UPS:
                found[system].append(taken)
    speeds = {}
    for system, times in found.items():
        walls = [wall for wall, _ in times]
        speeds[system] = rows / median(walls)
        yield {
            "job": "spark",
            "system": system,
            "rows": rows,
            "rows_per_s": round(speeds[system]),
            "rows_per_s_min": round(rows / max(walls)),
            "rows_per_s_max": round(rows / min(walls)),
            "cpu_us_per_row": round(median(cpu for _, cpu in times) / rows * 1e6, 2),
            "repeats": repeats,
        }
    return at_least("rows_per_s_over_parquet", speeds[RING] / speeds[PARQUET], WANTED)


def _taken(read: Callable[[], DataFrame], pids: list[int]) -> tuple[float, float]:
    """How long a read takes, and the time of all processors that have to do with it."""
    before, began = cpu_s(pids), perf_counter()
    read().write.format("noop").mode("overwrite").save()
    return perf_counter() - began, cpu_s(pids) - before


def _table(spark: SparkSession, supervisor: str) -> DataFrame:
    reader = spark.read.format("skipring").option("supervisor", supervisor)
    return reader.option("subscribe", TOPIC).load()


# -- the ring ----------------------------------------------------------------------------------


class BenchRing:
    """Processes of a ring."""

    def __init__(self, supervisor: str, pids: list[int]) -> None:
        self.supervisor = supervisor
        self.pids = pids


@contextmanager
def running_ring(directory: Path, nodes: list[str]) -> Iterator[BenchRing]:
    """A supervisor and nodes with these data directories, until the block ends."""
    with ExitStack() as stack:
        process, supervisor = stack.enter_context(_started("supervisor"))
        processes = [process]
        for node in nodes:
            place = ("--name", node, "--data", str(directory / node))
            member = ("--supervisor", supervisor, "--topic", TOPIC)
            processes.append(stack.enter_context(_started("node", *member, *place))[0])
        _wait_for(supervisor, len(nodes))
        yield BenchRing(supervisor, [each.pid for each in processes])


@contextmanager
def _started(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of ours, and where it listens."""
    command = [sys.executable, "-m", "skipring", *words, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(  # noqa: S603  (ourselves)
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().removeprefix("listening ").strip()
        finally:
            process.terminate()


def _wait_for(supervisor: str, members: int) -> None:
    deadline = monotonic() + FORMING_S
    with RingClient(Access(supervisors=(supervisor,))) as reach:
        while len(reach.located(TOPIC)) < members:
            if monotonic() > deadline:
                raise TimeoutError(f"no ring of {members} after {FORMING_S:.0f} s")
            sleep(AGAIN_S)
