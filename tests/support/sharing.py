"""Distribution of the tests to several workers: long files first, single tests last."""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadFileScheduling

SPARK: Final = "tests/spark"
HOUSE: Final = "tests/house"
# Other files whose tests use the shared Spark session.
_SPARK_TOO: Final = ("tests/lab/experiments/", "tests/lab/bench/test_spark.py")

# These tests share no fixture and take seconds each, minutes together: they fill the end of a run.
SINGLE: Final = "tests/properties/"

# Measured: seconds on a quiet machine, of files that take more than 20. They start first, so that
# they are done when the many short ones are distributed and no worker has a long one at the end.
SECONDS: Final = {
    SPARK: 250,
    "tests/lab/demo/test_runner.py": 100,
    "tests/spark/pipeline/test_live.py": 100,
    "tests/house/test_first_minute.py": 50,
    "tests/lab/bench/test_fanout.py": 45,
    "tests/web/test_dashboard_ring.py": 45,
    "tests/web/test_dashboard_page.py": 40,
    "tests/test_testing.py": 40,
    "tests/live/test_pauses.py": 35,
    "tests/examples/test_examples.py": 35,
    "tests/world/test_format.py": 35,
    "tests/lab/faults/test_matrix.py": 35,
    "tests/live/test_kills.py": 30,
    "tests/cli/test_node.py": 30,
    "tests/house/test_wheel.py": 30,
    "tests/web/test_app.py": 30,
    "tests/cluster/test_overload.py": 25,
    HOUSE: 25,
    "tests/cli/test_top.py": 25,
    "tests/house/test_docs_build.py": 20,
    "tests/lab/bench/test_history.py": 20,
}


def share_of(nodeid: str) -> str:
    """Return the share of a test: its file, all tests with a Spark session, or the house rules.

    The tests of a share have one worker, which starts one JVM and parses the sources once. Files in
    SECONDS are shares of their own, and so are single tests of properties.
    """
    if nodeid.startswith(SINGLE):
        return nodeid
    file = nodeid.partition("::")[0]
    if file in SECONDS:
        return file
    if file.startswith((f"{SPARK}/", *_SPARK_TOO)):
        return SPARK
    return HOUSE if file.startswith(f"{HOUSE}/") else file


def place_of(nodeid: str) -> float:
    """Return the sort key of tests."""
    return 1 if nodeid.startswith(SINGLE) else -SECONDS.get(share_of(nodeid), 0)


class Sharing(LoadFileScheduling):
    """Plugin that distributes shares in the order of the tests."""

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)
