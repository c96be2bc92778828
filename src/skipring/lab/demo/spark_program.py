"""Spark program of the demo: starts Spark, waits for its task on stdin, runs the pipeline.

Spark needs seconds of CPU time to start, so the process has a lower priority than the ring. Its
input and output are those of ``spark_step``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from queue import Queue
from tempfile import gettempdir
from threading import Event, Thread
from typing import Final

from msgspec import json

from skipring.errors import SkipringError
from skipring.lab.demo.spark_step import SparkReport, SparkTask
from skipring.spark import session
from skipring.spark.options import ReadOptions
from skipring.spark.pipeline.manifest import RequestedConfig, agreed
from skipring.spark.pipeline.report import write_report
from skipring.spark.pipeline.runner import PipelinePlan, PipelineProgress, rooted, run_pipeline

NICENESS: Final = 2  # Guess: the ring goes first, and Spark still gets its share.
MASTER: Final = "local[2]"
WINDOW_S: Final = 1  # the demo is short

# Measured: with few rows, planning and compiling queries takes longer than running them.
CONF: Final = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


def main() -> None:
    """Start Spark, then do the task; report an error as a sentence."""
    os.nice(NICENESS)
    tasks: Queue[SparkTask] = Queue()
    Thread(target=_read_stdin, args=(tasks,), daemon=True).start()
    try:
        _work(tasks)
    except SkipringError as error:
        _write(SparkReport(failed=str(error)))


def _read_stdin(tasks: Queue[SparkTask]) -> None:
    """Read the task, then wait for the end of stdin: the demo has ended."""
    for line in sys.stdin.buffer:
        tasks.put(json.decode(line, type=SparkTask))
    os.killpg(0, signal.SIGKILL)  # the JVM too


def _work(tasks: Queue[SparkTask]) -> None:
    with session.opened(master=MASTER, conf=_conf(), app="skipring demo") as spark:
        _write(SparkReport(is_ready=True))
        task = tasks.get()
        plan = rooted(_plan(task))
        rows = run_pipeline(spark, plan, _write_progress, Event())
        write_report(spark, plan.lake, plan.about, Path(task.report))
        _write(SparkReport(rows={str(name): count for name, count in rows.items()}))


def _plan(task: SparkTask) -> PipelinePlan:
    given = {"supervisor": task.supervisor, "subscribe": task.topic}
    read = ReadOptions.parse(given, is_stream=True)
    lake = Path(task.lake)
    config = RequestedConfig(supervisors=(task.supervisor,), topics=read.topics, window_s=WINDOW_S)
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


def _conf() -> dict[str, str]:
    """Return the settings of Spark; all its files are in the directory of the demo."""
    scratch = gettempdir()
    options = f"{JAVA_OPTIONS} -Djava.io.tmpdir={scratch}"
    return {**CONF, "spark.driver.extraJavaOptions": options, "spark.local.dir": scratch}


def _write(report: SparkReport) -> None:
    sys.stdout.buffer.write(json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
