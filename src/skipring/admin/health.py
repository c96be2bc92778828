"""Conditions of live nodes that the protocol's variables do not show.

A ring can be legitimate while its members cannot exchange messages. This module judges links,
backfill, clones, clocks and disks by the report of each node about its process (``NodeHealth``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median_low
from typing import Final

from skipring.admin.inspector import Inspection
from skipring.core.peers import NodeId
from skipring.core.sequences import TOLERANCE_US
from skipring.wire.rpc import NodeHealth, NodeStatus
from skipring.world.legitimacy import Layer, Violation, violations

# Neighbours exchange messages every tick; jitter may leave one tick without a message.
SILENT_TICKS: Final = 2


def live_violations(inspection: Inspection) -> Iterator[Violation]:
    """Yield the reasons why the ring is not legitimate, linked and served by healthy processes."""
    yield from violations(inspection.snapshot)
    for node, status in inspection.statuses.items():
        if status.member:
            yield from _link_violations(node, status.health)
    for node, status in inspection.statuses.items():
        if status.member:
            yield from _process_violations(node, status.health)
    names = dict.fromkeys(clone.name for clone in inspection.clones)
    for name in names:
        yield Violation(Layer.PROCESSES, f"{name} is the name of two live processes")
    for node, status in inspection.statuses.items():
        if status.member and status.health.clones and node not in names:
            where = ", ".join(status.health.clones)
            yield Violation(Layer.PROCESSES, f"{node} is also the name of the process at {where}")


def warnings(inspection: Inspection) -> Iterator[str]:
    """Yield conditions that an operator should check although the topic works."""
    yield from _clock_warnings(inspection.clock_offsets_us)
    for node, status in inspection.statuses.items():
        yield from _record_warnings(node, status)


def _link_violations(node: NodeId, health: NodeHealth) -> Iterator[Violation]:
    for other in dict.fromkeys((*health.unlinked, *health.silent)):
        ticks = health.silent.get(other, 0)
        if other in health.unlinked:
            yield Violation(Layer.LINKS, f"{node} has no connection to its neighbour {other}")
        elif ticks >= SILENT_TICKS:
            text = f"{node} has received nothing from its neighbour {other} for {ticks} intervals"
            yield Violation(Layer.LINKS, text)


def _process_violations(node: NodeId, health: NodeHealth) -> Iterator[Violation]:
    if health.not_ready:
        yield Violation(Layer.PROCESSES, f"{node} is not ready: {health.not_ready}")
    if health.disk_error:
        yield Violation(Layer.PROCESSES, f"{node} cannot store: {health.disk_error}")


def _record_warnings(node: NodeId, status: NodeStatus) -> Iterator[str]:
    health = status.health
    if health.quarantined:
        count = health.quarantined
        records = "1 damaged record" if count == 1 else f"{count} damaged records"
        yield f"{node} has quarantined {records} since it started: check its disk."
    if health.ahead:
        yield (
            f"{node}: {health.ahead} incarnations of its name are ahead of its clock and are "
            "ignored. Its clock is slow, or a publication was forged."
        )


def _clock_warnings(offsets_us: Mapping[NodeId, int]) -> Iterator[str]:
    """Compare each clock with the median of all; with two clocks, either may be wrong."""
    if not offsets_us:
        return
    middle = median_low(offsets_us.values())
    for node, offset in offsets_us.items():
        skew_s = (offset - middle) / 1e6
        if abs(offset - middle) > TOLERANCE_US:
            where = "ahead of" if skew_s > 0 else "behind"
            yield f"{node}: its clock is {abs(skew_s):.0f} s {where} the clocks of other members."
