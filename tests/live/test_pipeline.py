"""Pipeline on a live ring: killed with SIGKILL while members publish, interrupted, drained."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
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
from skipring.spark.pipeline.lake import Name
from skipring.spark.pipeline.manifest import RequestedConfig, agreed
from skipring.spark.pipeline.runner import (
    PipelinePlan,
    PipelineProgress,
    as_json,
    run_pipeline,
)
from tests.spark.pipeline.lakes import gold, ids, read
from tests.spark.rings import TOPIC, Ring, running_ring
from tests.support.processes import MARK, left_of
from tests.support.spark_session import FEW_ROWS

WAIT_S = 240.0  # a machine may be busy
PUBLISHED_MAX = 10_000  # within half an hour; every run needs something new
BAD = b"\xff\xfe"
CONF = {
    "spark.sql.shuffle.partitions": "1",
    **FEW_ROWS,
}

Condition = Callable[["Run"], bool]


class Run:
    """Process of ``skipring pipeline run``, which ends with its block."""

    def __init__(self, ring: Ring, lake: Path, mark: str, *options: str) -> None:
        settings = [f"--conf={name}={value}" for name, value in CONF.items()]
        words = ["--supervisor", ring.supervisor, "--subscribe", TOPIC, "--lake", str(lake)]
        self.lake = lake
        self._out = lake.parent / f"out-{time_ns()}"
        command = [sys.executable, "-m", "skipring", "pipeline", "run", *words, "--json"]
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, "--master", "local[2]", "--window", "1s", *settings, *options],
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


def has_new(lake: Path, name: Name) -> Condition:
    """Return a condition: a table has a part that it does not have now."""
    before = set((lake / name).glob("*"))
    return lambda _: bool(set((lake / name).glob("*")) - before)


def has_told(run: Run) -> bool:
    return bool(run.lines)


@contextmanager
def publishing(ring: Ring) -> Iterator[list[bytes]]:
    """Publish at all nodes during the block; yield the ids of the publications."""
    published: list[bytes] = []
    is_over = asyncio.Event()

    async def publish() -> None:
        while not is_over.is_set() and len(published) < PUBLISHED_MAX:
            number = len(published)
            value = BAD if number % 10 == 9 else json.dumps({"number": number}).encode()
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


def kill_and_interrupt(ring: Ring, lake: Path, mark: str, kills: int) -> tuple[list[bytes], Run]:
    """Kill a pipeline at several moments, then interrupt it; return ids and the last run."""
    moments = [Name.BRONZE, None, Name.SILVER, Name.REJECTED, Name.DELIVERIES]
    following = ("--trigger", "100ms", "--max-offsets", "50")
    with publishing(ring) as published:
        for number in range(kills):
            moment = moments[number % len(moments)]
            is_due = has_told if moment is None else has_new(lake, moment)
            with Run(ring, lake, mark, *following) as run:
                run.wait_until(is_due)  # leaving the block kills the driver
        with Run(ring, lake, mark, *following) as run:
            run.wait_until(has_told)
            run.wait_until(has_new(lake, Name.BRONZE))  # during a batch
            os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does
            run.status()
    ring.wait_durable()
    return published, run


def drain(spark: SparkSession, ring: Ring, lake: Path) -> dict[str, Any]:
    """Run the pipeline in this process until it has read everything; return the last progress."""
    supervisors = (ring.supervisor,)
    requested = RequestedConfig(supervisors=supervisors, topics=(TOPIC,), window_s=1)
    plan = PipelinePlan(
        access=Access(supervisors=supervisors),
        lake=lake,
        about=agreed(lake, requested),
        starting="earliest",
        trigger_s=None,
    )
    progress: list[PipelineProgress] = []
    run_pipeline(spark, plan, progress.append, Event())
    last: dict[str, Any] = json.loads(as_json(progress[-1]))
    return last


def check_once(lake: Path, published: list[bytes]) -> None:
    assert ids(lake, Name.BRONZE) == sorted(published)
    bad = ids(lake, Name.REJECTED)
    assert sorted(ids(lake, Name.SILVER) + bad) == sorted(published)
    assert bad == sorted(published[9::10])
    figures = gold(lake).values()
    assert sum(row["publications"] for row in figures) == len(published)
    assert sum(row["deliveries"] for row in figures) == 3 * len(published)
    deliveries = Counter((row["node"], row["id"]) for row in read(lake, Name.DELIVERIES))
    assert set(deliveries.values()) == {1}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kills", "in_process"), [(1, True), pytest.param(10, False, marks=pytest.mark.slow)]
)
def test_pipeline_that_was_killed_interrupted_and_drained_has_every_publication_once(
    request: pytest.FixtureRequest, tmp_path: Path, kills: int, in_process: bool
) -> None:
    lake, mark = tmp_path / "lake", f"pipeline-{time_ns()}"
    with running_ring(4, tmp_path / "ring") as ring:  # one scene: it needs several JVMs
        published, interrupted = kill_and_interrupt(ring, lake, mark, kills)
        assert left_of(mark) == []
        if in_process:
            last = drain(request.getfixturevalue("spark"), ring, lake)
        else:
            with Run(ring, lake, mark, "--available-now") as drained:
                assert drained.status() == 0, drained.text
            last = drained.lines[-1]
            assert left_of(mark) == []
    assert interrupted.process.returncode == 130
    lines = interrupted.text.splitlines()
    assert [line for line in lines if not line.startswith("{")] == []  # no output of Java
    assert last["behind"] in (0, None)  # None: the last batch was interrupted and ran again
    assert last["totals"]["bronze"] == len(published)
    check_once(lake, published)
