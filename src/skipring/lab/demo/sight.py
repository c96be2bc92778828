"""Looking at the topic of the demo: what a look gives, judged, and who looks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from skipring.admin.inspector import Inspection, Inspector, TopicContents
from skipring.core.peers import NodeId, TopicId
from skipring.core.state import SubscriberState, SupervisorState
from skipring.errors import UnreachableError
from skipring.rpc.client import RpcClient
from skipring.view.text import RingLayout, layout
from skipring.wire.rpc import GetNodeStatus, NodeStatus
from skipring.world.legitimacy import Layer, Violation, publication_violations, violations
from skipring.world.snapshot import Snapshot

PATIENCE_S: Final = 0.4  # the dead do not answer; one that is only slow is asked again soon
ROOT_DIGITS: Final = 8  # as the other commands show

_SILENCE: Final = Violation(Layer.DATABASE, "database: the supervisor does not answer")


class Standing(Struct, frozen=True):
    """How one member stands."""

    node: NodeId
    label: str  # "-" if it has none
    stored: int
    root: str


class Sight(Struct, frozen=True, kw_only=True):
    """What was seen of the topic at one moment."""

    portrait: RingLayout
    has_supervisor: bool  # else the last database that was seen is held against the nodes
    missing: tuple[NodeId, ...]  # they should be members, and are not
    violations: tuple[Violation, ...]
    standings: tuple[Standing, ...]
    published: int
    complete: int  # members that have every publication
    lost: int  # publications that no member has

    @property
    def wrong(self) -> Counter[Layer]:
        """How many things are wrong in each layer."""
        return Counter(violation.layer for violation in self.violations)

    @property
    def is_whole(self) -> bool:
        """True if nothing is wrong."""
        return not self.faults

    @property
    def is_ring_whole(self) -> bool:
        """True if nothing is wrong but for publications, which may be on their way."""
        return not self.missing and not self.wrong.keys() - {Layer.PUBLICATIONS}

    @property
    def faults(self) -> tuple[str, ...]:
        """All that is wrong in words, the worst first."""
        absent = (f"{node} is not in the ring" for node in self.missing)
        lost = (f"{self.lost} publications are with nobody",) if self.lost else ()
        return (*absent, *lost, *map(str, self.violations))


class Lookout:
    """Looks at a topic from outside, also while its supervisor is away."""

    def __init__(self, outsider: RpcClient, topic: TopicId) -> None:
        self._outsider = outsider
        self._topic = topic
        self._inspector = Inspector(outsider, topic)
        self._inspector.patience_s = PATIENCE_S
        self._database = SupervisorState()

    async def look(self, nodes: Collection[NodeId], published: Collection[bytes]) -> Sight:
        """See how it is with these nodes, which should be members, and what was published."""
        try:
            seen = await self._inspector.inspect(TopicContents.IDS)
        except UnreachableError:
            return await self.look_at_nodes(nodes, published)
        self._database = seen.snapshot.supervisor
        unknown = [node for node in nodes if node not in seen.statuses]
        return sight_of(seen, await self._ask_all(unknown), nodes, published)

    async def look_at_nodes(self, nodes: Collection[NodeId], published: Collection[bytes]) -> Sight:
        """As ``look``, but nobody waits for a supervisor that is known to be dead."""
        statuses = await self._ask_all(nodes)
        return sight_without_supervisor(self._topic, self._database, statuses, nodes, published)

    async def tick(self, node: NodeId) -> int | None:
        """How many rounds a node has had; None if it does not answer."""
        journal = await self._inspector.journal(node)
        return journal.tick if journal is not None else None

    async def _ask_all(self, nodes: Collection[NodeId]) -> dict[NodeId, NodeStatus]:
        """How the nodes are, by their own account; without those who do not answer."""
        answers = await asyncio.gather(*(self._ask(node) for node in nodes))
        return {
            node: answer
            for node, answer in zip(nodes, answers, strict=True)
            if isinstance(answer, NodeStatus)
        }

    async def _ask(self, node: NodeId) -> object:
        return await self._outsider.request(
            self._topic, node, GetNodeStatus, NodeStatus, PATIENCE_S
        )


def sight_of(
    seen: Inspection,
    unknown: Mapping[NodeId, NodeStatus],
    nodes: Collection[NodeId],
    published: Collection[bytes],
) -> Sight:
    """Judge what was seen, and members to whom no reference leads, such as from a new database."""
    snapshot = _with(seen.snapshot, unknown)
    statuses = {**seen.statuses, **unknown}
    wanted = frozenset(published)
    return Sight(
        portrait=layout(snapshot),
        has_supervisor=True,
        missing=_missing(snapshot, nodes),
        violations=(*violations(snapshot), *publication_violations(seen.snapshot)),
        standings=tuple(_standings(statuses)),
        published=len(wanted),
        complete=_complete(statuses, len(wanted)),
        lost=len(wanted.difference(*_held(seen.snapshot))) if not unknown else 0,
    )


def sight_without_supervisor(
    topic: TopicId,
    database: SupervisorState,
    statuses: Mapping[NodeId, NodeStatus],
    nodes: Collection[NodeId],
    published: Collection[bytes],
) -> Sight:
    """Judge what the nodes say, by the last database that was seen; of publications, by number."""
    recorded = {node for _, node in database.database if node is not None}
    crashed = tuple(sorted(recorded - statuses.keys()))
    nobody = Snapshot(topic=topic, supervisor=database, subscribers={}, crashed=crashed)
    snapshot = _with(nobody, statuses)
    return Sight(
        portrait=layout(snapshot),
        has_supervisor=False,
        missing=_missing(snapshot, nodes),
        violations=(_SILENCE, *violations(snapshot)),
        standings=tuple(_standings(statuses)),
        published=len(published),
        complete=_complete(statuses, len(published)),
        lost=0,  # nobody has said which ones they have
    )


def _with(snapshot: Snapshot, statuses: Mapping[NodeId, NodeStatus]) -> Snapshot:
    """A snapshot with some more nodes, of whose publications nothing is known."""
    states = {node: _state(status) for node, status in statuses.items()}
    return replace(
        snapshot,
        subscribers=dict(sorted({**snapshot.subscribers, **states}.items())),
        crashed=tuple(node for node in snapshot.crashed if node not in states),
    )


def _complete(statuses: Mapping[NodeId, NodeStatus], published: int) -> int:
    """How many members have as much as was published."""
    members = (status for status in statuses.values() if status.member)
    return sum(status.count >= published for status in members)


def _missing(snapshot: Snapshot, nodes: Collection[NodeId]) -> tuple[NodeId, ...]:
    members = {node for node, state in snapshot.subscribers.items() if state.member}
    return tuple(node for node in nodes if node not in members)


def _held(snapshot: Snapshot) -> list[frozenset[bytes]]:
    """The ids of all that each member has."""
    members = (state for state in snapshot.subscribers.values() if state.member)
    return [frozenset(each.id for each in state.publications) for state in members]


def _standings(statuses: Mapping[NodeId, NodeStatus]) -> Iterator[Standing]:
    for node, status in sorted(statuses.items()):
        if status.member:
            root = status.root.hex()[:ROOT_DIGITS]
            yield Standing(node, str(status.label or "-"), status.count, root)


def _state(status: NodeStatus) -> SubscriberState:
    return SubscriberState(
        member=status.member,
        label=status.label,
        left=status.left,
        right=status.right,
        ring=status.ring,
        shortcuts=dict(status.shortcuts),
    )
