"""Pipeline on a live ring: killed with SIGKILL while members publish, interrupted, drained."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from time import monotonic, sleep, time_ns
from typing import Any

import pytest
from pyspark.sql import SparkSession

from skipring.core.batches import BatchRecord
from skipring.net.access import Access
from skipring.spark.pipeline.progress import PipelineProgress, as_json
from skipring.spark.pipeline.project import read_project
from skipring.spark.pipeline.runner import PipelineRun, rooted, run_pipeline
from tests.spark.pipeline.lakes import ids, read, write_project
from tests.spark.rings import TOPIC, Ring, running_ring
from tests.support.processes import MARK, left_of
from tests.support.spark_session import FEW_ROWS

WAIT_S = 240.0  # a machine may be busy
PUBLISHED_MAX = 10_000  # within half an hour; every run needs something new
CONF = {
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    **FEW_ROWS,
}
PIPELINE = f"""\
topics = ["{TOPIC}"]
trigger = "100ms"
max_offsets = 50
deliveries = true
"""
SCHEMA = """\
[columns]
number = "bigint"

[expect]
"the number is no 9" = "number % 10 <> 9"
"""
GOLD = {
    "seconds": """\
-- window: 1s
SELECT window_start, count(*) AS n FROM silver GROUP BY window_start
""",
    "arrivals": """\
-- window: 1m
-- of: deliveries
SELECT window_start, node, count(*) AS n FROM deliveries GROUP BY window_start, node
""",
}

Condition = Callable[["Run"], bool]


class Run:
    """Process of ``skipring pipeline run``, which ends with its block."""

    def __init__(self, ring: Ring, project: Path, mark: str, *options: str) -> None:
        settings = [f"--conf={name}={value}" for name, value in CONF.items()]
        words = [str(project), "--supervisor", ring.supervisor, "--json", "--no-ui"]
        self.lake = project / "lake"
        self._out = project.parent / f"out-{time_ns()}"
        command = [sys.executable, "-m", "skipring", "pipeline", "run", *words]
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, "--master", "local[2]", *settings, *options],
                env={**os.environ, MARK: mark},
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @property
    def text(self) -> str:
        return self._out.read_text()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines() if line.startswith("{")]

    def wait_until(self, is_so: Condition) -> None:
        """Wait for a condition; fail if the process ends before."""
        deadline = monotonic() + WAIT_S
        while not is_so(self):
            assert self.process.poll() is None, self.text
            assert monotonic() < deadline, self.text
            sleep(0.005)

    def status(self) -> int:
        return self.process.wait(WAIT_S)


def writes(path: str) -> Condition:
    """Return a condition: a micro-batch writes this file or directory of the lake."""
    return lambda run: (run.lake / path).exists()


def has_reported(run: Run) -> bool:
    return bool(run.lines)


@contextmanager
def publishing(ring: Ring) -> Iterator[list[bytes]]:
    """Publish at all nodes during the block; yield the ids of the publications."""
    published: list[bytes] = []
    is_over = asyncio.Event()

    async def publish() -> None:
        while not is_over.is_set() and len(published) < PUBLISHED_MAX:
            number = len(published)
            value = json.dumps({"number": number}).encode()
            given = BatchRecord(payload=value, time=time_ns() // 1000)
            node = ring.cluster.node(f"n0{number % 4}")
            published.extend(await node.publish(TOPIC, given))
            await asyncio.sleep(0.2)

    work = ring.begin(publish())
    try:
        yield published
    finally:
        ring.call(is_over.set)
        work.result(WAIT_S)


def kill(ring: Ring, project: Path, mark: str, kills: int) -> None:
    """Kill a pipeline at several moments."""
    moments = [writes("work/ready.json"), has_reported, writes("work/1"), writes("work/0")]
    for number in range(kills):
        with Run(ring, project, mark) as run:
            run.wait_until(has_reported if number % 2 else writes("checkpoint/offsets/0"))
            run.wait_until(moments[number % len(moments)])  # then the block kills the driver


def interrupt(ring: Ring, project: Path, mark: str) -> Run:
    """Interrupt a pipeline during a micro-batch; return its run."""
    with Run(ring, project, mark) as run:
        run.wait_until(has_reported)
        run.wait_until(writes("work/0"))
        os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does
        run.status()
    return run


def drain(spark: SparkSession, ring: Ring, project: Path) -> dict[str, Any]:
    """Run the pipeline in this process until it has read everything; return the last progress."""
    access = Access(supervisors=(ring.supervisor,))
    run = rooted(PipelineRun(project=read_project(project), access=access, is_once=True))
    progress: list[PipelineProgress] = []
    run_pipeline(spark, run, progress.append, Event())
    last: dict[str, Any] = json.loads(as_json(progress[-1]))
    return last


def check_once(lake: Path, published: list[bytes]) -> None:
    assert ids(lake, "bronze") == sorted(published)
    bad = ids(lake, "quarantine")
    assert bad == sorted(published[9::10])
    assert sorted(ids(lake, "silver") + bad) == sorted(published)
    assert sum(row["n"] for row in read(lake, "seconds")) == len(published) - len(bad)
    assert sum(row["n"] for row in read(lake, "arrivals")) == 4 * len(published)
    deliveries = [(row["node"], row["id"]) for row in read(lake, "deliveries")]
    assert len(deliveries) == len(set(deliveries))


@pytest.mark.heavy
def test_pipeline_continues_after_a_kill_with_every_publication_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    project, mark = tmp_path / "project", f"pipeline-{time_ns()}"
    write_project(project, pipeline=PIPELINE, schema=SCHEMA, gold=GOLD)
    with running_ring(4, tmp_path / "ring") as ring:
        with publishing(ring) as published:
            kill(ring, project, mark, 1)
        ring.wait_durable()
        assert left_of(mark) == []
        drain(spark, ring, project)
    check_once(project / "lake", published)


@pytest.mark.heavy
@pytest.mark.slow  # five minutes beside the other tests
def test_pipeline_that_was_killed_interrupted_and_drained_has_every_publication_once(
    tmp_path: Path,
) -> None:
    project, mark = tmp_path / "project", f"pipeline-{time_ns()}"
    write_project(project, pipeline=PIPELINE, schema=SCHEMA, gold=GOLD)
    with running_ring(4, tmp_path / "ring") as ring:  # one scene: it needs several JVMs
        with publishing(ring) as published:
            kill(ring, project, mark, 4)
            interrupted = interrupt(ring, project, mark)
        ring.wait_durable()
        assert left_of(mark) == []
        with Run(ring, project, mark, "--once") as drained:
            assert drained.status() == 0, drained.text
        assert left_of(mark) == []
    assert interrupted.process.returncode == 130
    lines = interrupted.text.splitlines()
    assert [line for line in lines if not line.startswith("{")] == []  # no output of Java
    check_once(project / "lake", published)
