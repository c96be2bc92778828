"""Gaps: counts, and the last ones."""

from __future__ import annotations

from skipring.order.gaps import RECENT_GAPS, Gap, GapLog, GapReason


def test_log_counts_gaps_and_keeps_the_last() -> None:
    log = GapLog()
    for place in range(3 * RECENT_GAPS):
        log.record(Gap("a", 0, 10 * place, 10 * place + 2, GapReason.TIMEOUT))
    assert (log.count, log.missing) == (3 * RECENT_GAPS, 9 * RECENT_GAPS)
    assert len(log.recent) == RECENT_GAPS
    assert log.recent[-1].first == 10 * (3 * RECENT_GAPS - 1)
    assert not GapLog().recent


def test_log_counts_late_and_dropped_publications() -> None:
    log = GapLog()
    log.record_late(3, is_dropped=False)
    log.record_late(2, is_dropped=True)
    assert (log.late, log.dropped) == (5, 2)
