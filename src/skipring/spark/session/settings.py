"""Default settings of a session, and the forms of Spark masters."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import sys
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

import pyspark
from pyspark import SparkConf, SparkContext

from skipring.errors import InputError, UnreachableError
from skipring.spark.session.java import find_java, make_java_home

REACH_WAIT_S: Final = 5.0  # Guess; Spark tries for a minute, and its error does not help

_LOCAL: Final = re.compile(r"local(?:\[(?P<cores>\*|\d+)(?:,\s*\d+)?\])?")
_LOCAL_MASTER: Final = re.compile(
    r"local|local-cluster\[.+\]|local\[.+\]|spark://(localhost|127(\.\d+){3}|\[::1\]):\d+"
)
_PORT: Final = re.compile(r"[0-9]{1,5}")
_PORT_MAX: Final = 0xFFFF
_STANDALONE: Final = "spark://"
_KINDS: Final = (_STANDALONE, "yarn", "k8s://", "local[", "local-cluster[")


def is_local(master: str) -> bool:
    """Return True if the driver's process does all the work."""
    return _LOCAL.fullmatch(master) is not None


def is_on_this_machine(master: str) -> bool:
    """Return True if no other machine needs to reach the driver."""
    return _LOCAL_MASTER.fullmatch(master) is not None


def local_cores(master: str) -> int:
    """Return the number of tasks that a local master runs at the same time."""
    local = _LOCAL.fullmatch(master)
    assert local is not None, master
    if local["cores"] == "*":
        return os.cpu_count() or 1
    return int(local["cores"] or 1)


def require_usable(master: str) -> None:
    """Raise an error with a remedy if a master is invalid or does not answer."""
    if master != "local" and not master.startswith(_KINDS):
        raise InputError(
            f"no Spark master: {master!r}; give local[2], local[*], spark://HOST:PORT, yarn or "
            "k8s://https://HOST:PORT"
        )
    if master.startswith(_STANDALONE):
        addresses = [_address(text, master) for text in master[len(_STANDALONE) :].split(",")]
        if not any(_answers(host, port) for host, port in addresses):
            raise UnreachableError(
                f"no Spark master answers at {master}; see that it runs (its page says its URL), "
                "or leave out the master to use this machine"
            )


def _address(text: str, master: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not _PORT.fullmatch(port) or int(port) > _PORT_MAX:
        raise InputError(f"no Spark master: {master!r}; its form is spark://HOST:PORT[,HOST:PORT]")
    return host.strip("[]"), int(port)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), REACH_WAIT_S).close()
    except OSError:
        return False
    return True


MASTER: Final = "local[*]"
LOOPBACK: Final = "127.0.0.1"

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, which has started a JVM
_LINE: Final = re.compile(r"\s*([^#!\s=:]+)\s*[\s=:]\s*(.*?)\s*")  # of a Java properties file
_EVERYWHERE: Final[Mapping[str, str]] = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",  # commands have their own progress bar
}
_LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    "spark.driver.memory": "2g",  # Guess: in local mode the driver does all the work
    "spark.sql.catalogImplementation": "in-memory",  # the alternative leaves a metastore_db behind
    "spark.ui.enabled": "false",
}


def given_settings() -> dict[str, str]:
    """Return the settings of spark-submit, or of ``spark-defaults.conf``."""
    if _SUBMITTED in os.environ:
        SparkContext._ensure_initialized()  # noqa: SLF001  (a SparkConf is empty before)
        return dict(SparkConf().getAll())
    try:
        lines = (_conf_dir() / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {found[1]: found[2] for line in lines if (found := _LINE.fullmatch(line))}


def chosen_master(conf: Mapping[str, str], given: Mapping[str, str]) -> str:
    """Return the master if the caller gives none."""
    settings = {**given, **conf}
    return settings.get("spark.master") or os.environ.get("MASTER") or MASTER


def default_settings(master: str) -> dict[str, str]:
    """Return the default settings for a master."""
    chosen = dict(_EVERYWHERE)
    if is_on_this_machine(master):
        chosen |= _LOCAL_SETTINGS
        chosen["spark.sql.warehouse.dir"] = str(scratch() / "warehouse")
    if is_local(master):
        chosen["spark.sql.shuffle.partitions"] = str(local_cores(master))
    return chosen


def variables(master: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables to change while Spark starts."""
    chosen = {"PYSPARK_DRIVER_PYTHON": sys.executable, **_python(master, settings)}
    if _SUBMITTED not in os.environ:
        chosen["JAVA_HOME"] = str(make_java_home(find_java(os.environ), scratch()))
    if not (_conf_dir() / "log4j2.properties").exists():
        ours = str(files("skipring.spark") / "log4j2.properties")
        chosen["LOG4J_CONFIGURATION_FILE"] = os.environ.get("LOG4J_CONFIGURATION_FILE", ours)
    if is_on_this_machine(master):
        chosen["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", LOOPBACK)
    return chosen


def _python(master: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the Python of the tasks; on a cluster, a Python that the user chose comes first."""
    named = settings.get("spark.pyspark.python")
    if named is None and not is_local(master):
        named = os.environ.get("PYSPARK_PYTHON")
    return {"PYSPARK_PYTHON": named or sys.executable}


def _conf_dir() -> Path:
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    return Path(os.environ.get("SPARK_CONF_DIR") or Path(home) / "conf")


@cache
def scratch() -> Path:
    """Return a private directory of this process, removed when the process ends."""
    made = mkdtemp(prefix="skipring-spark-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)
