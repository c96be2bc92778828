"""Streaming query that is killed between batches, five times, while members publish."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic, sleep

import pytest

from faults.processes import LiveProcesses
from faults.requests import TOPIC as PROCESS_TOPIC
from skipring.lab.processes import SUPERVISOR
from skipring.net.access import Access
from skipring.spark.ring_client import RingClient
from tests.spark.rings import TOPIC, running_ring
from tests.support.process_rings import process_ring

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
PATIENCE_S = 300.0
KILLS = 5
TICK_S = 0.25  # Measured: a ring with a shorter tick takes a sixth of a core for minutes


@contextmanager
def following(
    supervisor: str, topic: str, directory: Path, trigger: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the program as leader of its own group: its JVM and Python workers end with it."""
    places = [str(directory / "table"), str(directory / "checkpoint")]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, supervisor, topic, *places, trigger],
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


def position(directory: Path) -> dict[str, object]:
    """Return the position after the last planned batch."""
    files = (directory / "checkpoint" / "offsets").glob("[0-9]*")
    last = max(files, key=lambda path: int(path.name))
    found: dict[str, object] = json.loads(last.read_text().splitlines()[-1])[PROCESS_TOPIC]
    return found


def has_all(ring: LiveProcesses, ids: set[bytes]) -> bool:
    """Return True if all nodes have stored these publications."""
    return all(ring.stored(node) >= ids for node in ring.nodes)


def test_query_goes_on_by_itself_when_its_member_is_killed_five_times(tmp_path: Path) -> None:
    directory, places = tmp_path / "query", tmp_path / "ring"
    places.mkdir()
    with process_ring(places, 3, tick_s=TICK_S) as ring:
        supervisor = ring.running[SUPERVISOR].address
        access = Access(supervisors=(supervisor,))
        published = set[bytes]()

        def publish(node: str, first: int) -> None:
            for number in range(first, first + 20):
                published.update(ring.publish(node, b"%d" % number))

        publish("n00", 0)
        with following(supervisor, PROCESS_TOPIC, directory, "at once") as program:
            wait_for_commits(directory, 1, program)
            for number in range(KILLS):
                with RingClient(access) as client:
                    stores = {
                        each.survey.store: each.node for each in client.survey(PROCESS_TOPIC, None)
                    }
                node = stores[str(position(directory)["store"])]
                other = next(each for each in ring.nodes if each != node)
                done = commits(directory)
                publish(node, 100 * number)
                ring.until(partial(has_all, ring, published))
                ring.kill(node)
                publish(other, 100 * number + 50)
                wait_for_commits(directory, done + 2, program)
                ring.restart(node)
                ring.until_legitimate()
        with following(supervisor, PROCESS_TOPIC, directory, "drain") as program:
            printed, _ = program.communicate(timeout=PATIENCE_S)
            assert program.returncode == 0
    ids = [bytes.fromhex(line) for line in printed.decode().split()]
    assert len(ids) == len(set(ids)) == len(published)
    assert set(ids) == published


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
            with following(ring.supervisor, TOPIC, tmp_path, "at once") as program:
                wait_for_commits(tmp_path, done + 2, program)
        ring.call(stopped.set)
        count = publishing.result(PATIENCE_S)
        ring.wait_in_sync()
        with following(ring.supervisor, TOPIC, tmp_path, "drain") as program:
            printed, _ = program.communicate(timeout=PATIENCE_S)
            assert program.returncode == 0
        stored = {publication.id for publication in ring.publications()}
    ids = [bytes.fromhex(line) for line in printed.decode().split()]
    assert len(ids) == len(set(ids)) == count
    assert set(ids) == stored
