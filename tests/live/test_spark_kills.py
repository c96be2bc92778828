"""Streaming query that is killed between batches, five times, while members publish."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.spark.rings import TOPIC, Ring, running_ring

pytestmark = [pytest.mark.heavy, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
# Follows a topic into a Parquet table; with "drain" it ends and prints the ids of the table.
PROGRAM = """
import sys

from skipring.spark import register
from skipring.spark.session import builder as session
from tests.support.spark_session import SMALL

SUPERVISOR, TOPIC, TABLE, CHECKPOINT, TRIGGER = sys.argv[1:]

spark = session.start(master="local[2]", conf=SMALL)
register(spark)
writer = (
    spark.readStream.format("skipring")
    .option("supervisor", SUPERVISOR)
    .option("subscribe", TOPIC)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", "500")
    .load()
    .select("id", "offset")
    .writeStream.format("parquet")
    .option("path", TABLE)
    .option("checkpointLocation", CHECKPOINT)
)
if TRIGGER == "drain":
    writer.trigger(availableNow=True).start().awaitTermination()
    for row in spark.read.parquet(TABLE).select("id").collect():
        sys.stdout.write(f"{row.id.hex()}\\n")
else:
    writer.trigger(processingTime="0 seconds").start().awaitTermination()
session.stop(spark)
"""
PATIENCE_S = 120.0
KILLS = 5
TICK_S = 0.25  # Measured: a ring with a shorter tick takes a sixth of a core for minutes


@contextmanager
def following(ring: Ring, directory: Path, trigger: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the program as leader of its own group: its JVM and Python workers end with it."""
    places = [str(directory / "table"), str(directory / "checkpoint")]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, ring.supervisor, TOPIC, *places, trigger],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))},
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as program:
        try:
            yield program
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)


def commits(directory: Path) -> int:
    """Return the number of committed batches."""
    return len(list((directory / "checkpoint" / "commits").glob("[0-9]*")))


def wait_for_commits(directory: Path, count: int, program: subprocess.Popen[bytes]) -> None:
    deadline = monotonic() + PATIENCE_S
    while commits(directory) < count:
        assert program.poll() is None, "the query ended by itself"
        assert monotonic() < deadline, f"{commits(directory)} batches, and {count} were awaited"
        sleep(0.05)


def test_table_has_every_publication_once_after_five_kills(tmp_path: Path) -> None:
    with running_ring(3, tmp_path / "ring", tick_s=TICK_S) as ring:
        stopped = asyncio.Event()

        async def publish() -> int:
            count = 0
            while not stopped.is_set():
                await ring.cluster.publish(f"n{count % 3:02}", b"%d" % count)
                await asyncio.sleep(0.05)
                count += 1
            return count

        publishing = ring.begin(publish())
        for _ in range(KILLS):
            done = commits(tmp_path)
            with following(ring, tmp_path, "at once") as program:
                wait_for_commits(tmp_path, done + 2, program)
        ring.call(stopped.set)
        count = publishing.result(PATIENCE_S)
        ring.wait_in_sync()
        with following(ring, tmp_path, "drain") as program:
            printed, _ = program.communicate(timeout=PATIENCE_S)
            assert program.returncode == 0
        stored = {publication.id for publication in ring.publications()}
    ids = [bytes.fromhex(line) for line in printed.decode().split()]
    assert len(ids) == len(set(ids)) == count
    assert set(ids) == stored
