"""Readings of a node or supervisor: the values of its metrics, and its readiness.

Call the functions in the thread of the machines. Their cost grows with the topics and connections
of the process, not with its publications.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Final

from skipring.core.effects import Origin
from skipring.core.limits import shown
from skipring.core.messages import SUPERVISOR_REQUESTS
from skipring.core.peers import TopicId
from skipring.core.subscriber import Subscriber
from skipring.net.addresses import supervisor_at
from skipring.net.peer import DialBackResult
from skipring.node.host import NodeHost
from skipring.node.supervisor_host import SupervisorHost
from skipring.observability.clock import LoopPause
from skipring.observability.metrics import HostReadings, Samples
from skipring.wire.rpc import WIRE_TYPES

TOPICS_MAX: Final = 1000  # Limit: a process with more topics does not show each of them.
VERSION: Final = version("skipring")
NOT_STORED: Final = "not stored"  # counted with the drops, and shown as a metric of its own
# Present from the start, so that their growth from 0 is visible.
REQUESTS: Final = (
    *(each.__name__ for each in SUPERVISOR_REQUESTS),
    "FindMembers",
    "ReportUnresponsive",
)
MESSAGES: Final = frozenset(each.__name__ for each in WIRE_TYPES)


def node_readings(node: NodeHost, pause: LoopPause | None = None) -> HostReadings:
    """Read the metrics and the readiness of a node."""
    unready = _node_unready(node)
    topics = node.topics
    samples = _common(node, "node", is_ready=not unready, pause=pause)
    samples |= _topic_samples(sorted(topics)[:TOPICS_MAX], node)
    samples |= _unlabelled(
        skipring_topics=len(topics),
        skipring_topics_left_out=max(0, len(topics) - TOPICS_MAX),
        skipring_commits_total=node.durability.commits,
        skipring_commit_failures_total=node.durability.failures,
        skipring_unwritten_publications=node.durability.unwritten,
        skipring_quarantined_total=node.quarantined,
    )
    return HostReadings(unready, samples)


def supervisor_readings(server: SupervisorHost, pause: LoopPause | None = None) -> HostReadings:
    """Read the metrics and the readiness of a supervisor."""
    unready = _listener_unready(server)
    counts = server.counts
    kinds = dict.fromkeys((*REQUESTS, *sorted(MESSAGES & counts.keys())))
    samples = _common(server, "supervisor", is_ready=not unready, pause=pause)
    samples |= member_samples(server.members())
    samples["skipring_supervisor_requests_total"] = {(kind,): counts[kind] for kind in kinds}
    samples |= _unlabelled(
        skipring_supervisor_evictions_total=counts["evictions"],
        skipring_supervisor_probes_total=counts["probes"],
        skipring_supervisor_suspects=server.suspects,
        skipring_supervisor_store_failures_total=server.links.counts[NOT_STORED],
    )
    return HostReadings(unready, samples)


def member_samples(members: Mapping[TopicId, int]) -> dict[str, Samples]:
    """Return the samples of topics and members: totals, and the TOPICS_MAX largest topics."""
    # Largest first: topics that an outsider invents do not displace those in use.
    largest = sorted(members, key=lambda topic: (-members[topic], topic))[:TOPICS_MAX]
    return {
        "skipring_supervisor_topic_members": {(topic,): members[topic] for topic in largest},
        **_unlabelled(
            skipring_supervisor_topics=len(members),
            skipring_topics_left_out=len(members) - len(largest),
            skipring_supervisor_members=sum(members.values()),
        ),
    }


# -- readiness -------------------------------------------------------------------------------


def _node_unready(node: NodeHost) -> tuple[str, ...]:
    """Return the reasons why a node is not ready; a member works without its supervisor."""
    reasons = [*_listener_unready(node)]
    for topic in node.topics:
        machine = node.machine(topic)
        if machine is None or machine.label is None:
            reasons.append(
                f"no place in the ring of {shown(topic)}: {_why_not_joined(node, topic)}"
            )
        elif (missing := node.incompleteness(topic)) is not None:
            reasons.append(f"{shown(topic)} may be incomplete here: {missing}")
    if node.durability.error is not None:
        reasons.append(f"the newest publications are not on disk: {node.durability.error}")
    return tuple(reasons)


def _why_not_joined(node: NodeHost, topic: TopicId) -> str:
    address = node.supervisor_of(topic)
    if address is None:
        return "no supervisor is known"
    if topic in node.refusals:
        return f"the supervisor at {address} refused the join: {shown(node.refusals[topic])}"
    if not node.links.is_linked(supervisor_at(address)):
        return f"there is no connection to the supervisor at {address}"
    return f"the supervisor at {address} has not answered yet"


def _listener_unready(host: NodeHost | SupervisorHost) -> tuple[str, ...]:
    return () if host.address and not host.links.is_closed else ("not listening",)


# -- metrics ---------------------------------------------------------------------------------


def _common(
    host: NodeHost | SupervisorHost, role: str, *, is_ready: bool, pause: LoopPause | None
) -> dict[str, Samples]:
    """Return the samples that nodes and supervisors have in common."""
    links, ticker, traffic = host.links, host.ticker, host.links.traffic
    drops = sorted(links.counts.keys() - {NOT_STORED})
    samples: dict[str, Samples] = {
        "skipring_build_info": {(VERSION, role): 1},
        "skipring_dropped_total": {(each,): links.counts[each] for each in drops},
        "skipring_dial_backs_total": {
            (each.value,): links.dial_backs.counts[each] for each in DialBackResult
        },
        **_unlabelled(
            skipring_ready=is_ready,
            skipring_ticks_total=ticker.calls,
            skipring_late_ticks_total=ticker.late_calls,
            skipring_tick_lag_seconds=ticker.lag_s,
            skipring_links=len(links.connections),
            skipring_received_bytes_total=traffic["bytes_received"],
            skipring_sent_bytes_total=traffic["bytes_sent"],
            skipring_received_frames_total=traffic["frames_received"],
            skipring_sent_frames_total=traffic["frames_sent"],
            skipring_name_conflicts=len(links.conflicts()),
        ),
    }
    if links.credentials is not None:
        expires = links.credentials.expires.timestamp()
        samples |= _unlabelled(skipring_certificate_expires_timestamp_seconds=expires)
    if pause is not None:
        samples |= _unlabelled(skipring_loop_pause_seconds_max=pause.longest_s)
    return samples


def _topic_samples(topics: list[TopicId], node: NodeHost) -> dict[str, Samples]:
    """Return the samples of a node that have a value for each topic."""
    machines = {topic: machine for topic in topics if (machine := node.machine(topic)) is not None}
    neighbours = {topic: machine.ring_neighbours() for topic, machine in machines.items()}
    is_linked = node.links.is_linked
    return {
        "skipring_joined": {(t,): m.label is not None for t, m in machines.items()},
        "skipring_publications": {(t,): m.replica.log.records for t, m in machines.items()},
        "skipring_ring_neighbours": {(t,): len(found) for t, found in neighbours.items()},
        "skipring_ring_neighbours_linked": {
            (t,): sum(map(is_linked, found)) for t, found in neighbours.items()
        },
        **_terms_samples(machines, node),
        "skipring_supervisor_linked": {(t,): _is_supervised(node, t) for t in machines},
        "skipring_deliveries_total": {
            (t, origin.value): node.logs.trace.count(t, origin)
            for t in machines
            for origin in Origin
        },
    }


def _terms_samples(machines: Mapping[TopicId, Subscriber], node: NodeHost) -> dict[str, Samples]:
    """Return the samples of the topics that have a charter."""
    found = {t: m.replica.retention for t, m in machines.items() if m.replica.retention is not None}
    return {
        "skipring_floor_timestamp_seconds": {
            (t,): each.floors.stamps.rows / 1e6 for t, each in found.items()
        },
        "skipring_trimmed_total": {(t,): node.logs.dropped[t] for t in found},
        "skipring_retention_quarantined": {(t,): len(e.quarantine) for t, e in found.items()},
        "skipring_stale": {(t,): each.is_stale for t, each in found.items()},
        "skipring_clock_off": {(t,): each.clock.is_off for t, each in found.items()},
    }


def _is_supervised(node: NodeHost, topic: TopicId) -> bool:
    address = node.supervisor_of(topic)
    return address is not None and node.links.is_linked(supervisor_at(address))


def _unlabelled(**values: float) -> dict[str, Samples]:
    return {name: {(): value} for name, value in values.items()}
