"""Spark program of the demo: starts Spark, waits for the signal to begin, runs the pipeline.

Arguments: address of the supervisor, topic, directory of all its files, file of the report. It
prints reports of ``spark_step``, one JSON value per line. Spark needs seconds of CPU time to start,
so the process has a lower priority than the ring.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from threading import Event
from time import sleep
from typing import Final

from msgspec import json

from skipring.core.peers import TopicId
from skipring.errors import SkipringError
from skipring.lab.demo.spark_step import BEGIN_FILE, SparkReport
from skipring.net.access import Access
from skipring.spark import session
from skipring.spark.pipeline.progress import PipelineProgress
from skipring.spark.pipeline.project import read_project, write_template
from skipring.spark.pipeline.report import CONF, write_report
from skipring.spark.pipeline.runner import PipelineRun, rooted, run_pipeline
from skipring.wire.rpc import Address

NICENESS: Final = 2  # Guess: the ring has priority, and Spark still gets its share.
MASTER: Final = "local[2]"
POLL_S: Final = 0.1
TEMPLATE: Final = "telemetry"
PROJECT: Final = "project"

JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


def main(supervisor: Address, topic: TopicId, directory: Path, report: Path) -> None:
    """Start Spark, then run the pipeline; report an error as a sentence."""
    os.nice(NICENESS)
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
    try:
        with session.opened(master=MASTER, conf=_conf(directory), app="skipring demo") as spark:
            while not (directory / BEGIN_FILE).exists():
                sleep(POLL_S)
            write_template(TEMPLATE, directory / PROJECT, (topic,))
            project = read_project(directory / PROJECT)
            access = Access(supervisors=(supervisor,))
            run = rooted(PipelineRun(project=project, access=access, is_once=True))
            rows = run_pipeline(spark, run, _write_progress, Event())
            write_report(spark, project, report)
            _write(SparkReport(rows=rows))
    except SkipringError as error:
        _write(SparkReport(failed=str(error)))


def _write_progress(progress: PipelineProgress) -> None:
    rows = progress.figures.rows
    arrived = rows.get("deliveries", 0)
    _write(SparkReport(progress=f"{progress.read} publications and {arrived} deliveries read"))


def _conf(directory: Path) -> dict[str, str]:
    """Return the settings of Spark; all its files are in the directory of the demo."""
    options = f"{JAVA_OPTIONS} -Djava.io.tmpdir={directory}"
    return {
        **CONF,
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": options,
        "spark.local.dir": str(directory),
    }


def _write(report: SparkReport) -> None:
    sys.stdout.buffer.write(json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
