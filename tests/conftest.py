"""What holds for all tests."""

from __future__ import annotations

import gc

from hypothesis import HealthCheck, settings

# No test is about time: on a machine that has much to do, making examples may take long.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_collection_finish() -> None:
    """Set aside what was imported and collected: who looks for garbage need not look there.

    Measured: a full collection takes 0.2 s with all tests in memory, and a test may need many.
    """
    gc.freeze()
