"""State of the demo's topic: inspected and checked from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from skipring.admin.inspector import Inspection, Inspector, TopicContents, ring_state
from skipring.admin.local_cluster import known_addresses, member_statuses
from skipring.core.peers import NodeId, TopicId
from skipring.core.state import SupervisorState
from skipring.errors import UnreachableError
from skipring.rpc.client import RpcClient
from skipring.view.model import ROOT_DIGITS
from skipring.view.text import RingLayout, layout
from skipring.wire.rpc import NodeStatus
from skipring.world.legitimacy import Layer, Violation, publication_violations, violations
from skipring.world.snapshot import Snapshot

ANSWER_S: Final = 0.4  # Guess: dead nodes do not answer; a slow node is polled again soon.

_NO_ANSWER: Final = Violation(Layer.DATABASE, "database: the supervisor does not answer")


class NodeState(Struct, frozen=True):
    """State of one member."""

    node: NodeId
    label: str  # "-" if it has none
    stored: int
    root: str


class ClusterState(Struct, frozen=True, kw_only=True):
    """State of the topic at one moment."""

    layout: RingLayout
    has_supervisor: bool  # if False, the nodes are compared with the last known database
    missing: tuple[NodeId, ...]  # nodes that should be members and are not
    violations: tuple[Violation, ...]
    nodes: tuple[NodeState, ...]
    published: int
    in_sync: int  # members that have every publication
    lost: int  # publications that no member has

    @property
    def violations_by_layer(self) -> Counter[Layer]:
        """Return the number of violations of each layer."""
        return Counter(violation.layer for violation in self.violations)

    @property
    def is_healthy(self) -> bool:
        """Return True if the ring has no violations and all members are in sync."""
        return not self.faults

    @property
    def is_ring_healthy(self) -> bool:
        """Return True if all violations are about publications, which may be in flight."""
        return not self.missing and not self.violations_by_layer.keys() - {Layer.PUBLICATIONS}

    @property
    def is_in_sync(self) -> bool:
        """Return True if every node has every publication, even without a supervisor."""
        return not self.missing and self.in_sync >= self.layout.members

    @property
    def faults(self) -> tuple[str, ...]:
        """Return a sentence for each fault, the worst first."""
        absent = (f"{node} is not in the ring" for node in self.missing)
        lost = (f"no member has {self.lost} of the publications",) if self.lost else ()
        return (*absent, *lost, *map(str, self.violations))


class Checker:
    """Checker of a topic from outside, even while its supervisor is down."""

    def __init__(self, client: RpcClient, topic: TopicId) -> None:
        self._client = client
        self._topic = topic
        self._inspector = Inspector(client, topic, patience_s=ANSWER_S)
        self._database = SupervisorState()

    async def check(
        self, nodes: Collection[NodeId], published: Collection[bytes], *, has_supervisor: bool
    ) -> ClusterState:
        """Inspect the topic; the nodes should be members and have all of ``published``.

        With ``has_supervisor`` False, query only the nodes instead of waiting for a supervisor.
        """
        seen: Inspection | None = None
        if has_supervisor:
            with suppress(UnreachableError):
                seen = await self._inspector.inspect(TopicContents.IDS)
        if seen is None:
            statuses = await self._statuses(nodes)
            return state_without_supervisor(self._topic, self._database, statuses, nodes, published)
        self._database = seen.snapshot.supervisor
        unknown = await self._statuses(node for node in nodes if node not in seen.statuses)
        return state_of(seen, unknown, nodes, published)

    async def tick(self, node: NodeId) -> int | None:
        """Return the number of rounds of a node; None if it does not answer."""
        journal = await self._inspector.journal(node)
        return journal.tick if journal is not None else None

    async def _statuses(self, nodes: Iterable[NodeId]) -> dict[NodeId, NodeStatus]:
        """Return the statuses of the nodes that answer."""
        addresses = known_addresses(nodes, [self._client.book])
        return await member_statuses(self._client, self._topic, addresses, ANSWER_S)


def state_of(
    seen: Inspection,
    unknown: Mapping[NodeId, NodeStatus],
    nodes: Collection[NodeId],
    published: Collection[bytes],
) -> ClusterState:
    """Check an inspection, including nodes without references to them, as after a database loss."""
    members = (state for state in seen.snapshot.subscribers.values() if state.member)
    held = ({each.id for each in state.publications} for state in members)
    state = _state_of(
        _with_nodes(seen.snapshot, unknown), {**seen.statuses, **unknown}, nodes, len(published)
    )
    return replace(
        state,
        violations=(*state.violations, *publication_violations(seen.snapshot)),
        lost=len(frozenset(published).difference(*held)) if not unknown else 0,
    )


def state_without_supervisor(
    topic: TopicId,
    database: SupervisorState,
    statuses: Mapping[NodeId, NodeStatus],
    nodes: Collection[NodeId],
    published: Collection[bytes],
) -> ClusterState:
    """Check the nodes against the last known database; publications are only counted."""
    recorded = {node for _, node in database.database if node is not None}
    crashed = tuple(sorted(recorded - statuses.keys()))
    empty = Snapshot(topic=topic, supervisor=database, subscribers={}, crashed=crashed)
    state = _state_of(_with_nodes(empty, statuses), statuses, nodes, len(published))
    return replace(state, has_supervisor=False, violations=(_NO_ANSWER, *state.violations))


def _state_of(
    snapshot: Snapshot,
    statuses: Mapping[NodeId, NodeStatus],
    nodes: Collection[NodeId],
    published: int,
) -> ClusterState:
    """Return the state of the ring; ids of publications are not compared."""
    members = {node: each for node, each in sorted(statuses.items()) if each.member}
    known = {node for node, state in snapshot.subscribers.items() if state.member}
    return ClusterState(
        layout=layout(snapshot),
        has_supervisor=True,
        missing=tuple(node for node in nodes if node not in known),
        violations=tuple(violations(snapshot)),
        nodes=tuple(
            NodeState(node, str(each.label or "-"), each.count, each.root.hex()[:ROOT_DIGITS])
            for node, each in members.items()
        ),
        published=published,
        in_sync=sum(each.count >= published for each in members.values()),
        lost=0,
    )


def _with_nodes(snapshot: Snapshot, statuses: Mapping[NodeId, NodeStatus]) -> Snapshot:
    """Return the snapshot with more nodes, without their publications."""
    states = {node: ring_state(status) for node, status in statuses.items()}
    return replace(
        snapshot,
        subscribers=dict(sorted({**snapshot.subscribers, **states}.items())),
        crashed=tuple(node for node in snapshot.crashed if node not in states),
    )
