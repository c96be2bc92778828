"""Pipeline on a standalone cluster: executors in other processes write the tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.test_spark_standalone import standalone
from tests.spark.pipeline.lakes import ids, read, write_project
from tests.spark.rings import running_ring
from tests.support.processes import QUICK_JVM, left_of

pytestmark = [pytest.mark.heavy, pytest.mark.slow]

DRIVER = """
import sys
from pathlib import Path
from threading import Event
from skipring.net.access import Access
from skipring.spark import session
from skipring.spark.pipeline.project import read_project
from skipring.spark.pipeline.runner import PipelineRun, optimize_lake, rooted, run_pipeline

MASTER, QUICK, SUPERVISOR, PROJECT = sys.argv[1:]
CONF = {
    "spark.driver.extraJavaOptions": QUICK,
    "spark.driver.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "1",
}
project = read_project(Path(PROJECT))
run = PipelineRun(project=project, access=Access(supervisors=(SUPERVISOR,)), is_once=True)
with session.opened(master=MASTER, conf=CONF) as spark:
    print(run_pipeline(spark, rooted(run), lambda progress: None, Event()))
    print(optimize_lake(spark, project))
"""
SCHEMA = '[columns]\nnumber = "bigint"\ntwice = { type = "bigint", sql = "twice(number)" }\n'


def test_executors_write_the_tables_of_a_project(tmp_path: Path) -> None:
    project = write_project(
        tmp_path / "project",
        schema=SCHEMA,
        gold={"sums": "SELECT window_start, sum(twice) AS n FROM silver GROUP BY window_start"},
    )
    (project / "functions.py").write_text("def twice(x: int) -> int:\n    return 2 * x\n")
    (tmp_path / "cluster").mkdir()
    with standalone(tmp_path / "cluster") as cluster, running_ring(2, tmp_path / "ring") as ring:
        ring.publish(b'{"number": %d}' % number for number in range(50))
        ring.wait_durable()
        ran = cluster.run_driver(DRIVER, QUICK_JVM, ring.supervisor, str(project))
    assert left_of(cluster.mark) == []
    assert (ran.stderr, ran.returncode) == ("", 0)
    assert ran.stdout.splitlines() == ["{'bronze': 50, 'silver': 50, 'quarantine': 0}", "(0, [])"]
    assert len(set(ids(project / "lake", "silver"))) == 50
    assert sum(row["n"] for row in read(project / "lake", "sums")) == 50 * 49
