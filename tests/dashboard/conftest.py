"""A browser and rings with dashboards, shared by the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.dashboard.browsing import N, Stage, chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def calm(browser: Browser) -> Iterator[Stage]:
    """Yield a ring of 16 that tests do not damage."""
    with Stage(N) as stage:
        yield stage


@pytest.fixture(scope="module")
def torn(browser: Browser) -> Iterator[Stage]:
    """Yield a ring that tests damage; each test waits until it is healthy."""
    with Stage(N, chaos=True) as stage:
        yield stage
