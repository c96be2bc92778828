"""A source of a backfill is too slow once it is out of credit."""

from __future__ import annotations

import pytest

from skipring.core.backfill import PATIENCE_TICKS, SHARES, TICK_BYTES_MIN, SourceProgress


def ticks_kept(every: int, size_bytes: int, advanced: int, end: int, limit: int = 1000) -> int:
    """For how many ticks a source is kept that sends such a page every so many ticks."""
    progress = SourceProgress()
    for tick in range(limit):
        if tick % every == 0:
            progress = progress.after_page(size_bytes, advanced, end)
        progress = progress.after_tick()
        if progress.is_too_slow:
            return tick + 1
    return limit


def test_silent_source_is_replaced_after_its_patience() -> None:
    progress = SourceProgress()
    for _ in range(PATIENCE_TICKS):
        progress = progress.after_tick()
        assert not progress.is_too_slow
    assert progress.after_tick().is_too_slow


@pytest.mark.parametrize("every", [1, 2])
def test_source_with_one_publication_every_few_ticks_is_replaced_soon(every: int) -> None:
    assert ticks_kept(every, 1024, 1, 20_000) <= 2 * PATIENCE_TICKS


@pytest.mark.parametrize("every", [1, 2, 3])
def test_source_with_enough_bytes_is_kept(every: int) -> None:
    assert ticks_kept(every, every * TICK_BYTES_MIN, 1, 1 << 30) == 1000


def test_source_with_small_rows_that_gets_on_is_kept() -> None:
    assert ticks_kept(1, 10, 100, 100 * SHARES) == 1000


def test_large_page_earns_no_credit_for_later() -> None:
    progress = SourceProgress().after_page(1 << 40, 1, 1)
    assert progress == SourceProgress()


def test_empty_log_is_no_division_by_zero() -> None:
    assert not SourceProgress().after_page(0, 0, 0).is_too_slow
