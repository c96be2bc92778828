"""A real standalone cluster on loopback: a Master and a Worker, each a JVM of its own.

Executors run a Python that has the libraries we use and not our own code, so that a job runs only
if the code was sent along; ``bare_python`` says how.
"""

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

from skipring.spark.session.java import find_java, make_java_home
from tests.support.processes import ENDED_WITHIN_S, MARK, QUICK_JVM

STARTED_WITHIN_S = 60.0
DRIVER_ENDED_WITHIN_S = 180.0

HOME = Path(pyspark.__file__).parent
NOT_LINKED = r"(skipring|pyspark_skipring)([-.].*)?|.*\.pth|__pycache__"


@dataclass(frozen=True)
class Standalone:
    """A cluster that runs."""

    url: str
    directory: Path
    mark: str
    python: Path  # for executors: has what we need, and not us

    def run_driver(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program as the driver of a job here; the cluster's URL is its first argument."""
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
    """A Master and a Worker, which have ended at the end."""
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
    """A Python with the installed libraries except our own code, however that is installed.

    ``-S`` leaves out site-packages, and with it the .pth file of an editable installation. Instead
    the Python gets a directory of links to all that is there, but not to us.
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
        """What a line of the log says, as soon as it is there."""
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
    """A JVM with one of Spark's daemons; it and what it started have ended at the end."""
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
