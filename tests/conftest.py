"""What holds for all tests."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long tests with Spark first: one worker begins with them, and one JVM is enough.

    The others take what is behind them. At the end nobody waits for a test of minutes.
    """
    items.sort(key=lambda item: not _is_long(item))


def _is_long(item: pytest.Item) -> bool:
    is_heavy = item.get_closest_marker("heavy") is not None
    return is_heavy and "spark" in item.path.parts
