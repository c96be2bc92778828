"""A browser, and rings before which it is set; each is there for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.web.browsing import N, Stage, chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def calm(browser: Browser) -> Iterator[Stage]:
    """A ring of 16 to which nothing is done."""
    with Stage(N) as stage:
        yield stage


@pytest.fixture(scope="module")
def torn(browser: Browser) -> Iterator[Stage]:
    """A ring that tests damage; each waits until it is whole before it begins."""
    with Stage(N, chaos=True) as stage:
        yield stage
