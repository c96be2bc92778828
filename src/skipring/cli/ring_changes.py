"""Changes of a live ring between two inspections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from skipring.admin.inspector import Inspection
from skipring.core.peers import NodeId, Peer
from skipring.view.model import ROOT_DIGITS
from skipring.wire.rpc import NodeStatus

NONE: Final = "-"  # an empty cell of a table
GONE: Final = "does not answer"
OUTSIDE: Final = "not in the topic"


class RingChange(Struct, frozen=True, kw_only=True):
    """Changed cell of the table, for all nodes with the same change."""

    nodes: tuple[NodeId, ...]
    field: str
    before: str
    after: str


def changes(before: Inspection, after: Inspection) -> list[RingChange]:
    """Return the changes between two inspections, in order of nodes; join equal changes."""
    nodes: dict[tuple[str, str, str], list[NodeId]] = {}
    old, new = _standings(before), _standings(after)
    for node in sorted(old.keys() | new.keys()):
        for change in _changes_of(old.get(node, {}), new.get(node, {})):
            nodes.setdefault(change, []).append(node)
    return [
        RingChange(nodes=tuple(found), field=field, before=was, after=now)
        for (field, was, now), found in nodes.items()
    ]


def _standings(inspection: Inspection) -> dict[NodeId, dict[str, str]]:
    """Return every known node with the cells of its row."""
    snapshot = inspection.snapshot
    return (
        {node: {"standing": OUTSIDE} for node in snapshot.subscribers}
        | {node: {"standing": GONE} for node in snapshot.crashed}
        | {node: cells(status) for node, status in inspection.statuses.items()}
    )


def _changes_of(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the cells of a node that differ; only the standing if the node came or went."""
    was, now = (each.get("standing", "unknown") for each in (old, new))
    if was != now:
        yield "standing", was, now
        return
    for field in new:
        if old[field] != new[field] and field != "root":  # the root follows from "stored"
            yield field, old[field], new[field]


def cells(status: NodeStatus) -> dict[str, str]:
    """Return the cells of a node by column."""
    held = sum(holder is not None for _, holder in status.shortcuts)
    return {
        "standing": "member" if status.member else "leaving",
        "label": str(status.label or NONE),
        "left": _peer(status.left),
        "right": _peer(status.right),
        "ring": _peer(status.ring),
        "shortcuts": f"{held} of {len(status.shortcuts)}",
        "stored": str(status.count),
        "root": status.root.hex()[:ROOT_DIGITS],
    }


def _peer(peer: Peer | None) -> str:
    return f"{peer.label} {peer.node}" if peer is not None else NONE
