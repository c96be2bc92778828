"""The Spark part of the demo, run as a program: it starts early, waits for its task, and reports.

Starting Spark takes seconds of work, which are not to be missing where the ring heals: so it is a
process of its own that gives way to all others. ``analysis`` says what it reads and writes.
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
from skipring.lab.demo.analysis import Task, Told
from skipring.spark import session
from skipring.spark.options import ReadOptions
from skipring.spark.pipeline.manifest import RequestedConfig, agreed
from skipring.spark.pipeline.report import write_report
from skipring.spark.pipeline.runner import PipelinePlan, PipelineProgress, rooted, run_pipeline

NICENESS: Final = 2  # Our guess: whoever heals goes first, and Spark still gets its share.
MASTER: Final = "local[2]"
WINDOW_S: Final = 1  # the story is short

# Measured: for few rows, making plans and compiling them takes longer than running them.
CONF: Final = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


def main() -> None:
    """Start Spark, then do the task; what goes wrong is told in a sentence."""
    os.nice(NICENESS)
    tasks: Queue[Task] = Queue()
    Thread(target=_listen, args=(tasks,), daemon=True).start()
    try:
        _work(tasks)
    except SkipringError as error:
        _tell(Told(failed=str(error)))


def _listen(tasks: Queue[Task]) -> None:
    """Take the task, and wait for the end of stdin: then nobody is there whom we work for."""
    for line in sys.stdin.buffer:
        tasks.put(json.decode(line, type=Task))
    os.killpg(0, signal.SIGKILL)  # the JVM too


def _work(tasks: Queue[Task]) -> None:
    with session.opened(master=MASTER, conf=_conf(), app="skipring demo") as spark:
        _tell(Told(is_ready=True))
        task = tasks.get()
        plan = rooted(_plan(task))
        rows = run_pipeline(spark, plan, _tell_progress, Event())
        write_report(spark, plan.lake, plan.about, Path(task.report))
        _tell(Told(rows={str(name): count for name, count in rows.items()}))


def _conf() -> dict[str, str]:
    """All that Spark writes for itself goes where the demo clears away."""
    scratch = gettempdir()
    options = f"{JAVA_OPTIONS} -Djava.io.tmpdir={scratch}"
    return {**CONF, "spark.driver.extraJavaOptions": options, "spark.local.dir": scratch}


def _plan(task: Task) -> PipelinePlan:
    given = {"supervisor": task.supervisor, "subscribe": task.topic}
    read = ReadOptions.parse(given, is_stream=True)
    lake = Path(task.lake)
    wish = RequestedConfig(supervisors=(task.supervisor,), topics=read.topics, window_s=WINDOW_S)
    return PipelinePlan(
        access=read.access,
        lake=lake,
        about=agreed(lake, wish),
        starting="earliest",
        trigger_s=None,
    )


def _tell_progress(progress: PipelineProgress) -> None:
    new = progress.figures
    text = f"{new.bronze} publications and {new.deliveries} deliveries read, {new.windows} windows"
    _tell(Told(progress=text))


def _tell(told: Told) -> None:
    sys.stdout.buffer.write(json.encode(told) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
