"""Settings, fixtures and hooks for all tests."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
from collections.abc import Generator, Iterator
from tempfile import gettempdir
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from tests.support.exchanges import LOOPS, LoopFactory, play
from tests.support.processes import QUICK_JVM
from tests.support.sharing import Sharing, place_of
from tests.support.spark_session import SMALL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No test measures the generation of examples, which takes long on a busy machine.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("brief", PATIENT, max_examples=50)
settings.register_profile("thorough", PATIENT, max_examples=300)

# A shell without job control starts `make test &` with SIGINT ignored. Child processes inherit
# that and would ignore the SIGINT of a test.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests do not use the saved contexts of a developer.
os.environ["XDG_CONFIG_HOME"] = f"{gettempdir()}/skipring-no-config-{os.getpid()}"
for variable in [name for name in os.environ if name.startswith("SKIPRING_TLS_")]:
    del os.environ[variable]

# The scripts of Spark pass these options to every JVM.
for variable in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
    os.environ.setdefault(variable, QUICK_JVM)


def pytest_configure(config: pytest.Config) -> None:
    """Let ``make slow``, which selects all tests, try more examples."""
    settings.load_profile("thorough" if config.getoption("markexpr") == "" else "brief")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Start one Spark session for all tests of a process; stop it and its JVM at the end."""
    from skipring.spark import session  # noqa: PLC0415  (most workers need no Spark)

    started = session.start(master="local[1,2]", conf=SMALL, app="tests")
    yield started
    session.stop(started)


@pytest.fixture(params=LOOPS.values(), ids=LOOPS)
def loop(request: pytest.FixtureRequest) -> LoopFactory:
    """Return the factory of the event loop in which a coroutine test runs."""
    factory: LoopFactory = request.param
    return factory


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test; fail if it leaves a task or an error in the event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    factory = pyfuncitem.funcargs.get("loop", asyncio.new_event_loop)
    play(lambda: pyfuncitem.obj(**arguments), factory)
    return True


@pytest.fixture
def is_rewriting() -> bool:
    """Return True if ``make golden`` runs: stored output is rewritten, not only compared."""
    return os.environ.get("SKIPRING_GOLDEN") == "rewrite"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Sharing | None:
    """Distribute whole files, the longest first, where ``--dist loadfile`` asks for files."""
    return Sharing(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests for several workers by duration; one process keeps the order of files."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: place_of(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without garbage collection, then exclude all that they hold from it.

    Measured: the collection takes 4.7 s of processor time in each worker instead of 8.2. A full
    garbage collection takes 0.2 s with all tests in memory, and a test may need many.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
