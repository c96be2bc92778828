"""Standalone cluster: tasks run the code that was sent, and no process remains."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyspark
import pytest

from skipring.spark.session.java import find_java, make_java_home
from tests.spark.rings import TOPIC, running_ring
from tests.support.processes import ENDED_WITHIN_S, MARK, QUICK_JVM, left_of

pytestmark = [pytest.mark.heavy, pytest.mark.slow]

STARTED_WITHIN_S = 120.0
DRIVER_ENDED_WITHIN_S = 900.0  # a machine may be busy

HOME = Path(pyspark.__file__).parent
NOT_LINKED = r"(skipring|pyspark_skipring)([-.].*)?|.*\.pth|__pycache__"


@dataclass(frozen=True)
class Standalone:
    """Running cluster: a Master and a Worker, each in its own JVM."""

    url: str
    directory: Path
    mark: str
    python: Path  # of the executors: has the dependencies of skipring, not skipring itself

    def run_driver(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program as a driver of the cluster, whose URL is its first argument."""
        return subprocess.run(
            [sys.executable, "-c", script, self.url, *arguments],
            cwd=self.directory,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.directory),
                "PYSPARK_PYTHON": str(self.python),
                MARK: self.mark,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DRIVER_ENDED_WITHIN_S,
            check=False,
        )


@contextmanager
def standalone(directory: Path, *, cores: int = 1, memory: str = "1g") -> Iterator[Standalone]:
    """Run a Master and a Worker during the block."""
    mark = str(directory)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "JAVA_HOME": str(make_java_home(find_java(os.environ), directory)),
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        MARK: mark,
    }
    at = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    offered = ("--cores", str(cores), "--memory", memory, "--work-dir", str(directory / "work"))
    with ExitStack() as stack:
        master = stack.enter_context(_daemon("master.Master", at, directory, environment))
        url = master.said(r"Starting Spark master at (spark://\S+)")
        worker = _daemon("worker.Worker", (*at, *offered, url), directory, environment)
        stack.enter_context(worker).said(r"Successfully registered with master (\S+)")
        yield Standalone(url, directory, mark, bare_python(directory / "bare"))


def bare_python(directory: Path, *, without: str = "") -> Path:
    """Return a Python with the installed libraries but without skipring.

    ``-S`` omits site-packages, and with it the .pth file of an editable installation. The Python
    gets a directory of links to all packages except skipring instead.
    """
    links = directory / "site-packages"
    links.mkdir(parents=True)
    for entry in Path(msgspec.__file__).parent.parent.iterdir():
        if not re.fullmatch(NOT_LINKED, entry.name) and entry.name != without:
            (links / entry.name).symlink_to(entry)
    script = directory / "python"
    script.write_text(
        "#!/bin/sh\n"
        f'PYTHONPATH="$PYTHONPATH":{shlex.quote(str(links))} '
        f'exec {shlex.quote(sys.executable)} -S "$@"\n'
    )
    script.chmod(0o700)
    return script


@dataclass(frozen=True)
class _Daemon:
    process: subprocess.Popen[bytes]
    log: Path

    def said(self, pattern: str) -> str:
        """Return a group of the first line of the log that matches; wait for it."""
        deadline = time.monotonic() + STARTED_WITHIN_S
        while (found := re.search(pattern, self.log.read_text())) is None:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        return found[1]


@contextmanager
def _daemon(
    name: str, arguments: tuple[str, ...], directory: Path, environment: dict[str, str]
) -> Iterator[_Daemon]:
    """Run a daemon of Spark during the block; end it and its child processes afterwards."""
    log = directory / f"{name}.log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            (HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *arguments),
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )
    try:
        yield _Daemon(process, log)
    finally:
        process.terminate()  # a Worker then ends its executors
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDED_WITHIN_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


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
    context.pythonExec = OTHER  # another Python, so that no process has the code yet
    context._python_includes = []  # the code is not sent any more
    print(refusal(spark))
    busy = InheritableThread(target=occupy, args=(context,))
    busy.start()
    while not context.statusTracker().getActiveStageIds():
        time.sleep(0.05)
    shipping.EXECUTOR_WAIT_S = 1.0
    print(refusal(spark))
busy.join()
"""


def test_executors_run_the_code_that_was_sent_to_them(tmp_path: Path) -> None:
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
