"""Progress of a backfill: a node replaces a source that is out of credit."""

from __future__ import annotations

import pytest

from skipring.core.backfill import PATIENCE_TICKS, SHARES, TICK_BYTES_MIN, PageRead, SourceProgress


def ticks_kept(every: int, page: PageRead, count: int, limit: int = 1000) -> int:
    """Return for how many ticks a source is kept that sends such a page every ``every`` ticks."""
    progress, held = SourceProgress(), 0
    for tick in range(limit):
        if tick % every == 0:
            held += page.new
            progress = progress.after_page(page, held, count)
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
    assert ticks_kept(every, PageRead(1024, 1, 1), 20_000) <= 2 * PATIENCE_TICKS


@pytest.mark.parametrize("every", [1, 2, 3])
def test_source_with_enough_bytes_is_kept(every: int) -> None:
    assert ticks_kept(every, PageRead(every * TICK_BYTES_MIN, 1, 1), 1 << 30) == 1000


def test_source_with_small_rows_is_kept_for_their_number() -> None:
    page = PageRead(1000, 100, 100)
    assert ticks_kept(1, page, 100 * SHARES, SHARES) == SHARES
    assert ticks_kept(1, page, 100 * SHARES) <= SHARES + 2 * PATIENCE_TICKS


def test_source_that_repeats_a_known_row_is_replaced() -> None:
    page = PageRead(TICK_BYTES_MIN, 64, 0)
    assert ticks_kept(1, page, 1 << 30) <= 2 * PATIENCE_TICKS


def test_known_publications_count_once() -> None:
    progress = SourceProgress(credit=0.0)
    page = PageRead(TICK_BYTES_MIN, 64, 0)
    once = progress.after_page(page, 64, 1 << 30)
    assert once.credit == 1.0
    assert once.after_page(page, 64, 1 << 30).credit == 1.0


def test_large_page_earns_no_credit_for_later() -> None:
    progress = SourceProgress().after_page(PageRead(1 << 40, 1, 1), 1, 1)
    assert progress.credit == SourceProgress().credit


def test_empty_log_causes_no_division_by_zero() -> None:
    assert not SourceProgress().after_page(PageRead(0, 0, 0), 0, 0).is_too_slow
