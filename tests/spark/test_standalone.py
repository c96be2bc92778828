"""A real cluster: what runs there was sent there, and nothing is left behind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.spark.rings import TOPIC, running_ring
from tests.spark.standalone import bare_python, standalone
from tests.support.processes import QUICK_JVM, left_of

pytestmark = [pytest.mark.heavy, pytest.mark.slow]

DRIVER = """
import sys, time
from contextlib import suppress
from pyspark import InheritableThread
from skipring.errors import SkipringError
from skipring.spark import register
from skipring.spark.session import builder as session
from skipring.spark.session import executors as shipping

MASTER, QUICK, SUPERVISOR, TOPIC, DIRECTORY, LACKING, OTHER = sys.argv[1:]
SMALL = {
    "spark.driver.extraJavaOptions": QUICK,
    "spark.driver.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "1",
}

def place(_):
    from importlib.metadata import version
    import skipring.core.labels
    return version("skipring"), skipring.core.labels.__file__

def use_topics(spark):
    where = {"supervisor": SUPERVISOR}
    rows = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("skipring").options(**where, topic=TOPIC).mode("append").save()
    table = spark.read.format("skipring").options(**where, subscribe=TOPIC).load()
    print("read", table.count(), table.select("id").distinct().count())
    stream = spark.readStream.format("skipring").options(**where, subscribe=TOPIC)
    writer = stream.option("startingOffsets", "earliest").load().writeStream.format("parquet")
    writer = writer.option("checkpointLocation", DIRECTORY + "/checkpoint")
    writer.trigger(availableNow=True).start(DIRECTORY + "/table").awaitTermination()
    print("streamed", spark.read.parquet(DIRECTORY + "/table").count())

def refusal(spark):
    try:
        shipping.check_executors(spark)
    except SkipringError as error:
        return error

def occupy(context):
    with suppress(Exception):  # the session's end
        context.range(1).foreach(lambda _: time.sleep(600))

with session.opened(master=MASTER, conf=SMALL) as spark:
    register(spark)
    context = spark.sparkContext
    print(*context.range(1).map(place).first())
    use_topics(spark)
    context.pythonExec = LACKING
    print(refusal(spark))
    context.pythonExec = OTHER  # new, so that no process has our code from before
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


def test_on_a_cluster_topics_are_used_by_our_code_because_it_was_sent_there(
    tmp_path: Path,
) -> None:
    lacking = bare_python(tmp_path / "less", without="msgspec")
    other = bare_python(tmp_path / "other")
    (tmp_path / "cluster").mkdir()
    with standalone(tmp_path / "cluster") as cluster, running_ring(2, tmp_path / "ring") as ring:
        ring.publish(b"%d" % number for number in range(50))
        ring.wait_in_sync()
        words = [ring.supervisor, TOPIC, str(tmp_path), str(lacking), str(other)]
        ran = cluster.run_driver(DRIVER, QUICK_JVM, *words)
    assert left_of(cluster.mark) == []
    assert (ran.stderr, ran.returncode) == ("", 0)
    place, read, streamed, lacks, not_sent, late = ran.stdout.splitlines()
    assert re.fullmatch(r"[0-9.]+ \S*/skipring-\w+\.zip/skipring/core/labels\.py", place)
    assert (read, streamed) == ("read 150 150", "streamed 150")
    assert lacks.startswith("the executors' Python lacks msgspec; install 'skipring[spark]' there")
    assert "No module named 'skipring'" in not_sent
    assert "spark.archives" in not_sent
    assert late.startswith("no executor has run a task within 1 s; check on the page of the master")
