"""Readings of a node or supervisor: the values of its metrics, and its readiness.

Each value is read when it is requested, in the thread of the machines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Final, Protocol, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from skipring.core.effects import Origin
from skipring.core.peers import NodeId, TopicId
from skipring.core.subscriber import Subscriber
from skipring.errors import StorageError
from skipring.net.addresses import supervisor_at
from skipring.net.dial_back import DialBackResult, DialBacks
from skipring.observability.loop_pause import LoopPause
from skipring.observability.metrics import METRICS, MetricKind
from skipring.security.credentials import Credentials
from skipring.wire.limits import shown
from skipring.wire.rpc import WIRE_TYPES, Address

TOPICS_MAX: Final = 1000  # Limit of ours: of more topics a process does not show each.
VERSION: Final = version("skipring")
NOT_STORED: Final = "not stored"  # counted with what was dropped, but it is not
# Always there, so that one sees them grow from 0.
REQUESTS: Final = (
    "Subscribe",
    "Unsubscribe",
    "GetConfiguration",
    "FindMembers",
    "ReportUnresponsive",
)
MESSAGES: Final = frozenset(each.__name__ for each in WIRE_TYPES)

Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily
Samples: TypeAlias = Iterable[tuple[tuple[str, ...], float]]


class MeasuredLinks(Protocol):
    """What is read of the links of a process."""

    counts: Counter[str]
    bytes_received: int
    bytes_sent: int
    frames_received: int
    frames_sent: int
    is_closed: bool
    dial_backs: DialBacks
    credentials: Credentials | None

    @property
    def connections(self) -> Collection[object]:
        """All connections."""

    def is_linked(self, name: NodeId) -> bool:
        """True if there is a link to somebody, over which both have greeted."""

    def conflicts(self) -> Collection[object]:
        """Return the names that two live processes had lately."""


class MeasuredTicker(Protocol):
    """What is read of the clock."""

    calls: int
    late_calls: int
    lag_s: float


class MeasuredDurability(Protocol):
    """What is read of the commits of a node."""

    commits: int
    failures: int
    error: StorageError | None

    @property
    def unwritten(self) -> int:
        """How many publications are only in memory, though there is a disk."""


class MeasuredHost(Protocol):
    """What is read of any process."""

    address: Address

    @property
    def links(self) -> MeasuredLinks:
        """Its links."""

    @property
    def ticker(self) -> MeasuredTicker:
        """What calls its periodic actions."""


class MeasuredNode(MeasuredHost, Protocol):
    """What is read of a node."""

    @property
    def deliveries(self) -> Counter[tuple[TopicId, Origin]]:
        """How many publications have come, in which topic and how."""

    @property
    def put_aside(self) -> int:
        """How many publications turned out to be spoilt."""

    @property
    def durability(self) -> MeasuredDurability:
        """Its commits."""

    @property
    def refusals(self) -> Mapping[TopicId, str]:
        """Why supervisors do not let it in."""

    @property
    def topics(self) -> Collection[TopicId]:
        """The topics it takes part in."""

    def machine(self, topic: TopicId) -> Subscriber | None:
        """The machine of a topic."""

    def supervisor_of(self, topic: TopicId) -> Address | None:
        """Where the supervisor of a topic is."""

    def incompleteness(self, topic: TopicId) -> str | None:
        """Why it may lack publications that others have, or None."""


class MeasuredSupervisor(MeasuredHost, Protocol):
    """What is read of a supervisor."""

    counts: Counter[str]

    @property
    def suspects(self) -> int:
        """How many members are held for silent."""

    def members(self) -> Mapping[TopicId, int]:
        """How many members each topic has."""


class NodeMeasures:
    """What a node shows of itself."""

    def __init__(self, node: MeasuredNode, pause: LoopPause | None = None) -> None:
        self._node = node
        self._pause = pause

    def readiness(self) -> list[str]:
        """Why the node is not ready, in words; nothing if it is.

        The supervisor may be away: whoever has a place in the ring works without it.
        """
        node = self._node
        reasons = _listening(node)
        for topic in node.topics:
            machine = node.machine(topic)
            if machine is None or machine.label is None:
                reasons.append(f"no place in the ring of {shown(topic)}: {self._why(topic)}")
            elif (why := node.incompleteness(topic)) is not None:
                reasons.append(f"not all of {shown(topic)} is here yet: {why}")
        if node.durability.error is not None:
            reasons.append(f"what came last is not on the disk: {node.durability.error}")
        return reasons

    def _why(self, topic: TopicId) -> str:
        address = self._node.supervisor_of(topic)
        if address is None:
            return "no supervisor is known"
        if topic in self._node.refusals:
            return f"the supervisor at {address} says: {shown(self._node.refusals[topic])}"
        if not self._node.links.is_linked(supervisor_at(address)):
            return f"there is no connection to the supervisor at {address}"
        return f"the supervisor at {address} has not answered yet"

    def metrics(self) -> Iterator[Family]:
        """All metrics with their values."""
        node = self._node
        yield from _of_all(node, "node", is_ready=not self.readiness())
        yield from _of_topics(sorted(node.topics)[:TOPICS_MAX], node)
        yield from _of_loop(self._pause)
        yield _one("skipring_topics", len(node.topics))
        yield _one("skipring_topics_left_out", max(0, len(node.topics) - TOPICS_MAX))
        yield _one("skipring_commits_total", node.durability.commits)
        yield _one("skipring_commit_failures_total", node.durability.failures)
        yield _one("skipring_unwritten_publications", node.durability.unwritten)
        yield _one("skipring_put_aside_total", node.put_aside)


class SupervisorMeasures:
    """What a supervisor shows of itself."""

    def __init__(self, server: MeasuredSupervisor, pause: LoopPause | None = None) -> None:
        self._server = server
        self._pause = pause

    def readiness(self) -> list[str]:
        """Why the supervisor is not ready, in words; nothing if it is."""
        return _listening(self._server)

    def metrics(self) -> Iterator[Family]:
        """All metrics with their values."""
        server, members = self._server, self._server.members()
        kinds = dict.fromkeys((*REQUESTS, *sorted(MESSAGES & server.counts.keys())))
        # The largest: a stranger who makes up topics does not push out those that are used.
        largest = sorted(members, key=lambda topic: (-members[topic], topic))[:TOPICS_MAX]
        yield from _of_all(server, "supervisor", is_ready=not self.readiness())
        yield from _of_loop(self._pause)
        yield _one("skipring_supervisor_topics", len(members))
        yield _one("skipring_topics_left_out", len(members) - len(largest))
        yield _one("skipring_supervisor_members", sum(members.values()))
        yield _family(
            "skipring_supervisor_topic_members", (((topic,), members[topic]) for topic in largest)
        )
        yield _family(
            "skipring_supervisor_requests_total",
            (((kind,), server.counts[kind]) for kind in kinds),
        )
        yield _one("skipring_supervisor_evictions_total", server.counts["evictions"])
        yield _one("skipring_supervisor_probes_total", server.counts["probes"])
        yield _one("skipring_supervisor_suspects", server.suspects)
        yield _one("skipring_supervisor_store_failures_total", server.links.counts[NOT_STORED])


def _listening(host: MeasuredHost) -> list[str]:
    return [] if host.address and not host.links.is_closed else ["not listening"]


def _of_all(host: MeasuredHost, role: str, *, is_ready: bool) -> Iterator[Family]:
    """What nodes and supervisors have in common."""
    links, ticker = host.links, host.ticker
    yield _family("skipring_build_info", [((VERSION, role), 1)])
    yield _one("skipring_ready", is_ready)
    yield _one("skipring_ticks_total", ticker.calls)
    yield _one("skipring_late_ticks_total", ticker.late_calls)
    yield _one("skipring_tick_lag_seconds", ticker.lag_s)
    yield _one("skipring_links", len(links.connections))
    yield _one("skipring_received_bytes_total", links.bytes_received)
    yield _one("skipring_sent_bytes_total", links.bytes_sent)
    yield _one("skipring_received_frames_total", links.frames_received)
    yield _one("skipring_sent_frames_total", links.frames_sent)
    reasons = sorted(links.counts.keys() - {NOT_STORED})
    yield _family("skipring_dropped_total", (((each,), links.counts[each]) for each in reasons))
    yield _family(
        "skipring_dial_backs_total",
        (((each.value,), links.dial_backs.counts[each]) for each in DialBackResult),
    )
    yield _one("skipring_name_conflicts", len(links.conflicts()))
    if links.credentials is not None:
        expires = links.credentials.expires.timestamp()
        yield _one("skipring_certificate_expires_timestamp_seconds", expires)


def _of_loop(pause: LoopPause | None) -> Iterator[Family]:
    if pause is not None:
        yield _one("skipring_loop_pause_seconds_max", pause.longest_s)


def _of_topics(topics: Collection[TopicId], node: MeasuredNode) -> Iterator[Family]:
    """The metrics of a node that have a value for each topic."""
    machines = {topic: machine for topic in topics if (machine := node.machine(topic)) is not None}
    neighbours = {topic: machine.ring_neighbours() for topic, machine in machines.items()}

    def by_topic(name: str, values: Mapping[TopicId, float]) -> Family:
        return _family(name, (((topic,), value) for topic, value in values.items()))

    yield by_topic("skipring_joined", {t: m.label is not None for t, m in machines.items()})
    yield by_topic("skipring_publications", {t: len(m.index()) for t, m in machines.items()})
    yield by_topic("skipring_ring_neighbours", {t: len(found) for t, found in neighbours.items()})
    yield by_topic(
        "skipring_ring_neighbours_linked",
        {t: sum(map(node.links.is_linked, found)) for t, found in neighbours.items()},
    )
    yield by_topic(
        "skipring_supervisor_linked", {topic: _is_supervised(node, topic) for topic in machines}
    )
    yield _family(
        "skipring_deliveries_total",
        (
            ((topic, origin.value), node.deliveries[topic, origin])
            for topic in machines
            for origin in Origin
        ),
    )


def _is_supervised(node: MeasuredNode, topic: TopicId) -> bool:
    address = node.supervisor_of(topic)
    return address is not None and node.links.is_linked(supervisor_at(address))


def _one(name: str, value: float) -> Family:
    return _family(name, [((), value)])


def _family(name: str, samples: Samples) -> Family:
    """A metric of the table, with its values."""
    metric = METRICS[name]
    made = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    family: Family = made(metric.name, metric.meaning, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family
