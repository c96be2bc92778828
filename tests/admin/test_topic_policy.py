"""Policy of a topic as its members report it, and what a change would remove."""

from __future__ import annotations

import pytest

from skipring.admin.inspector import Inspection
from skipring.admin.topic_policy import floors_now, policy_report
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.retention.charter import Charter, Policy, charter_record
from skipring.core.state import SupervisorState
from skipring.errors import InputError
from skipring.observability.clock import time_us
from skipring.world.snapshot import Snapshot

HOUR_US = 3_600_000_000


def at(time: int, first: int, key: bytes | None = None) -> RecordBatch:
    return RecordBatch.of([BatchRecord(b"x", time, key)], publisher="a", first=first, topic="t")


def test_floors_of_a_dry_run_follow_from_clock_and_rows() -> None:
    now = time_us()
    rows = [at(now - hours * HOUR_US, hours) for hours in range(10)]
    charter = RecordBatch.of([charter_record(Charter(stamp=1))], publisher="b", first=0, topic="t")
    floors = floors_now([*rows, charter], Policy(max_age_s=5 * 3600, max_count=4), 1_000_000)
    assert now - 6 * HOUR_US < floors.age < now - 5 * HOUR_US
    assert floors.full == now - 3 * HOUR_US


def test_dry_run_of_a_compacted_topic_counts_live_rows_only() -> None:
    now = time_us()
    rows = [at(now - 100 + k, k, b"%d" % min(k, 9)) for k in range(50)]
    assert floors_now(rows, Policy(compact=True, max_count=10), 1_000_000).full == 0


def test_topic_without_members_has_no_policy() -> None:
    snapshot = Snapshot(topic="t", supervisor=SupervisorState(), subscribers={})
    with pytest.raises(InputError, match="no member"):
        policy_report(Inspection(snapshot=snapshot, statuses={}))
