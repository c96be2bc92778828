"""What holds for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No test is about time: on a machine that has much to do, making examples may take long.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
