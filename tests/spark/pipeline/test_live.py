"""A pipeline on a live ring: killed with kill -9 while publishing goes on, interrupted, drained."""

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
from time import monotonic, sleep, time_ns
from typing import Any, NamedTuple

import pytest

from skipring.core.events import PublishRequested
from skipring.spark.pipeline.lake import Name
from tests.spark.pipeline.lakes import gold, ids, read, settle_on_disks
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
    """A process of ``skipring pipeline run``, which ends with its block."""

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
        """Wait for a condition; it must not end before."""
        deadline = monotonic() + WAIT_S
        while not is_so(self):
            assert self.process.poll() is None, self.text
            assert monotonic() < deadline, self.text
            sleep(0.005)

    def status(self) -> int:
        return self.process.wait(WAIT_S)


def has_new(lake: Path, name: Name) -> Condition:
    """True once a table has something that it does not have now."""
    before = set((lake / name).glob("*"))
    return lambda _: bool(set((lake / name).glob("*")) - before)


def has_told(run: Run) -> bool:
    return bool(run.lines)


@contextmanager
def publishing(ring: Ring) -> Iterator[list[bytes]]:
    """Publish all the time, at all nodes; the ids of what was published."""
    published: list[bytes] = []
    is_over = asyncio.Event()

    async def publish() -> None:
        while not is_over.is_set() and len(published) < PUBLISHED_MAX:
            number = len(published)
            value = BAD if number % 10 == 9 else json.dumps({"number": number}).encode()
            given = PublishRequested(payload=value, time=time_ns() // 1000)
            node = ring.cluster.node(f"n0{number % 4}")
            published.extend(await node.publish(TOPIC, given))
            await asyncio.sleep(0.2)

    work = ring.begin(publish())
    try:
        yield published
    finally:
        ring.call(is_over.set)
        work.result(WAIT_S)


class Story(NamedTuple):
    """What has happened to a lake."""

    lake: Path
    published: list[bytes]
    interrupted: Run
    drained: Run
    left: list[str]


def tell(ring: Ring, folder: Path, kills: int) -> Story:
    """Kill a pipeline at several moments, then interrupt it, then let it take the rest."""
    lake, mark = folder / "lake", f"pipeline-{time_ns()}"
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
            run.wait_until(has_new(lake, Name.BRONZE))  # in the middle of a batch
            os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does
            run.status()
            interrupted = run
    ring.settle()
    settle_on_disks(ring, len(published))
    with Run(ring, lake, mark, "--available-now") as drained:
        drained.status()
    return Story(lake, published, interrupted, drained, left_of(mark))


def check_once(story: Story) -> None:
    expected = sorted(story.published)
    good, bad = ids(story.lake, Name.SILVER), ids(story.lake, Name.REJECTED)
    assert ids(story.lake, Name.BRONZE) == expected
    assert sorted(good + bad) == expected
    assert bad == sorted(story.published[9::10])


def check_gold_counts_everything_once(story: Story) -> None:
    figures = gold(story.lake).values()
    assert sum(row["publications"] for row in figures) == len(story.published)
    assert sum(row["deliveries"] for row in figures) == 3 * len(story.published)
    told = Counter((row["node"], row["id"]) for row in read(story.lake, Name.DELIVERIES))
    assert set(told.values()) == {1}


def check_the_last_run_took_what_was_there_and_ended(story: Story) -> None:
    assert story.drained.process.returncode == 0, story.drained.text
    last = story.drained.lines[-1]
    assert last["behind"] in (0, None)  # None: the batch that was interrupted was the last one
    assert last["totals"]["bronze"] == len(story.published)


def check_the_interrupted_run_ended_in_order_and_nothing_is_left(story: Story) -> None:
    assert story.interrupted.process.returncode == 130
    lines = story.interrupted.text.splitlines()
    assert [line for line in lines if not line.startswith("{")] == []  # nothing of Java's
    assert story.left == []


@pytest.mark.heavy
@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_with_kill_9_interrupted_and_drained_every_publication_is_there_once(
    tmp_path: Path, kills: int
) -> None:
    with running_ring(4, tmp_path / "ring") as ring:  # told once: it takes several JVMs
        story = tell(ring, tmp_path, kills)
    check_once(story)
    check_gold_counts_everything_once(story)
    check_the_last_run_took_what_was_there_and_ended(story)
    check_the_interrupted_run_ended_in_order_and_nothing_is_left(story)
