"""A real cluster: what runs there was sent there, and nothing is left behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.processes import left_of
from tests.spark.rings import TOPIC, running_ring
from tests.spark.standalone import Standalone, bare_python, standalone

pytestmark = pytest.mark.heavy

DRIVER = """
import sys, time
from contextlib import suppress
from pyspark import InheritableThread
from skipring.errors import SkipringError
from skipring.spark import session, shipping

SMALL = {"spark.executor.memory": "512m", "spark.driver.memory": "512m"}

def place(_):
    from importlib.metadata import version
    import skipring.core.labels
    return version("skipring"), skipring.core.labels.__file__

def refusal(spark):
    try:
        shipping.check_executors(spark)
    except SkipringError as error:
        return error

def occupy(context):
    with suppress(Exception):  # the session's end
        context.range(1).foreach(lambda _: time.sleep(600))

with session.opened(master=sys.argv[1], conf=SMALL) as spark:
    context = spark.sparkContext
    print(*context.range(1).map(place).first())
    context.pythonExec = sys.argv[2]  # lacks something
    print(refusal(spark))
    context.pythonExec = sys.argv[3]  # new, so that no process has our code from before
    context._python_includes = []  # nothing is sent any more
    print(refusal(spark))
    busy = InheritableThread(target=occupy, args=(context,))
    busy.start()
    while not context.statusTracker().getActiveStageIds():
        time.sleep(0.05)
    shipping.EXECUTOR_WAIT_S = 1.0
    print(refusal(spark))
busy.join()
"""


TOPICS = """
import sys
from skipring.spark import register, session

MASTER, SUPERVISOR, TOPIC, DIRECTORY = sys.argv[1:]
SMALL = {"spark.executor.memory": "512m", "spark.driver.memory": "512m"}
PLACE = {"supervisor": SUPERVISOR}

with session.opened(master=MASTER, conf=SMALL) as spark:
    register(spark)
    rows = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("skipring").options(**PLACE, topic=TOPIC).mode("append").save()
    table = spark.read.format("skipring").options(**PLACE, subscribe=TOPIC).load()
    print("read", table.count(), table.select("id").distinct().count())
    stream = spark.readStream.format("skipring").options(**PLACE, subscribe=TOPIC)
    writer = stream.option("startingOffsets", "earliest").load().writeStream.format("parquet")
    writer = writer.option("checkpointLocation", DIRECTORY + "/checkpoint")
    writer.trigger(availableNow=True).start(DIRECTORY + "/table").awaitTermination()
    print("streamed", spark.read.parquet(DIRECTORY + "/table").count())
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("standalone")) as running:
        yield running
    assert left_of(running.mark) == []


def test_our_code_runs_on_a_cluster_because_it_was_sent_there(
    cluster: Standalone, tmp_path: Path
) -> None:
    without_msgspec = bare_python(tmp_path / "less", without="msgspec")
    ran = cluster.run_driver(DRIVER, str(without_msgspec), str(bare_python(tmp_path / "other")))
    assert (ran.stderr, ran.returncode) == ("", 0)
    place, lacking, not_sent, late = ran.stdout.splitlines()
    assert re.fullmatch(r"[0-9.]+ \S*/skipring-\w+\.zip/skipring/core/labels\.py", place)
    assert lacking.startswith(
        "the executors' Python lacks msgspec; install 'skipring[spark]' there"
    )
    assert "No module named 'skipring'" in not_sent
    assert "spark.archives" in not_sent
    assert late.startswith("no executor has done a task within 1 s; see on the master's page")


def test_topics_are_read_followed_and_written_on_a_cluster(
    cluster: Standalone, tmp_path: Path
) -> None:
    with running_ring(2, tmp_path / "ring") as ring:
        ring.publish(b"%d" % number for number in range(50))
        ring.settle()
        ran = cluster.run_driver(TOPICS, ring.supervisor, TOPIC, str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["read 150 150", "streamed 150"]
