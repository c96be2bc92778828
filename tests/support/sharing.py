"""Distribution of the tests to several workers: whole files, the longest first."""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadFileScheduling

SPARK: Final = "tests/spark"
# Other files whose tests use the shared Spark session.
_SPARK_TOO: Final = ("tests/lab/experiments/", "tests/lab/bench/test_spark.py")

# Measured: seconds on a quiet machine, of files that take more than 20. They start first, so that
# they are done when the many short ones are distributed and no worker has a long one at the end.
SECONDS: Final = {
    SPARK: 250,
    "tests/properties/test_convergence.py": 80,
    "tests/live/test_kills.py": 180,
    "tests/spark/test_kills.py": 140,
    "tests/properties/test_publications.py": 55,
    "tests/lab/demo/test_runner.py": 100,
    "tests/spark/pipeline/test_live.py": 100,
    "tests/web/test_dashboard_pictures.py": 85,
    "tests/cluster/test_overload.py": 75,
    "tests/spark/test_notebook.py": 75,
    "tests/spark/test_standalone.py": 60,
    "tests/live/test_pauses.py": 55,
    "tests/cluster/test_hostile.py": 55,
    "tests/house/test_first_minute.py": 50,
    "tests/live/test_durability.py": 45,
    "tests/lab/bench/test_fanout.py": 45,
    "tests/web/test_dashboard_ring.py": 45,
    "tests/web/test_dashboard_page.py": 40,
    "tests/test_testing.py": 40,
    "tests/examples/test_examples.py": 35,
    "tests/world/test_format.py": 35,
    "tests/live/test_history.py": 35,
    "tests/lab/faults/test_matrix.py": 35,
    "tests/live/test_supervisor_loss.py": 35,
    "tests/cluster/test_partition.py": 30,
    "tests/cli/test_node.py": 30,
    "tests/house/test_wheel.py": 30,
    "tests/web/test_app.py": 30,
    "tests/net/test_sockets.py": 25,
    "tests/cli/test_top.py": 25,
    "tests/lab/bench/test_history.py": 20,
    "tests/live/test_disks.py": 20,
}


def share_of(nodeid: str) -> str:
    """Return the share of a test: its file, or all tests that use a Spark session.

    The latter have one worker, which starts one JVM; the long ones of their directory start their
    own.
    """
    file = nodeid.partition("::")[0]
    uses_spark = file.startswith((f"{SPARK}/", *_SPARK_TOO))
    return SPARK if uses_spark and file not in SECONDS else file


def place_of(nodeid: str) -> float:
    """Return the sort key of tests."""
    return -SECONDS.get(share_of(nodeid), 0)


class Sharing(LoadFileScheduling):
    """Plugin that distributes shares in the order of the tests."""

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)
