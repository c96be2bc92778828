"""Code on the executors of a cluster: send it, and check that it can run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
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
    path = scratch() / f"skipring-{blake2b(content, digest_size=8).hexdigest()}.zip"
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
    version = ".".join(map(str, sys.version_info[:2]))
    return InputError(
        f"executors cannot run the code of skipring ({reason}); they need Python {version} and the "
        f"dependencies of PySpark: {_HOW_TO_SHIP}"
    )
