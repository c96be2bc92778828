"""Code on the executors of a cluster: send it, and check that it can run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from threading import Timer
from time import monotonic
from typing import Final
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from skipring.errors import InputError, UnreachableError
from skipring.spark.session.java import scratch

# Packages that executors must have: Python cannot import compiled ones from a zip, and the zip
# contains no third-party code.
NEEDED: Final = ("cryptography", "msgspec", "pandas", "prometheus_client", "pyarrow", "structlog")


EXECUTOR_WAIT_S: Final = 120.0  # Guess: a cluster with free resources starts an executor in seconds
PROBES_MAX: Final = 256  # Limit: enough to detect missing packages, cheap on large clusters

_PACKAGES: Final = ("skipring", "pyspark_skipring")
# Signs of the most informative line of a Spark error, which has about a hundred lines.
_SIGNS: Final = ("PYTHON_VERSION_MISMATCH", "ModuleNotFoundError", "Cannot run program")
_CHECK: Final = "skipring: check of the executors"
_HOW_TO_SHIP: Final = (
    "install 'skipring[spark]' there, or pack an environment with venv-pack or conda-pack and send "
    "it: set spark.archives=env.tar.gz#env and spark.pyspark.python=env/bin/python"
)


def missing(_: object) -> list[str]:
    """Return the needed packages that this Python does not have."""
    return [name for name in NEEDED if find_spec(name) is None]


def ship(spark: SparkSession) -> None:
    """Send the code to all present and later executors; it overrides an installed version."""
    spark.sparkContext.addPyFile(str(kept_zip()))


IMPORT_WAIT_S: Final = 60.0  # Guess: importing takes a second, on a busy machine some more.
_IMPORTED: Final = "skipring.spark.source"
_ZIP: Final = "skipring-"  # the name of the file that sessions of skipring send


def check_executors(spark: SparkSession) -> None:
    """Raise an error with a remedy if no executor starts, or executors cannot run the code."""
    context = spark.sparkContext
    context.setJobGroup(_CHECK, _CHECK, interruptOnCancel=True)
    timer = Timer(EXECUTOR_WAIT_S, context.cancelJobGroup, (_CHECK,))
    started_s = monotonic()
    timer.start()
    try:
        tasks = min(context.defaultParallelism, PROBES_MAX)
        answers = context.parallelize(range(tasks), tasks).map(missing).collect()
    except (PySparkException, Py4JJavaError) as error:
        raise _explained(error, is_late=monotonic() - started_s >= EXECUTOR_WAIT_S) from None
    finally:
        timer.cancel()
        timer.join()
        context._jsc.clearJobGroup()  # noqa: SLF001  (PySpark can only set one)
    if lacking := sorted({name for answer in answers for name in answer}):
        raise InputError(f"the executors' Python lacks {', '.join(lacking)}; {_HOW_TO_SHIP}")


def check_workers(spark: SparkSession) -> None:
    """Raise InputError if the workers of a session cannot import skipring.

    A local master starts them with the driver's PYSPARK_PYTHON, or with the python3 on its PATH. A
    session that was started by skipring has been checked.
    """
    if is_remote():
        return  # the server has its own environment
    context = spark.sparkContext
    if (context.master or "").startswith("local"):
        check_python(context.pythonExec)
    elif not any(Path(name).name.startswith(_ZIP) for name in context.listFiles):
        try:
            context.parallelize([_IMPORTED], 1).map(import_module).map(repr).count()
        except (PySparkException, Py4JJavaError) as error:
            raise _explained(error, is_late=False) from None


def check_python(program: str) -> None:
    """Raise InputError if a Python program has another version, or cannot import skipring."""
    found = shutil.which(program)
    if found is not None and Path(found).absolute() == Path(sys.executable).absolute():
        return
    asked = f"import sys; print(*sys.version_info[:2], sep='.'); import {_IMPORTED}"
    command = [found or program, "-c", asked]
    try:
        done = subprocess.run(command, capture_output=True, timeout=IMPORT_WAIT_S, check=False)  # noqa: S603  (the user's own Python)
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    else:
        found_version = done.stdout.decode(errors="replace").partition("\n")[0]
        if found_version and found_version != _version():
            reason = f"it is Python {found_version}, and the driver {_version()}"
        elif not done.returncode:
            return
    raise InputError(
        f"Spark's workers run {program}, which cannot import skipring ({reason}); set "
        f"PYSPARK_PYTHON={sys.executable} in the environment before the session starts"
    )


def _version() -> str:
    """Return the version of Python that driver and workers must share."""
    return ".".join(map(str, sys.version_info[:2]))


def package_zip() -> bytes:
    """Return the packages as an importable zip; equal code gives equal bytes."""
    written = BytesIO()
    with ZipFile(written, "w", ZIP_DEFLATED) as archive:
        for name, content in sorted(_contents()):
            archive.writestr(ZipInfo(name), content, ZIP_DEFLATED)  # dated 1980: equal bytes
    return written.getvalue()


def _contents() -> Iterator[tuple[str, bytes]]:
    """Yield the files of the packages, and the metadata with their version."""
    for package in _PACKAGES:
        root = Path(str(files(package)))
        for path in root.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{package}/{path.relative_to(root).as_posix()}", path.read_bytes()
    try:
        metadata = distribution("skipring").read_text("METADATA")
    except PackageNotFoundError:  # run from a source tree
        return
    if metadata is not None:
        yield "skipring.dist-info/METADATA", metadata.encode()


@cache
def kept_zip() -> Path:
    """Write the zip to a file named by its hash, because Spark identifies files by name."""
    content = package_zip()
    path = scratch() / f"{_ZIP}{blake2b(content, digest_size=8).hexdigest()}.zip"
    path.write_bytes(content)
    return path


def _explained(error: Exception, *, is_late: bool) -> Exception:
    """Return an error with a remedy."""
    if is_late:
        return UnreachableError(
            f"no executor has run a task within {EXECUTOR_WAIT_S:.0f} s; check on the page of the "
            "master that cores and memory are free, or request less: set spark.cores.max=1 "
            "and spark.executor.memory=512m"
        )
    lines = [line.strip() for line in str(error).splitlines()]
    reason = next((line for line in lines if any(sign in line for sign in _SIGNS)), lines[0])
    return InputError(
        f"executors cannot run the code of skipring ({reason}); they need Python {_version()} and "
        f"the dependencies of PySpark: {_HOW_TO_SHIP}"
    )
