"""Builder of Spark sessions: master, settings, start and stop.

Without a master, the session uses the master of spark-submit or ``spark-defaults.conf``, then
Spark's variable ``MASTER``, then all cores of this machine (``local[*]``). Settings of the caller
come first, then those of spark-submit or ``spark-defaults.conf``, then ``default_settings``.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Final
from urllib.parse import urlsplit

try:
    import pyspark
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"skipring.spark needs {error.name}; run: pip install 'skipring[spark]'", name=error.name
    ) from None

from skipring.errors import InputError, UnreachableError
from skipring.spark.session.executors import check_executors, kept_zip, ship
from skipring.spark.session.java import find_java, make_java_home, scratch

MASTER: Final = "local[*]"
DRIVER_HOST: Final = "127.0.0.1"  # not imported: executors may lack the packages of skipring.net
STOP_WAIT_S: Final = 30.0  # Guess: a JVM that has not ended by then is killed
REACH_WAIT_S: Final = 5.0  # Guess; Spark tries for a minute, and its error does not help

_LOCAL: Final = re.compile(r"local(?:\[(?P<cores>\*|\d+)(?:,\s*\d+)?\])?")
_LOCAL_MASTER: Final = re.compile(
    r"local|local-cluster\[.+\]|local\[.+\]|spark://(localhost|127(\.\d+){3}|\[::1\]):\d+"
)
_STANDALONE: Final = "spark://"
_KINDS: Final = (_STANDALONE, "yarn", "k8s://", "local[", "local-cluster[")
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, which has started a JVM
_LINE: Final = re.compile(r"\s*([^#!\s=:]+)\s*[\s=:]\s*(.*?)\s*")  # Java properties
_EVERYWHERE: Final[Mapping[str, str]] = {
    # Guess: on a busy machine a Python worker needs longer than Spark's 15 s to start.
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",  # commands have their own progress bar
}
_LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": DRIVER_HOST,
    "spark.driver.host": DRIVER_HOST,
    "spark.driver.memory": "2g",  # Guess: in local mode all tasks run in the driver
    "spark.sql.catalogImplementation": "in-memory",  # the alternative leaves a metastore_db behind
    "spark.ui.enabled": "false",
}
_STOPPED_MEANS: Final = "the master ended it at once; see the logs of the master and the executors"


def start(
    *, master: str | None = None, conf: Mapping[str, str] | None = None, app: str = "skipring"
) -> SparkSession:
    """Return the active session with the modifiable settings of ``conf``, or a new one."""
    active = _active()
    if active is not None:
        return _adjusted(active, conf or {})
    given = submitted_settings()
    master = master or chosen_master(conf or {}, given)
    require_usable(master)
    settings = {"spark.app.name": app, **default_settings(master), **given, **(conf or {})}
    settings["spark.master"] = master
    try:
        with _environment(variables(master, settings)), _uninterrupted():
            spark = _launch(settings)
        if not is_local(master):
            ship(spark)
            check_executors(spark)
    except BaseException:
        if SparkContext._active_spark_context is not None:  # noqa: SLF001  (there is no other way)
            SparkContext._active_spark_context.stop()  # noqa: SLF001  (there is no other way)
        _end_jvm()
        raise
    return spark


def stop(spark: SparkSession) -> None:
    """Stop a session together with its JVM, and wait until both have ended."""
    spark.stop()
    _end_jvm()


@contextmanager
def opened(
    *, master: str | None = None, conf: Mapping[str, str] | None = None, app: str = "skipring"
) -> Iterator[SparkSession]:
    """Yield the session that ``start`` returns; stop it at the end unless it existed before."""
    is_ours = _active() is None
    spark = start(master=master, conf=conf, app=app)
    try:
        yield spark
    finally:
        if is_ours:
            stop(spark)


def _active() -> SparkSession | None:
    """Return the session of this process, from any of its threads."""
    found = SparkSession.getActiveSession()
    if found is None and SparkContext._active_spark_context is not None:  # noqa: SLF001  (there is no other way)
        return SparkSession.builder.getOrCreate()
    return found


def _adjusted(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """Apply the modifiable settings to an existing session; send it the code if needed."""
    for key, value in conf.items():
        if spark.conf.isModifiable(key):
            spark.conf.set(key, value)
    if not is_remote() and not is_local(spark.sparkContext.master or ""):
        ship(spark)
    return spark


def _launch(settings: Mapping[str, str]) -> SparkSession:
    try:
        return SparkSession.builder.config(map=dict(settings)).getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise InputError(f"Spark does not start: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """Return the reason of an error in one line."""
    if isinstance(error, Py4JJavaError):
        message = str(error.java_exception.getMessage()).partition("\n")[0]
        return _STOPPED_MEANS if "stopped SparkContext" in message else message
    if isinstance(error, PySparkException) and error.getCondition() == "JAVA_GATEWAY_EXITED":
        return "its JVM ended at once; its own message is above: check the settings in conf first"
    return str(error).partition("\n")[0]


def _end_jvm() -> None:
    """End the JVM that this process started; the JVM of spark-submit ends with the process."""
    gateway = SparkContext._gateway  # noqa: SLF001  (there is no other way)
    if gateway is None or gateway.proc is None:
        return
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001  (there is no other way)
    gateway.proc.stdin.close()  # the JVM waits for this
    try:
        gateway.proc.wait(STOP_WAIT_S)
    except TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Block Ctrl-C while Spark starts: a JVM that is half started cannot be ended.

    Python delivers signals to the main thread; other threads are not interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _environment(changed: Mapping[str, str]) -> Iterator[None]:
    """Set variables while Spark starts, so that programs started later do not inherit them."""
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# -- masters and settings --------------------------------------------------------------------


def is_local(master: str) -> bool:
    """Return True if all tasks run in the process of the driver."""
    return _LOCAL.fullmatch(master) is not None


def is_on_this_machine(master: str) -> bool:
    """Return True if no other machine needs to reach the driver."""
    return _LOCAL_MASTER.fullmatch(master) is not None


def require_usable(master: str) -> None:
    """Raise an error with a remedy if a master is invalid or does not answer."""
    if master != "local" and not master.startswith(_KINDS):
        raise InputError(
            f"not a Spark master: {master!r}; use local[2], local[*], spark://HOST:PORT, yarn or "
            "k8s://https://HOST:PORT"
        )
    if not master.startswith(_STANDALONE):
        return
    addresses = [_address(text, master) for text in master[len(_STANDALONE) :].split(",")]
    if not any(_answers(address) for address in addresses):
        raise UnreachableError(
            f"no Spark master answers at {master}; check that it runs (its page shows its URL), "
            "or omit the master to use this machine"
        )


def _address(text: str, master: str) -> tuple[str, int]:
    with suppress(ValueError):
        parts = urlsplit(f"//{text}")
        if parts.hostname and parts.port is not None:
            return parts.hostname, parts.port
    raise InputError(f"not a Spark master: {master!r}; its form is spark://HOST:PORT[,HOST:PORT]")


def _answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, REACH_WAIT_S).close()
    except OSError:
        return False
    return True


def submitted_settings() -> dict[str, str]:
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
    """Return the master if the caller names none."""
    settings = {**given, **conf}
    return settings.get("spark.master") or os.environ.get("MASTER") or MASTER


def default_settings(master: str) -> dict[str, str]:
    """Return the default settings for a master."""
    chosen = dict(_EVERYWHERE)
    if is_on_this_machine(master):
        chosen |= _LOCAL_SETTINGS
        chosen["spark.sql.warehouse.dir"] = str(scratch() / "warehouse")
    if local := _LOCAL.fullmatch(master):
        cores = os.cpu_count() if local["cores"] == "*" else local["cores"]
        chosen["spark.sql.shuffle.partitions"] = str(cores or 1)
    return chosen


def variables(master: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables to change while Spark starts."""
    python = settings.get("spark.pyspark.python")
    chosen = {"PYSPARK_DRIVER_PYTHON": sys.executable}
    if not is_local(master):
        python = python or os.environ.get("PYSPARK_PYTHON")
        # For the planners of streams: Spark ships files to tasks, but not to these processes.
        paths = (str(kept_zip()), os.environ.get("PYTHONPATH"))
        chosen["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    chosen["PYSPARK_PYTHON"] = python or sys.executable
    if _SUBMITTED not in os.environ:
        chosen["JAVA_HOME"] = str(make_java_home(find_java(os.environ), scratch()))
    if not (_conf_dir() / "log4j2.properties").exists():
        ours = str(files("skipring.spark") / "log4j2.properties")
        chosen["LOG4J_CONFIGURATION_FILE"] = os.environ.get("LOG4J_CONFIGURATION_FILE", ours)
    if is_on_this_machine(master):
        chosen["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", DRIVER_HOST)
    return chosen


def _conf_dir() -> Path:
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    return Path(os.environ.get("SPARK_CONF_DIR") or Path(home) / "conf")
