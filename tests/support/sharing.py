"""Distribution of the tests to several workers: long shares first, single tests last."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from xdist.scheduler import LoadFileScheduling

ROOT: Final = Path(__file__).resolve().parents[2]
SPARK: Final = "files with the fixture spark"
HOUSE: Final = "tests/house"

# The tests of these share no fixture and take seconds each, so each is a share.
PROPERTIES: Final = "tests/properties/"
SINGLE: Final = (
    PROPERTIES,
    "tests/lab/demo/test_runner.py",
    "tests/faults/test_matrix.py",
    "tests/live/test_kills.py",
)

# Measured: seconds of shares that take more than 15; of a file of single tests, its longest test.
# They start first, so that no worker has a long share at the end.
SECONDS: Final = {
    SPARK: 120,
    "tests/dashboard/test_ring.py": 50,
    "tests/dashboard/test_page.py": 45,
    "tests/lab/demo/test_runner.py": 40,
    "tests/examples/test_examples.py": 35,
    "tests/test_testing.py": 30,
    HOUSE: 30,
    "tests/lab/bench/test_fanout.py": 25,
    "tests/cli/test_node.py": 25,
    "tests/cli/test_top.py": 25,
    "tests/house/test_first_minute.py": 25,
    "tests/live/test_pauses.py": 25,
    "tests/net/test_sockets.py": 25,
    "tests/web/test_app.py": 20,
    "tests/house/test_wheel.py": 20,
    "tests/faults/test_matrix.py": 20,
    "tests/spark/test_stream.py": 20,
    "tests/cluster/test_hostile.py": 15,
    "tests/house/test_docs_build.py": 15,
    "tests/house/test_troubleshooting.py": 15,
    "tests/live/test_kills.py": 15,
}


@cache
def uses_spark(file: str) -> bool:
    """Return True if tests of a file take the session that all tests of a process share."""
    path = ROOT / file
    return path.is_file() and "spark: SparkSession" in path.read_text(encoding="utf-8")


def share_of(nodeid: str) -> str:
    """Return the share of a test: itself, its file, all files with a session, or the house rules.

    The tests of a share have one worker, which starts one JVM and parses the sources once.
    """
    if nodeid.startswith(SINGLE):
        return nodeid
    file = nodeid.partition("::")[0]
    if file in SECONDS:
        return file
    if uses_spark(file):
        return SPARK
    return HOUSE if file.startswith(f"{HOUSE}/") else file


def place_of(nodeid: str) -> float:
    """Return the sort key of tests."""
    if nodeid.startswith(PROPERTIES):
        return 1
    return -SECONDS.get(share_of(nodeid), SECONDS.get(nodeid.partition("::")[0], 0))


class Sharing(LoadFileScheduling):
    """Plugin that distributes shares in the order of the tests."""

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)
