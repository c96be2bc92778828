"""Diagnosis of a live topic or of one node: findings and advice.

The judge is that of the simulator (``world/legitimacy.py``); this module adds the advice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from skipring.admin.health import live_violations, warnings
from skipring.admin.inspector import Inspection, Inspector, TopicContents
from skipring.core.name_registry import Conflict, ProcessId
from skipring.core.peers import NodeId
from skipring.errors import InputError, UnreachableError
from skipring.wire.rpc import ChangeEntry, ChangePage
from skipring.world.legitimacy import LIVE_LAYERS, Layer, Violation, publication_violations

POLL_S: Final = 0.2  # Guess: an inspection of a small ring takes some milliseconds.
NAMED_MAX: Final = 5  # Guess: a sentence names this number of nodes, then "and 7 more".

SILENT: Final = "it does not answer"

LAYERS: Final[Mapping[Layer, str]] = {
    Layer.DATABASE: "the supervisor's database",
    Layer.LABELS: "labels",
    Layer.RING: "ring neighbours",
    Layer.SHORTCUTS: "shortcuts",
    Layer.LEAVERS: "leaving nodes",
    Layer.LINKS: "links between ring neighbours",
    Layer.PROCESSES: "processes",
    Layer.PUBLICATIONS: "publications",
}

# How each layer is repaired, once the layers before it are correct.
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
        "a backfill completes by itself; an operator must stop a clone and repair a disk"
    ),
    Layer.PUBLICATIONS: (
        "ring neighbours compare their tries and exchange missing publications (Algorithm 5)"
    ),
}


BEYOND_THE_RING: Final = LIVE_LAYERS | {Layer.PUBLICATIONS}


class Diagnosis(Struct, frozen=True, kw_only=True):
    """Health of a topic: its violations and what to do."""

    members: int
    publications: int  # the largest count of any member
    silent: tuple[NodeId, ...]  # referred to, but without an answer
    violations: tuple[Violation, ...]
    advice: tuple[str, ...]
    warnings: tuple[str, ...] = ()  # of a topic that may be healthy
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
    found = (*live_violations(inspection), *publication_violations(snapshot))
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
    """Diagnose a topic until it is healthy or the time is over; return the last diagnosis.

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
        there = f"there are {_listed(sorted(known))}" if known else "the topic has no nodes"
        raise InputError(f"no node {node[:64]!r} is known in {snapshot.topic!r}; {there}")
    found = (*live_violations(inspection), *publication_violations(snapshot))
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


# -- advice ----------------------------------------------------------------------------------


def _advice(
    inspection: Inspection, members: Sequence[NodeId], found: Sequence[Violation]
) -> Iterator[str]:
    """Yield what to do about the violations, the most urgent first."""
    snapshot = inspection.snapshot
    for clone in inspection.clones:
        yield (
            f"Two live processes have the name {clone.name}: {_process(clone.holder)} holds it, "
            f"{_process(clone.refused)} was refused. Is it a copy of the data directory? Stop one "
            "of them, or give it another name and its own data directory."
        )
    if not members:
        yield (
            f"{snapshot.topic!r} has no members: check the name, and that a node of it is running."
        )
    recorded = {node for _, node in snapshot.supervisor.database if node is not None}
    silent = [node for node in snapshot.crashed if node in recorded]
    if silent:
        yield (
            f"{_listed(silent)}: no answer. If it was stopped for good, there is nothing to do: "
            "the supervisor evicts members that are silent for 9 to 18 intervals. Otherwise check "
            "its log, and start it again with the same data directory."
        )
    unrecorded = [node for node in members if node not in recorded]
    if unrecorded:
        yield (
            f"{_listed(unrecorded)}: not recorded by the supervisor. It rejoins by itself; if not, "
            "compare its list of supervisors with yours: all processes must have the same list."
        )
    layers = {each.layer for each in found}
    if layers & {Layer.LABELS, Layer.RING, Layer.SHORTCUTS, Layer.LEAVERS}:
        yield "The ring is degraded and heals by itself, usually within 30 intervals."
    if Layer.LINKS in layers:
        yield (
            "Some neighbours cannot reach each other: check the network and firewalls between "
            "them, and the addresses that they advertise."
        )
    if Layer.PROCESSES in layers:
        yield (
            "Wait for a backfill. Stop a clone, or give it its own name and data directory. "
            "Free space on a full disk, or replace a broken one."
        )
    if Layer.PUBLICATIONS in layers:
        yield (
            "Not all members are in sync. Missing publications arrive by themselves: check again "
            "in a few intervals. If the same node still lacks as many, check its log and the free "
            "space on its disk."
        )


def _process(process: ProcessId) -> str:
    return f"the one at {process.address} (incarnation {process.incarnation:x})"


def _listed(nodes: Sequence[NodeId]) -> str:
    more = len(nodes) - NAMED_MAX
    names = ", ".join(nodes[:NAMED_MAX])
    return f"{names} and {more} more" if more > 0 else names
