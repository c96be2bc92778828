"""What holds for all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from tempfile import gettempdir
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from tests.support.processes import QUICK_JVM
from tests.support.sharing import Sharing, place_of
from tests.support.spark_session import SMALL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No test is about time: on a machine that has much to do, making examples may take long.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Contexts that a developer has saved must not reach the tests.
os.environ["XDG_CONFIG_HOME"] = f"{gettempdir()}/skipring-no-config-{os.getpid()}"
for variable in [name for name in os.environ if name.startswith("SKIPRING_TLS_")]:
    del os.environ[variable]

# Spark's scripts pass these on to every JVM they start, whichever process runs them.
for variable in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
    os.environ.setdefault(variable, QUICK_JVM)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Start one Spark session for all tests of a process; stop it and its JVM at the end."""
    from skipring.spark import session  # noqa: PLC0415  (most workers need no Spark)

    started = session.start(master="local[1,2]", conf=SMALL, app="tests")
    yield started
    session.stop(started)


@pytest.fixture
def is_rewriting() -> bool:
    """Return True if ``make golden`` runs: stored output is rewritten, not only compared."""
    return os.environ.get("SKIPRING_GOLDEN") == "rewrite"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Sharing | None:
    """Share files out in our way where files are shared out."""
    return Sharing(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let several workers begin with what takes longest; alone, keep the order of the files."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: place_of(item.nodeid))


def pytest_collection_finish() -> None:
    """Set aside what was imported and collected: who looks for garbage need not look there.

    Measured: a full collection takes 0.2 s with all tests in memory, and a test may need many.
    """
    gc.freeze()
