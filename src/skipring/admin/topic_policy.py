"""Policy of a live topic: read it from the members, change it, or show what a change removes."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median_low

from msgspec import Struct

from skipring.admin.inspector import Inspection
from skipring.core.batches import RecordBatch
from skipring.core.log import MemoryLog
from skipring.core.log_messages import LogPage
from skipring.core.publications import TOLERANCE_US
from skipring.core.retention.charter import (
    CHARTER_KEY,
    Charter,
    Policy,
    charter_record,
    following_charter,
)
from skipring.core.retention.floors import Floors, FloorStamps
from skipring.core.retention.retained import RetainedRows
from skipring.core.retention.rows import keep
from skipring.core.retention.topic_clock import TopicClock
from skipring.errors import InputError
from skipring.net.access import Access
from skipring.observability.clock import time_us
from skipring.rpc.client import open_client
from skipring.rpc.log_reader import LogRange, pages, readable_batches, survey
from skipring.rpc.publisher import PublishPlan, publish_all


class PolicyReport(Struct, frozen=True, kw_only=True):
    """Policy of a topic as its members report it."""

    acting: Charter | None  # in effect
    newest: Charter | None  # it may begin later
    records: int  # the largest number of any member, without charters
    policy_delay_s: float
    time_us: int = 0  # the median of the clocks of the members


def policy_report(inspection: Inspection) -> PolicyReport:
    """Return the policy of an inspected topic; raise InputError if it has no members."""
    members = [each for each in inspection.statuses.values() if each.member]
    if not members:
        raise InputError("no member of the topic answers; start a node of it", parameter="topic")
    terms = [each.health.terms for each in members]
    return PolicyReport(
        acting=_highest([each.acting for each in terms]),
        newest=_highest([each.newest for each in terms]),
        records=max(max(each.count - each.health.terms.charters, 0) for each in members),
        policy_delay_s=max(each.policy_delay_us for each in terms) / 1_000_000,
        time_us=median_low(each.health.time for each in members),
    )


def _highest(charters: list[Charter | None]) -> Charter | None:
    known = [each for each in charters if each is not None]
    return max(known, key=lambda each: (each.epoch, each.stamp), default=None)


async def set_policy(
    access: Access,
    topic: str,
    policy: Policy,
    report: PolicyReport,
    waiting: Callable[[str], None],
    wait_s: float,
) -> Charter:
    """Publish a charter through a member; return it once it is durable there."""
    delay_us = round(report.policy_delay_s * 1_000_000) if report.records else 0
    charter = following_charter(policy, report.newest, report.time_us or time_us(), delay_us)
    record = charter_record(charter)
    plan = PublishPlan(
        topic=topic, key=CHARTER_KEY, is_volatile=True, later_than=charter.stamp - 1, wait_s=wait_s
    )
    await publish_all(access, plan, [record.payload], lambda _: None, waiting)
    return charter


async def removed_rows(
    access: Access, topic: str, policy: Policy, quantum_us: int
) -> list[RecordBatch]:
    """Return the batches of one member that a policy would remove now."""
    async with open_client(access.supervisors, topic, credentials=access.credentials()) as client:
        holder = max(await survey(client, topic, None), key=lambda each: each.survey.count)
        extent = holder.survey
        wanted = LogRange(store=extent.store, epoch=extent.epoch, start=0, end=extent.end)
        found: list[RecordBatch] = []
        async for page in pages(client, topic, holder.node, holder.address, wanted):
            found += _batches(page, topic)
    floors = floors_now(found, policy, quantum_us)
    kept = {batch.id for batch in keep(found, policy, floors)}
    return [batch for batch in found if batch.id not in kept]


def _batches(page: LogPage, topic: str) -> list[RecordBatch]:
    return [batch for batch, _ in readable_batches(page, topic)]


def floors_now(batches: list[RecordBatch], policy: Policy, quantum_us: int) -> FloorStamps:
    """Return the floors of a policy by the clock of this machine and these batches."""
    clock, floors = TopicClock(TOLERANCE_US), Floors(quantum_us)
    clock.on_tick(time_us(), 0)
    rows = RetainedRows(MemoryLog(batches), policy)
    while not rows.is_complete:
        rows.build(len(batches))
    floors.justify(policy, clock, rows.stamps)
    return floors.stamps
