"""Builder of Spark sessions.

Without a master, the session uses the one of spark-submit or ``spark-defaults.conf``, then Spark's
variable ``MASTER``, then all cores of this machine (``local[*]``). Settings of the caller come
first, then those of spark-submit or ``spark-defaults.conf``, then those of
``skipring.spark.session.settings``.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from subprocess import TimeoutExpired
from typing import Final

try:
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"skipring.spark needs {error.name}; run: pip install 'skipring[spark]'", name=error.name
    ) from None

from skipring.errors import InputError
from skipring.spark.session.executors import check_executors, kept_zip, ship
from skipring.spark.session.settings import (
    chosen_master,
    default_settings,
    given_settings,
    is_local,
    require_usable,
    variables,
)

STOP_WAIT_S: Final = 30.0  # Guess: a JVM that has not ended by then is killed

_HAS_MASKS: Final = hasattr(signal, "pthread_sigmask")
_STOPPED_MEANS: Final = "the master has ended it at once; see the logs of the master and executors"


def start(
    *, master: str | None = None, conf: Mapping[str, str] | None = None, app: str = "skipring"
) -> SparkSession:
    """Return the active session with the modifiable settings of ``conf``, or a new one."""
    active = _active()
    if active is not None:
        return _adjusted(active, conf or {})
    given = given_settings()
    master = master or chosen_master(conf or {}, given)
    require_usable(master)
    ours = {"spark.app.name": app, **default_settings(master)}
    settings = {key: value for key, value in ours.items() if key not in given}
    settings |= {**(conf or {}), "spark.master": master}
    surroundings = {**variables(master, {**given, **settings}), **_planners_path(master)}
    try:
        with _environment(surroundings), _uninterrupted():
            spark = _launch(settings)
    except KeyboardInterrupt:
        if SparkContext._active_spark_context is not None:  # noqa: SLF001  (there is no other way)
            SparkContext._active_spark_context.stop()  # noqa: SLF001  (there is no other way)
        _end_jvm()
        raise
    return _supplied(spark)


def stop(spark: SparkSession) -> None:
    """Stop a session together with its JVM, and wait until both have ended."""
    spark.stop()
    _end_jvm()


@contextmanager
def opened(
    *, master: str | None = None, conf: Mapping[str, str] | None = None, app: str = "skipring"
) -> Iterator[SparkSession]:
    """Yield a session as ``start`` does; stop it at the end unless it existed before."""
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
    if not is_remote() and not _is_local(spark):
        ship(spark)
    return spark


def _planners_path(master: str) -> dict[str, str]:
    """Return the PYTHONPATH for Python processes of the JVM, which plan streams.

    Spark gives these processes none of the files that tasks get.
    """
    if is_local(master):
        return {}
    known = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(kept_zip()), known)))}


def _launch(settings: Mapping[str, str]) -> SparkSession:
    try:
        return SparkSession.builder.config(map=dict(settings)).getOrCreate()
    except (PySparkException, Py4JError) as error:
        reason = _reason(error)  # reads from the JVM, which ends next
        _end_jvm()
        raise InputError(f"Spark does not start: {reason}") from None


def _supplied(spark: SparkSession) -> SparkSession:
    """Send the code to the executors of a session, if it has any, and check that it runs."""
    if _is_local(spark):
        return spark
    try:
        ship(spark)
        check_executors(spark)
    except BaseException:
        stop(spark)
        raise
    return spark


def _is_local(spark: SparkSession) -> bool:
    return is_local(spark.sparkContext.master or "")


def _reason(error: Exception) -> str:
    """Return the reason of an error in one line."""
    if isinstance(error, Py4JJavaError):
        said = str(error.java_exception.getMessage()).partition("\n")[0]
        return _STOPPED_MEANS if "stopped SparkContext" in said else said
    if isinstance(error, PySparkException) and error.getCondition() == "JAVA_GATEWAY_EXITED":
        return (
            "its JVM ended at once; its own message stands above: check the settings in conf first"
        )
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
    """Block Ctrl-C while Spark starts: a JVM that is only half started could not be ended.

    Python delivers signals to the main thread; other threads are not interrupted.
    """
    if threading.current_thread() is not threading.main_thread() or not _HAS_MASKS:
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
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
