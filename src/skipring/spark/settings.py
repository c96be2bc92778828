"""What a session is started with, where the user says nothing else."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

import pyspark
from pyspark import SparkConf, SparkContext

from skipring.spark.java import find_java, make_java_home
from skipring.spark.masters import is_local, is_on_this_machine, local_cores

MASTER: Final = "local[*]"
LOOPBACK: Final = "127.0.0.1"

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # spark-submit started us, and there is a JVM already
_LINE: Final = re.compile(r"\s*([^#!\s=:]+)\s*[\s=:]\s*(.*?)\s*")  # of a Java properties file
_EVERYWHERE: Final[Mapping[str, str]] = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",  # commands have a bar of their own
}
_ON_THIS_MACHINE: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    "spark.driver.memory": "2g",  # Our guess: locally the driver does all the work
    "spark.sql.catalogImplementation": "in-memory",  # the other one leaves a metastore_db behind
    "spark.ui.enabled": "false",
}


def given_settings() -> dict[str, str]:
    """What spark-submit was told, or what ``spark-defaults.conf`` says."""
    if _SUBMITTED in os.environ:
        SparkContext._ensure_initialized()  # noqa: SLF001  (a SparkConf is empty before)
        return dict(SparkConf().getAll())
    try:
        lines = (_conf_dir() / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {found[1]: found[2] for line in lines if (found := _LINE.fullmatch(line))}


def chosen_master(conf: Mapping[str, str], given: Mapping[str, str]) -> str:
    """The master if the caller names none."""
    settings = {**given, **conf}
    return settings.get("spark.master") or os.environ.get("MASTER") or MASTER


def default_settings(master: str) -> dict[str, str]:
    """What is set where nobody sets anything."""
    chosen = dict(_EVERYWHERE)
    if is_on_this_machine(master):
        chosen |= _ON_THIS_MACHINE
        chosen["spark.sql.warehouse.dir"] = str(scratch() / "warehouse")
    if is_local(master):
        chosen["spark.sql.shuffle.partitions"] = str(local_cores(master))
    return chosen


def variables(master: str, settings: Mapping[str, str]) -> dict[str, str]:
    """The environment in which Spark starts, where it differs from ours."""
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
    """The Python of the tasks; that of a cluster is the user's choice, if there was one."""
    named = settings.get("spark.pyspark.python")
    if named is None and not is_local(master):
        named = os.environ.get("PYSPARK_PYTHON")
    return {"PYSPARK_PYTHON": named or sys.executable}


def _conf_dir() -> Path:
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    return Path(os.environ.get("SPARK_CONF_DIR") or Path(home) / "conf")


@cache
def scratch() -> Path:
    """A directory of this process's own, which nobody else can read; removed when it ends."""
    made = mkdtemp(prefix="skipring-spark-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)
