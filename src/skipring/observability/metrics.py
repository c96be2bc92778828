"""Metrics of live processes: name, type, meaning and alarm threshold of each.

One table serves the code that reads the values, the docs and their tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct


class MetricKind(StrEnum):
    """Type of a metric."""

    COUNTER = "counter"  # increases from 0 at the start of the process
    GAUGE = "gauge"  # increases and decreases


class Metric(Struct, frozen=True):
    """One exported metric."""

    name: str
    kind: MetricKind
    meaning: str
    labels: tuple[str, ...] = ()
    alarm: str = ""  # when an operator should check; empty: it explains other metrics


Samples = Mapping[tuple[str, ...], float]  # values by label values, in the order of the labels


class HostReadings(Struct, frozen=True):
    """State of a host at one moment: its metrics, and the reasons why it is not ready."""

    unready: tuple[str, ...] = ()
    samples: Mapping[str, Samples] = {}  # by the names of metrics


OF_ALL: Final = (
    Metric(
        "skipring_build_info",
        MetricKind.GAUGE,
        "Always 1; the version of skipring, and whether this is a node or a supervisor.",
        ("version", "role"),
    ),
    Metric(
        "skipring_ready",
        MetricKind.GAUGE,
        "1 if /readyz answers 200: a node has a place in the ring of every topic, has everything "
        "that a neighbour had, and can store.",
        alarm="0 for 5 minutes",
    ),
    Metric(
        "skipring_ticks_total",
        MetricKind.COUNTER,
        "Ticks since the start of the process.",
        alarm="does not grow for 1 minute",
    ),
    Metric(
        "skipring_late_ticks_total",
        MetricKind.COUNTER,
        "Ticks that began more than an interval late: the process or its machine was stuck.",
        alarm="grows for 5 minutes: too little CPU, or too short a tick",
    ),
    Metric(
        "skipring_tick_lag_seconds",
        MetricKind.GAUGE,
        "Delay of the last tick.",
        alarm="above the tick for 5 minutes",
    ),
    Metric(
        "skipring_loop_pause_seconds_max",
        MetricKind.GAUGE,
        "Longest time since the start for which the event loop was busy or blocked, accurate to a "
        "quarter of a tick; waiting for a processor does not count if the system reports it.",
        alarm="above 1: requests and ticks wait",
    ),
    Metric(
        "skipring_links",
        MetricKind.GAUGE,
        "Connections open to other processes, in either direction.",
        alarm="near 4096: further connections are refused",
    ),
    Metric(
        "skipring_received_bytes_total",
        MetricKind.COUNTER,
        "Bytes received over connections, without the overhead of TLS.",
    ),
    Metric(
        "skipring_sent_bytes_total",
        MetricKind.COUNTER,
        "Bytes sent over connections, without the overhead of TLS.",
    ),
    Metric(
        "skipring_received_frames_total",
        MetricKind.COUNTER,
        "Messages received over connections.",
    ),
    Metric(
        "skipring_sent_frames_total",
        MetricKind.COUNTER,
        "Messages sent over connections.",
    ),
    Metric(
        "skipring_dropped_total",
        MetricKind.COUNTER,
        "Messages dropped and connections refused, by reason; repair delivers lost publications.",
        ("reason",),
        alarm="FramingError, HandshakeError, MessageError, no certificate or bad certificate "
        "grows: other programs or versions connect; queue full grows for 5 minutes: a peer is too "
        "slow",
    ),
    Metric(
        "skipring_dial_backs_total",
        MetricKind.COUNTER,
        "Dials to addresses that were not proven, by result: proven, failed or limited.",
        ("result",),
        alarm="failed or limited grows for 5 minutes: a member claims wrong addresses",
    ),
    Metric(
        "skipring_name_conflicts",
        MetricKind.GAUGE,
        "Names that two live processes have claimed recently, as seen by this process.",
        alarm="above 0: a data directory was copied, or two processes have the same name",
    ),
    Metric(
        "skipring_certificate_expires_timestamp_seconds",
        MetricKind.GAUGE,
        "End of the certificate of this process; missing without a certificate.",
        alarm="less than 14 days away",
    ),
    Metric(
        "skipring_topics_left_out",
        MetricKind.GAUGE,
        "Topics that are not exported separately, because the process has too many.",
    ),
)

OF_NODES: Final = (
    Metric(
        "skipring_topics",
        MetricKind.GAUGE,
        "Topics of this node.",
    ),
    Metric(
        "skipring_joined",
        MetricKind.GAUGE,
        "1 if this node has a place in the ring of the topic.",
        ("topic",),
        alarm="0 for 5 minutes: is the supervisor of the topic up?",
    ),
    Metric(
        "skipring_publications",
        MetricKind.GAUGE,
        "Publications of the topic that are stored here.",
        ("topic",),
        alarm="differs between nodes for 5 minutes while nothing is published",
    ),
    Metric(
        "skipring_deliveries_total",
        MetricKind.COUNTER,
        "Publications stored, by origin: own, spread (broadcast by a neighbour) or repair "
        "(missing here and fetched from a neighbour).",
        ("topic", "origin"),
        alarm="most arrive by repair for 10 minutes: broadcast does not work; see "
        "skipring_dropped_total",
    ),
    Metric(
        "skipring_ring_neighbours",
        MetricKind.GAUGE,
        "Ring neighbours in the topic: 2, or 1 in a ring of two, or 0 alone.",
        ("topic",),
        alarm="0 for 5 minutes although the topic has other members",
    ),
    Metric(
        "skipring_ring_neighbours_linked",
        MetricKind.GAUGE,
        "Ring neighbours in the topic that are connected.",
        ("topic",),
        alarm="below skipring_ring_neighbours for 5 minutes: the network blocks some connections",
    ),
    Metric(
        "skipring_supervisor_linked",
        MetricKind.GAUGE,
        "1 if the supervisor of the topic is connected; only joining needs it.",
        ("topic",),
        alarm="0 for 5 minutes: no node can join, and crashed nodes stay in the ring",
    ),
    Metric(
        "skipring_commits_total",
        MetricKind.COUNTER,
        "Group commits to the disk.",
    ),
    Metric(
        "skipring_commit_failures_total",
        MetricKind.COUNTER,
        "Failed commits; their publications stay in memory for the next commit.",
        alarm="grows: is the disk full, or broken?",
    ),
    Metric(
        "skipring_unwritten_publications",
        MetricKind.GAUGE,
        "Publications only in memory until the next commit; always 0 without a data directory.",
        alarm="above 0 for 1 minute: the disk is too slow, or full",
    ),
    Metric(
        "skipring_quarantined_total",
        MetricKind.COUNTER,
        "Stored publications found damaged or missing, also at the start; neighbours send them.",
        alarm="grows: the disk or the memory of this machine is failing",
    ),
)

OF_SUPERVISORS: Final = (
    Metric(
        "skipring_supervisor_topics",
        MetricKind.GAUGE,
        "Topics with members at this supervisor.",
    ),
    Metric(
        "skipring_supervisor_members",
        MetricKind.GAUGE,
        "Members of all topics; a node counts once for each topic it is in.",
        alarm="falls by a third within 10 minutes while no node is stopped",
    ),
    Metric(
        "skipring_supervisor_topic_members",
        MetricKind.GAUGE,
        "Members of the topic; exported for the largest topics only.",
        ("topic",),
        alarm="below the number of nodes you run for 5 minutes",
    ),
    Metric(
        "skipring_supervisor_requests_total",
        MetricKind.COUNTER,
        "Messages received, by type; a healthy ring sends a few in each tick.",
        ("type",),
        alarm="grows by more than 10 a tick and topic for 10 minutes: a ring stays degraded",
    ),
    Metric(
        "skipring_supervisor_evictions_total",
        MetricKind.COUNTER,
        "Members evicted as crashed; a live one rejoins.",
        alarm="grows while no node is stopped: nodes are stuck, or cannot be reached",
    ),
    Metric(
        "skipring_supervisor_probes_total",
        MetricKind.COUNTER,
        "Pings sent to suspected members.",
    ),
    Metric(
        "skipring_supervisor_suspects",
        MetricKind.GAUGE,
        "Members that a ring neighbour has reported as unresponsive, silent since then.",
        alarm="above 0 for 5 minutes",
    ),
    Metric(
        "skipring_supervisor_store_failures_total",
        MetricKind.COUNTER,
        "Failed writes of the database; the members restore a lost database.",
        alarm="grows: is the disk full?",
    ),
)

METRICS: Final = {each.name: each for each in (*OF_ALL, *OF_NODES, *OF_SUPERVISORS)}


def metrics_page() -> str:
    """Return the tables of the docs, in Markdown."""
    parts = {
        "Of nodes and supervisors": OF_ALL,
        "Of nodes": OF_NODES,
        "Of supervisors": OF_SUPERVISORS,
    }
    return "\n".join(line for title, part in parts.items() for line in _table(title, part))


def _table(title: str, metrics: Iterable[Metric]) -> Iterator[str]:
    yield from (
        f"### {title}",
        "",
        "| metric | type | meaning | check when |",
        "|---|---|---|---|",
    )
    for each in metrics:
        labels = f" by {', '.join(each.labels)}" if each.labels else ""
        yield f"| `{each.name}` | {each.kind}{labels} | {each.meaning} | {each.alarm} |"
    yield ""
