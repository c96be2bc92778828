"""View of a topic at one moment: nodes, edges, and the violations of each.

The violations are those of ``world/legitimacy.py``, assigned to nodes and edges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from skipring.admin.diagnosis import REPAIRS, is_about, live_violations
from skipring.admin.inspector import Inspection
from skipring.core.labels import CIRCLE, Label
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.core.roster import Roster, index_of
from skipring.core.state import SubscriberState, legitimate_state
from skipring.core.topology import chains_around, levels
from skipring.view.overview import most_common, roots_of
from skipring.world.legitimacy import Layer, Violation, repaired
from skipring.world.snapshot import Snapshot

ROOT_DIGITS: Final = 8
REASONS_MAX: Final = 12  # Guess: an operator does not read more sentences about a node.

Pair: TypeAlias = tuple[NodeId, NodeId]  # the smaller name first
Reference: TypeAlias = tuple[Label, NodeId]


class NodeView(Struct, frozen=True, kw_only=True):
    """Node of a drawing."""

    node: NodeId
    label: str | None
    turn: float | None  # r(label): position on the circle, from 0 to below 1
    mark: str  # right, edges, label, dead or outside
    reasons: tuple[str, ...] = ()
    count: int = 0
    root: str = ""


class EdgeView(Struct, frozen=True, kw_only=True):
    """Undirected edge of a drawing."""

    a: NodeId
    b: NodeId
    level: int
    kind: str  # ring or shortcut
    state: str  # right, wrong or missing
    reason: str | None = None


class SupervisorCard(Struct, frozen=True, kw_only=True):
    """State of the topic's supervisor."""

    answers: bool
    address: str
    ticks: int
    requests: float
    bound: float
    suspects: int
    evictions: int
    conditions: Mapping[str, int]  # entries that break each condition of section 3.1


class TopicView(Struct, frozen=True, kw_only=True):
    """Topic at one moment."""

    number: int
    time: float  # milliseconds since the epoch
    topic: TopicId
    members: int
    recorded: int
    publications: int
    roots: int
    legitimate: bool
    wrong: Mapping[str, int]
    nodes: tuple[NodeView, ...]
    edges: tuple[EdgeView, ...]
    tree: tuple[Pair, ...]  # parent and child
    supervisor: SupervisorCard


def make_topic_view(
    inspection: Inspection, card: SupervisorCard, number: int, time_ms: float
) -> TopicView:
    """Check an inspection of a topic, and assign the violations to nodes and edges."""
    snapshot = inspection.snapshot
    found = (*live_violations(inspection), *content_violations(inspection))
    roster = repaired(snapshot.roster)
    members = {node for node, state in snapshot.subscribers.items() if state.member}
    counts = [each.count for each in inspection.statuses.values()]
    wrong = Counter(str(each.layer) for each in found)
    return TopicView(
        number=number,
        time=time_ms,
        topic=snapshot.topic,
        members=len(members),
        recorded=sum(node in roster for node in members),
        publications=max(counts, default=0),
        roots=len(set(roots_of(inspection).values())),
        legitimate=bool(members)
        and not any(count for layer, count in wrong.items() if layer != Layer.PUBLICATIONS),
        wrong={str(layer): wrong[str(layer)] for layer in REPAIRS},
        nodes=tuple(_node_views(inspection, found)),
        edges=tuple(_edge_views(snapshot, roster)),
        tree=tuple(_tree(roster)),
        supervisor=card,
    )


def content_violations(inspection: Inspection) -> Iterator[Violation]:
    """Yield the members that lack publications, compared by root with the most complete ones."""
    roots, statuses = roots_of(inspection), inspection.statuses
    most = max((statuses[node].count for node in roots), default=0)
    whole = most_common(root for node, root in roots.items() if statuses[node].count == most)
    for node, root in roots.items():
        if root != whole:
            has = statuses[node].count
            how = f"{has} of {most}" if has < most else f"{has}, but not the same"
            yield Violation(Layer.PUBLICATIONS, f"{node} has {how} publications")


# --- nodes -----------------------------------------------------------------------------


def _node_views(inspection: Inspection, found: Sequence[Violation]) -> Iterator[NodeView]:
    snapshot = inspection.snapshot
    by_node = _by_node(found, snapshot.subscribers)
    for node, state in snapshot.subscribers.items():
        status = inspection.statuses.get(node)
        yield NodeView(
            node=node,
            label=state.label.bits if state.label is not None else None,
            turn=state.label.position / CIRCLE if state.label is not None else None,
            mark=_mark(state, by_node.get(node, ())),
            reasons=tuple(each.text for each in by_node.get(node, ()))[:REASONS_MAX],
            count=status.count if status is not None else 0,
            root=status.root.hex()[:ROOT_DIGITS] if status is not None else "",
        )
    recorded = {node: label for label, node in snapshot.supervisor.database if node is not None}
    missed = recorded.keys() | {other for _, other in snapshot.explicit_edges()}
    for node in snapshot.crashed:
        if node in missed:  # the snapshot may list other silent nodes for a while (R9)
            yield _dead(node, recorded.get(node))


def _by_node(found: Iterable[Violation], nodes: Iterable[NodeId]) -> dict[NodeId, list[Violation]]:
    """Return the violations of each node; the text of most starts with the node's name."""
    about: dict[NodeId, list[Violation]] = {}
    known = set(nodes)
    for violation in found:
        words = violation.text.removeprefix("database: ").split(" ", 1)
        subject = words[0].rsplit(".", 1)[0] if violation.layer is Layer.RING else words[0]
        if subject in known and is_about(violation, subject):
            about.setdefault(subject, []).append(violation)
    return about


def _mark(state: SubscriberState, wrong: Iterable[Violation]) -> str:
    if not state.member:
        return "outside"
    layers = {each.layer for each in wrong}
    if state.label is None or layers & {Layer.DATABASE, Layer.LABELS}:
        return "label"
    wrong_edges = {Layer.RING, Layer.SHORTCUTS, Layer.LINKS, Layer.PROCESSES}
    return "edges" if layers & wrong_edges else "right"


def _dead(node: NodeId, bits: str | None) -> NodeView:
    index = index_of(bits) if bits is not None else None
    label = Label.nth(index) if index is not None else None
    why = "it does not answer" + (", and is still recorded" if bits is not None else "")
    return NodeView(
        node=node,
        label=bits,
        turn=label.position / CIRCLE if label is not None else None,
        mark="dead",
        reasons=(why,),
    )


# --- edges -----------------------------------------------------------------------------


class _Drawn(Struct):
    """Edge during assembly from the states of both ends."""

    level: int
    kind: str
    state: str
    reasons: list[str]


def _edge_views(snapshot: Snapshot, roster: Roster) -> Iterator[EdgeView]:
    drawn: dict[Pair, _Drawn] = {}
    for node, state in snapshot.subscribers.items():
        should = _should(node, roster) if state.member else SubscriberState(member=False)
        has, wanted = _references(state), _references(should)
        for field, reference in has.items():
            is_right = reference in wanted.values()
            reason = None if is_right else _why_wrong(node, field, reference, wanted.get(field))
            _draw(drawn, node, field, reference, "right" if is_right else "wrong", reason)
        for field, reference in wanted.items():
            if reference not in has.values():
                reason = f"{node} should refer to {reference[1]} ({reference[0]}) as its {field}"
                _draw(drawn, node, field, reference, "missing", reason)
    top = levels(max(len(roster), 1))
    for (a, b), each in drawn.items():
        yield EdgeView(
            a=a,
            b=b,
            level=top if each.kind == "ring" else each.level,
            kind=each.kind,
            state=each.state,
            reason="; ".join(each.reasons) or None,
        )


def _should(node: NodeId, roster: Roster) -> SubscriberState:
    label = roster.label_of(node)
    if label is None:
        return SubscriberState()
    return legitimate_state(label.index, roster.nodes)


def _references(state: SubscriberState) -> dict[str, Reference]:
    """Return the references of a node by field name."""
    peers = {"left": state.left, "right": state.right, "ring": state.ring}
    found = {name: (peer.label, peer.node) for name, peer in peers.items() if peer is not None}
    for label, holder in state.shortcuts.items():
        if holder is not None:
            found[f"shortcut {label.bits}"] = (label, holder)
    return found


def _why_wrong(node: NodeId, field: str, has: Reference, should: Reference | None) -> str:
    right = f"{should[1]} ({should[0].bits})" if should is not None else "no node"
    return f"{node}'s {field} is {has[1]} ({has[0].bits}), should be {right}"


_SEVERITY: Final = {"right": 0, "missing": 1, "wrong": 2}


def _draw(
    drawn: dict[Pair, _Drawn],
    node: NodeId,
    field: str,
    reference: Reference,
    state: str,
    reason: str | None,
) -> None:
    label, other = reference
    if other in (node, SUPERVISOR):
        return
    pair = (min(node, other), max(node, other))
    kind = "shortcut" if field.startswith("shortcut") else "ring"
    edge = drawn.setdefault(pair, _Drawn(0, kind, "right", []))
    if kind == "ring":
        edge.kind = kind  # neighbours at the end of a chain are also shortcuts of each other
    edge.level = max(edge.level, label.length)
    if _SEVERITY[state] > _SEVERITY[edge.state]:
        edge.state = state
    if reason is not None:
        edge.reasons.append(reason)


def _tree(roster: Roster) -> Iterator[Pair]:
    """Yield parent and child of each edge of the broadcast tree of the repaired roster."""
    for node in roster.nodes:
        place = roster.configuration_of(node)
        if place.label is None or place.pred is None or place.succ is None:
            continue
        parent = chains_around(place.label, place.pred.label, place.succ.label).parent
        if parent is not None:
            yield roster.nodes[parent.index], node


# --- supervisor ------------------------------------------------------------------------


def broken_conditions(database: Sequence[tuple[str, NodeId | None]]) -> dict[str, int]:
    """Return the number of entries that break each of the four conditions of section 3.1."""
    labels = [label for label, _ in database]
    nodes = Counter(node for _, node in database if node is not None)
    n = len(nodes)
    indices = Counter(index_of(label) for label in labels)
    return {
        "i": sum(node is None for _, node in database),
        "ii": sum(count - 1 for count in nodes.values()),
        "iii": sum(index not in indices for index in range(n)),
        "iv": sum(index is None or index >= n for index in map(index_of, labels)),
    }
