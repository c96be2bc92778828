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
from skipring.spark import session
from skipring.spark.options import ReadOptions
from skipring.spark.pipeline.manifest import RequestedConfig, agreed
from skipring.spark.pipeline.report import write_report
from skipring.spark.pipeline.runner import PipelinePlan, PipelineProgress, rooted, run_pipeline
from skipring.wire.rpc import Address

NICENESS: Final = 2  # Guess: the ring has priority, and Spark still gets its share.
MASTER: Final = "local[2]"
WINDOW_S: Final = 1  # the demo is short
POLL_S: Final = 0.1

# Measured: with few rows, planning and compiling queries takes longer than running them.
CONF: Final = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


def main(supervisor: Address, topic: TopicId, directory: Path, report: Path) -> None:
    """Start Spark, then run the pipeline; report an error as a sentence."""
    os.nice(NICENESS)
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
    try:
        with session.opened(master=MASTER, conf=_conf(directory), app="skipring demo") as spark:
            while not (directory / BEGIN_FILE).exists():
                sleep(POLL_S)
            plan = rooted(_plan(supervisor, topic, directory / "lake"))
            rows = run_pipeline(spark, plan, _write_progress, Event())
            write_report(spark, plan.lake, plan.about, report)
            _write(SparkReport(rows={str(name): count for name, count in rows.items()}))
    except SkipringError as error:
        _write(SparkReport(failed=str(error)))


def _plan(supervisor: Address, topic: TopicId, lake: Path) -> PipelinePlan:
    given = {"supervisor": supervisor, "subscribe": topic}
    read = ReadOptions.parse(given, is_stream=True)
    config = RequestedConfig(supervisors=(supervisor,), topics=read.topics, window_s=WINDOW_S)
    return PipelinePlan(
        access=read.access,
        lake=lake,
        about=agreed(lake, config),
        starting="earliest",
        trigger_s=None,
    )


def _write_progress(progress: PipelineProgress) -> None:
    new = progress.figures
    read = f"{new.bronze} publications and {new.deliveries} deliveries read"
    _write(SparkReport(progress=f"{read}, {new.windows} windows"))


def _conf(directory: Path) -> dict[str, str]:
    """Return the settings of Spark; all its files are in the directory of the demo."""
    options = f"{JAVA_OPTIONS} -Djava.io.tmpdir={directory}"
    return {**CONF, "spark.driver.extraJavaOptions": options, "spark.local.dir": str(directory)}


def _write(report: SparkReport) -> None:
    sys.stdout.buffer.write(json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
