"""Diagnosis of a live topic or of one node: findings and advice.

The checks are those of the simulator (``world/legitimacy.py``). A ring can be legitimate while its
members cannot exchange messages, so this module also judges links, backfill, clones, clocks and
disks by the report of each node about its process (``NodeHealth``), and adds the advice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from statistics import median_low
from typing import Final

from msgspec import Struct

from skipring.admin.inspector import Inspection, Inspector, TopicContents
from skipring.core.limits import listed
from skipring.core.name_registry import Conflict, ProcessId
from skipring.core.peers import NodeId
from skipring.core.publications import TOLERANCE_US
from skipring.errors import InputError, UnreachableError
from skipring.wire.rpc import ChangeEntry, ChangePage, NodeHealth, NodeStatus, TopicTerms
from skipring.world.legitimacy import (
    LIVE_LAYERS,
    Layer,
    Violation,
    publication_violations,
    violations,
)
from skipring.world.snapshot import Snapshot

POLL_S: Final = 0.2  # Guess: an inspection of a small ring takes some milliseconds.
# Neighbours exchange messages every tick; jitter may leave one tick without a message.
SILENT_TICKS: Final = 2
# A log has up to 2.2 times the limit of its topic: half-empty segments, and uncommitted data.
DISK_SHARE_MAX: Final = 2.5
DISK_SLACK_BYTES: Final = 1 << 20  # Guess: smaller logs are not worth a warning.

DAY_US: Final = 86_400_000_000

SILENT: Final = "it does not answer"

LAYERS: Final[Mapping[Layer, str]] = {
    Layer.DATABASE: "database",
    Layer.LABELS: "labels",
    Layer.RING: "neighbours",
    Layer.SHORTCUTS: "shortcuts",
    Layer.LEAVERS: "leavers",
    Layer.CHANNELS: "in flight",  # visible in a simulation only
    Layer.LINKS: "links",
    Layer.PROCESSES: "processes",
    Layer.PUBLICATIONS: "publications",
}

# Repair of each layer of a live ring, once the layers before it are correct.
REPAIRS: Final[Mapping[Layer, str]] = {
    Layer.DATABASE: (
        "the supervisor repairs its database first (section 3.1), evicts members that neighbours "
        "report as unresponsive (section 3.3), and records nodes that subscribe again (S2)"
    ),
    Layer.LABELS: (
        "the supervisor sends every member its configuration in turn (Algorithm 3), and at once "
        "if a neighbour asks for it (R9, R10)"
    ),
    Layer.RING: (
        "neighbours introduce themselves each interval (Algorithm 1), and the supervisor's "
        "configuration replaces wrong neighbours (B13)"
    ),
    Layer.SHORTCUTS: (
        "each node introduces its neighbours of a level to each other, each interval, one level "
        "after another from the ring up (section 3.2.2)"
    ),
    Layer.LEAVERS: "the node asks for permission to leave each interval until it gets it (S2)",
    Layer.LINKS: (
        "each node dials its neighbours again, and the supervisor evicts members that stay silent "
        "(section 3.3)"
    ),
    Layer.PROCESSES: (
        "a backfill completes by itself, and hidden batches appear when the clocks reach their "
        "times; an operator must stop a clone, repair a disk and set clocks right"
    ),
    Layer.PUBLICATIONS: (
        "ring neighbours compare their tries and exchange missing publications (Algorithm 5)"
    ),
}


BEYOND_THE_RING: Final = LIVE_LAYERS | {Layer.PUBLICATIONS}


class Diagnosis(Struct, frozen=True, kw_only=True):
    """Health of a topic: its violations, and advice."""

    members: int
    publications: int  # records; the largest count of any member
    silent: tuple[NodeId, ...]  # referred to, but without an answer
    violations: tuple[Violation, ...]
    advice: tuple[str, ...]
    warnings: tuple[str, ...] = ()  # a healthy topic can have warnings
    clones: tuple[Conflict, ...] = ()  # names that two live processes have

    @property
    def is_legitimate(self) -> bool:
        """Return True if the topic has members and no layer of the ring has a violation."""
        return self.members > 0 and not any(
            each.layer not in BEYOND_THE_RING for each in self.violations
        )

    @property
    def is_linked(self) -> bool:
        """Return True if all ring neighbours receive messages from each other."""
        return not any(each.layer is Layer.LINKS for each in self.violations)

    @property
    def has_all_publications(self) -> bool:
        """Return True if all members have the same publications."""
        return not any(each.layer is Layer.PUBLICATIONS for each in self.violations)

    @property
    def is_healthy(self) -> bool:
        """Return True if the ring is legitimate, linked and in sync, and its processes work."""
        return self.members > 0 and not self.violations


def diagnose(inspection: Inspection) -> Diagnosis:
    """Judge the inspection of a topic."""
    snapshot = inspection.snapshot
    found = (*live_violations(inspection), *stored_violations(snapshot))
    members = [node for node, status in inspection.statuses.items() if status.member]
    return Diagnosis(
        members=len(members),
        publications=max((status.count for status in inspection.statuses.values()), default=0),
        silent=snapshot.crashed,
        violations=found,
        advice=tuple(_advice(inspection, members, found)),
        warnings=tuple(warnings(inspection)),
        clones=inspection.clones,
    )


async def wait_healthy(inspector: Inspector, timeout_s: float, members_min: int = 1) -> Diagnosis:
    """Diagnose a topic until it is healthy or the timeout expires; return the last diagnosis.

    Raise UnreachableError if no supervisor has answered by then.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_s
    while True:
        try:
            diagnosis = diagnose(await inspector.inspect(TopicContents.DIFFERENCES))
        except UnreachableError:
            if clock() >= deadline:
                raise
        else:
            is_enough = diagnosis.is_healthy and diagnosis.members >= members_min
            if is_enough or clock() >= deadline:
                return diagnosis
        await asyncio.sleep(min(POLL_S, max(deadline - clock(), 0)))


class Explanation(Struct, frozen=True, kw_only=True):
    """State of one node, its recent changes, and its violations."""

    node: NodeId
    standing: str
    violations: tuple[Violation, ...]
    tick: int | None  # the current one; None if the node has not answered
    journal: tuple[ChangeEntry, ...]

    @property
    def is_well(self) -> bool:
        """Return True if the node answers and has no violations."""
        return self.standing != SILENT and not self.violations


def explain(inspection: Inspection, node: NodeId, journal: ChangePage | None) -> Explanation:
    """Judge one node; raise InputError if it is unknown."""
    snapshot = inspection.snapshot
    known = snapshot.subscribers.keys() | set(snapshot.crashed)
    if node not in known:
        there = f"its nodes are {listed(sorted(known))}" if known else "the topic has no nodes"
        raise InputError(f"no node {node[:64]!r} is known in {snapshot.topic!r}; {there}")
    found = (*live_violations(inspection), *stored_violations(snapshot))
    return Explanation(
        node=node,
        standing=_standing(inspection, node),
        violations=tuple(each for each in found if is_about(each, node)),
        tick=journal.tick if journal is not None else None,
        journal=journal.entries if journal is not None else (),
    )


def _standing(inspection: Inspection, node: NodeId) -> str:
    status = inspection.statuses.get(node)
    if status is None:
        return SILENT if node in inspection.snapshot.crashed else "it is not in the topic"
    if not status.member:
        return "it is leaving"
    return f"a member under label {status.label}" if status.label else "a member without a label"


def is_about(violation: Violation, node: NodeId) -> bool:
    """Return True if the violation concerns the node's own variables or its database entry."""
    subject, _, _ = violation.text.removeprefix("database: ").partition(" ")
    fields = (f"{node}.left", f"{node}.right", f"{node}.ring")
    return subject == node or (violation.layer is Layer.RING and subject in fields)


# -- live processes ----------------------------------------------------------------------------


def live_violations(inspection: Inspection) -> Iterator[Violation]:
    """Yield the reasons why the ring is not legitimate, linked and served by healthy processes."""
    yield from violations(inspection.snapshot)
    healths = {node: each.health for node, each in inspection.statuses.items() if each.member}
    for node, health in healths.items():
        yield from _link_violations(node, health)
    for node, health in healths.items():
        yield from _process_violations(node, health)
    names = dict.fromkeys(clone.name for clone in inspection.clones)
    for name in names:
        yield Violation(Layer.PROCESSES, f"{name} is the name of two live processes")
    for node, health in healths.items():
        if health.clones and node not in names:
            where = ", ".join(health.clones)
            yield Violation(Layer.PROCESSES, f"{node} is also the name of the process at {where}")


def stored_violations(snapshot: Snapshot) -> Iterator[Violation]:
    """Yield the members that lack publications; if none does, those with a wrong trie or id.

    As ``publication_violations``, but the numbers count records, as users do, and not batches.
    """
    stored = {
        node: {batch.id: batch.count for batch in state.publications}
        for node, state in snapshot.subscribers.items()
        if state.member
    }
    known = {key: count for each in stored.values() for key, count in each.items()}
    is_complete = True
    for node, own in stored.items():
        if missing := known.keys() - own.keys():
            is_complete = False
            lacking, total = sum(known[key] for key in missing), sum(known.values())
            yield Violation(Layer.PUBLICATIONS, f"{node} lacks {lacking} of {total} publications")
    if is_complete:
        yield from publication_violations(snapshot)


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
    if health.terms.future:
        text = f"{node} hides {health.terms.future} stored batches with times in the future"
        yield Violation(Layer.PROCESSES, text)


def _record_warnings(node: NodeId, status: NodeStatus) -> Iterator[str]:
    health = status.health
    if health.quarantined:
        count = health.quarantined
        found = f"{count} damaged or missing record{'s' if count > 1 else ''}"
        yield f"{node} has found {found} since it started: check its disk."
    yield from _terms_warnings(node, health.time, health.terms)
    if health.ahead:
        yield (
            f"{node}: {health.ahead} incarnations of its name are ahead of its clock and are "
            "ignored. Its clock is slow, or a publication was forged."
        )
    if health.overlapping:
        yield (
            f"{node}: batches with its current sequence numbers arrived from other members: "
            f"{health.overlapping}. A clone of its process publishes, a publication was forged, or "
            "its disk has lost these batches."
        )


def _terms_warnings(node: NodeId, time: int, terms: TopicTerms) -> Iterator[str]:
    """Yield the conditions of a node that delay or bend the retention of the topic."""
    if terms.ahead_us:
        where = "ahead of" if terms.ahead_us > 0 else "behind"
        off_s = abs(terms.ahead_us) / 1e6
        yield f"{node}: its clock is {off_s:.0f} s {where} both ring neighbours: set it right."
    if terms.stale:
        yield f"{node} was away for longer than deletions are remembered: it teaches no old values."
    unconfirmed_us = time - terms.confirmed
    grace_us = terms.acting.policy.tombstones_us if terms.acting is not None else None
    if terms.confirmed and grace_us is not None and unconfirmed_us > grace_us // 2:
        yield (
            f"{node}: no other member has confirmed equal publications for "
            f"{unconfirmed_us / DAY_US:.1f} days; deletions are forgotten after "
            f"{grace_us / DAY_US:.1f} days. Repair the connections of the topic before."
        )
    if terms.returned:
        yield (
            f"{node} has quarantined {terms.returned} batches that no other member has: their keys "
            "may have been deleted while it was away. Publish them again if they are needed."
        )
    limit = terms.acting.policy.max_bytes if terms.acting is not None else None
    if limit is not None and terms.disk_bytes > DISK_SHARE_MAX * limit + DISK_SLACK_BYTES:
        share = terms.disk_bytes / limit
        yield f"{node} uses {share:.1f} times the limit of the topic on its disk: check its log."


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


# -- advice ----------------------------------------------------------------------------------


_LAYER_ADVICE: Final[Mapping[frozenset[Layer], str]] = {
    frozenset((Layer.LABELS, Layer.RING, Layer.SHORTCUTS, Layer.LEAVERS)): (
        "The ring is degraded and heals by itself, usually within 30 intervals."
    ),
    frozenset((Layer.LINKS,)): (
        "Some neighbours cannot reach each other: check the network and firewalls between "
        "them, and the addresses that they advertise."
    ),
    frozenset((Layer.PROCESSES,)): (
        "Wait for a backfill. Stop a clone, or give it its own name and data directory. "
        "Free space on a full disk, or replace a broken one."
    ),
    frozenset((Layer.PUBLICATIONS,)): (
        "Not all members are in sync. Missing publications arrive by themselves: check again "
        "in a few intervals. If the same node still lacks as many, check its log and the free "
        "space on its disk."
    ),
}


def _advice(
    inspection: Inspection, members: Sequence[NodeId], found: Sequence[Violation]
) -> Iterator[str]:
    """Yield advice about the violations, the most urgent first."""
    yield from map(_clone_advice, inspection.clones)
    yield from _member_advice(inspection.snapshot, members)
    layers = {each.layer for each in found}
    yield from (text for of, text in _LAYER_ADVICE.items() if layers & of)


def _clone_advice(clone: Conflict) -> str:
    return (
        f"Two live processes have the name {clone.name}: {_process(clone.holder)} holds it, "
        f"{_process(clone.refused)} was refused. Is it a copy of the data directory? Stop one "
        "of them, or give it another name and its own data directory."
    )


def _member_advice(snapshot: Snapshot, members: Sequence[NodeId]) -> Iterator[str]:
    if not members:
        yield (
            f"{snapshot.topic!r} has no members: check the name, and that a node of it is running."
        )
    recorded = {node for _, node in snapshot.supervisor.database if node is not None}
    if silent := [node for node in snapshot.crashed if node in recorded]:
        yield (
            f"{listed(silent)}: no answer. If it was stopped for good, there is nothing "
            "to do: the supervisor evicts members that are silent for 9 to 18 intervals. Otherwise "
            "check its log, and start it again with the same data directory."
        )
    if unrecorded := [node for node in members if node not in recorded]:
        yield (
            f"{listed(unrecorded)}: not recorded by the supervisor. It rejoins by "
            "itself; if not, compare its list of supervisors with yours: all processes must have "
            "the same list."
        )


def _process(process: ProcessId) -> str:
    return f"the one at {process.address} (incarnation {process.incarnation:x})"
