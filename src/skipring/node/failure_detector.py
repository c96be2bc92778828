"""Failure detector (section 3.3): neighbours report, the supervisor pings and decides.

In a legitimate ring it costs nothing, because neighbours exchange messages every interval. A node
reports a neighbour that has been silent for some ticks. The supervisor pings the accused node and
evicts it if it does not answer; more reports lead to an earlier eviction. A wrong eviction is
harmless: the evicted node subscribes again. Time is counted in ticks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from skipring.core.peers import SUPERVISOR, NodeId, TopicId

# Simulated at n = 1000 under harsh pauses: one crash is noticed in 11 intervals, at 6 to 7 messages
# an interval.
SILENT_TICKS: Final = 3
EVICTION_TICKS: Final = 9  # with two accusers
LONE_EVICTION_TICKS: Final = 18  # with one
PROBES_PER_TICK: Final = 8
REPORTS_PER_TICK: Final = 64
FORGET_TICKS: Final = 6  # an accusation expires this long after its last report


class NeighbourWatch:
    """Ring neighbours of one node, each with the number of ticks since its last message."""

    def __init__(self) -> None:
        self._silent: dict[tuple[TopicId, NodeId], int] = {}
        self._heard: set[tuple[TopicId, NodeId]] = set()

    def on_heard(self, topic: TopicId, node: NodeId) -> None:
        """Record a message from a node in a topic."""
        self._heard.add((topic, node))

    def silent_ticks(self, topic: TopicId) -> dict[NodeId, int]:
        """Return the silent ring neighbours, each with its number of silent ticks."""
        return {
            node: ticks
            for (watched, node), ticks in self._silent.items()
            if watched == topic and ticks and (watched, node) not in self._heard
        }

    def tick(
        self, neighbours: Iterable[tuple[TopicId, NodeId]], *, is_late: bool
    ) -> list[tuple[TopicId, NodeId]]:
        """Count one tick; return the neighbours to report, none if this node's tick was late."""
        before, heard = self._silent, self._heard
        self._silent, self._heard = {}, set()
        if is_late:
            return []
        for watched in neighbours:
            self._silent[watched] = 0 if watched in heard else before.get(watched, 0) + 1
        return [watched for watched, ticks in self._silent.items() if ticks >= SILENT_TICKS]


class _Case(Struct):
    """Accusation of one node in one topic."""

    since: int
    newest: int
    accusers: set[NodeId]
    probed: int = 0  # the tick after the last probe


class FailureDetector:
    """Failure detector of the supervisor."""

    def __init__(self) -> None:
        self._ticks = 0
        self._reports_left = REPORTS_PER_TICK
        self._cases: dict[NodeId, dict[TopicId, _Case]] = {}
        self._unanswered: dict[NodeId, dict[TopicId, int]] = {}  # since which tick

    def expect(self, topic: TopicId, node: NodeId) -> None:
        """Expect an acknowledgement of the configuration that was sent to a node.

        This detects the crash of a member without live neighbours: the supervisor sends
        configurations to all members in turn anyway.
        """
        self._unanswered.setdefault(node, {}).setdefault(topic, self._ticks)

    def report(self, topic: TopicId, node: NodeId, accuser: NodeId) -> None:
        """Record a report that a node is unresponsive, within the budget of this tick."""
        if self._reports_left > 0 and node != accuser:
            self._reports_left -= 1
            self._accuse(topic, node, accuser)

    def _accuse(self, topic: TopicId, node: NodeId, accuser: NodeId) -> None:
        cases = self._cases.setdefault(node, {})
        if topic not in cases:
            cases[topic] = _Case(self._ticks, self._ticks, set())
        cases[topic].newest = self._ticks
        cases[topic].accusers.add(accuser)

    def on_heard(self, node: NodeId) -> None:
        """Drop all accusations of a node after any message from it."""
        self._cases.pop(node, None)
        self._unanswered.pop(node, None)

    def tick(self) -> None:
        """Count one tick; accuse nodes without acknowledgement and drop old accusations."""
        self._ticks += 1
        self._reports_left = REPORTS_PER_TICK
        for node, topics in self._unanswered.items():
            for topic, since in topics.items():
                if self._ticks - since >= SILENT_TICKS:
                    self._accuse(topic, node, SUPERVISOR)
        for topic, node, case in self._all():
            if self._ticks - case.newest > FORGET_TICKS:
                self._close(topic, node)

    def to_probe(self) -> list[tuple[TopicId, NodeId]]:
        """Return the accused nodes to ping now: all in turn, at most PROBES_PER_TICK."""
        in_turn = sorted(self._all(), key=lambda found: (found[2].probed, found[2].since))
        for _, _, case in in_turn[:PROBES_PER_TICK]:
            case.probed = self._ticks + 1
        return [(topic, node) for topic, node, _ in in_turn[:PROBES_PER_TICK]]

    def pop_evictions(self) -> Iterator[tuple[TopicId, NodeId]]:
        """Yield the nodes that were accused for too long, and close their cases."""
        for topic, node, case in self._all():
            patience = EVICTION_TICKS if len(case.accusers) > 1 else LONE_EVICTION_TICKS
            if self._ticks - case.since >= patience:
                self._close(topic, node)
                yield topic, node

    @property
    def suspects(self) -> int:
        """Return the number of accused nodes, summed over topics."""
        return sum(map(len, self._cases.values()))

    def _all(self) -> list[tuple[TopicId, NodeId, _Case]]:
        return [
            (topic, node, case)
            for node, cases in self._cases.items()
            for topic, case in cases.items()
        ]

    def _close(self, topic: TopicId, node: NodeId) -> None:
        for kept in (self._cases, self._unanswered):
            topics = kept.get(node)
            if topics is not None:
                topics.pop(topic, None)
                if not topics:
                    del kept[node]
