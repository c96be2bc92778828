"""Metrics of live processes: name, type, meaning and alarm threshold of each.

One table serves the code that reads the values, the docs and their tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from typing import Final

from msgspec import Struct


class MetricKind(StrEnum):
    """Type of a metric."""

    COUNTER = "counter"  # increases from 0 at the start of the process
    GAUGE = "gauge"  # increases and decreases


class Metric(Struct, frozen=True):
    """One exported metric."""

    kind: MetricKind
    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    alarm: str = ""  # when an operator should check; empty: it explains other metrics


Samples = Mapping[tuple[str, ...], float]  # values by label values, in the order of the labels


class HostReadings(Struct, frozen=True):
    """State of a host at one moment: its metrics, and the reasons why it is not ready."""

    unready: tuple[str, ...] = ()
    samples: Mapping[str, Samples] = {}  # by the names of metrics


_counter: Final = partial(Metric, MetricKind.COUNTER)
_gauge: Final = partial(Metric, MetricKind.GAUGE)

OF_ALL: Final = (
    _gauge(
        "skipring_build_info",
        "Always 1; the version of skipring, and whether this is a node or a supervisor.",
        ("version", "role"),
    ),
    _gauge(
        "skipring_ready",
        "1 if /readyz answers 200: a node has a place in the ring of every topic, has everything "
        "that a neighbour had, and can store.",
        alarm="0 for 5 minutes",
    ),
    _counter(
        "skipring_ticks_total",
        "Ticks since the start of the process.",
        alarm="does not grow for 1 minute",
    ),
    _counter(
        "skipring_late_ticks_total",
        "Ticks that began more than an interval late: the process or its machine was stuck.",
        alarm="grows for 5 minutes: too little CPU, or too short a tick",
    ),
    _gauge(
        "skipring_tick_lag_seconds", "Delay of the last tick.", alarm="above the tick for 5 minutes"
    ),
    _gauge(
        "skipring_loop_pause_seconds_max",
        "Longest time since the start for which the event loop was busy or blocked, accurate to a "
        "quarter of a tick; waiting for a processor does not count if the system reports it.",
        alarm="above 1: requests and ticks wait",
    ),
    _gauge(
        "skipring_links",
        "Connections open to other processes, in either direction.",
        alarm="near 4096: further connections are refused",
    ),
    _counter(
        "skipring_received_bytes_total",
        "Bytes received over connections, without the overhead of TLS.",
    ),
    _counter(
        "skipring_sent_bytes_total", "Bytes sent over connections, without the overhead of TLS."
    ),
    _counter("skipring_received_frames_total", "Messages received over connections."),
    _counter("skipring_sent_frames_total", "Messages sent over connections."),
    _counter(
        "skipring_dropped_total",
        "Messages dropped and connections refused, by reason; repair delivers lost publications.",
        ("reason",),
        alarm="FramingError, HandshakeError, MessageError, no certificate or bad certificate "
        "grows: other programs or versions connect; queue full grows for 5 minutes: a peer is too "
        "slow",
    ),
    _counter(
        "skipring_dial_backs_total",
        "Dials to addresses that were not proven, by result: proven, failed or limited.",
        ("result",),
        alarm="failed or limited grows for 5 minutes: a member claims wrong addresses",
    ),
    _gauge(
        "skipring_name_conflicts",
        "Names that two live processes have claimed recently, as seen by this process.",
        alarm="above 0: a data directory was copied, or two processes have the same name",
    ),
    _gauge(
        "skipring_certificate_expires_timestamp_seconds",
        "End of the certificate of this process; missing without a certificate.",
        alarm="less than 14 days away",
    ),
    _gauge(
        "skipring_topics_left_out",
        "Topics that are not exported separately, because the process has too many.",
    ),
)

OF_NODES: Final = (
    _gauge("skipring_topics", "Topics of this node."),
    _gauge(
        "skipring_joined",
        "1 if this node has a place in the ring of the topic.",
        ("topic",),
        alarm="0 for 5 minutes: is the supervisor of the topic up?",
    ),
    _gauge(
        "skipring_publications",
        "Publications of the topic that are stored here.",
        ("topic",),
        alarm="differs between nodes for 5 minutes while nothing is published",
    ),
    _counter(
        "skipring_deliveries_total",
        "Publications stored, by origin: own, spread (broadcast by a neighbour) or repair "
        "(missing here and fetched from a neighbour).",
        ("topic", "origin"),
        alarm="most arrive by repair for 10 minutes: broadcast does not work; see "
        "skipring_dropped_total",
    ),
    _gauge(
        "skipring_ring_neighbours",
        "Ring neighbours in the topic: 2, or 1 in a ring of two, or 0 alone.",
        ("topic",),
        alarm="0 for 5 minutes although the topic has other members",
    ),
    _gauge(
        "skipring_ring_neighbours_linked",
        "Ring neighbours in the topic that are connected.",
        ("topic",),
        alarm="below skipring_ring_neighbours for 5 minutes: the network blocks some connections",
    ),
    _gauge(
        "skipring_supervisor_linked",
        "1 if the supervisor of the topic is connected; only joining needs it.",
        ("topic",),
        alarm="0 for 5 minutes: no node can join, and crashed nodes stay in the ring",
    ),
    _gauge(
        "skipring_floor_timestamp_seconds",
        "Time below which the topic retains nothing; 0 without a limit.",
        ("topic",),
    ),
    _counter(
        "skipring_trimmed_total",
        "Publications that the policy of the topic has removed here.",
        ("topic",),
    ),
    _gauge(
        "skipring_retention_quarantined",
        "Batches in quarantine: their times are in the future, or only a stale node had them.",
        ("topic",),
        alarm="above 0 for 1 hour: run doctor",
    ),
    _gauge(
        "skipring_stale",
        "1 if the node was away for longer than deletions are remembered.",
        ("topic",),
        alarm="1 for 1 hour",
    ),
    _gauge(
        "skipring_clock_off",
        "1 if the clock of the node differs from those of both ring neighbours.",
        ("topic",),
        alarm="1 for 5 minutes: set the clock",
    ),
    _counter("skipring_commits_total", "Group commits to the disk."),
    _counter(
        "skipring_commit_failures_total",
        "Failed commits; their publications stay in memory for the next commit.",
        alarm="grows: is the disk full, or broken?",
    ),
    _gauge(
        "skipring_unwritten_publications",
        "Publications only in memory until the next commit; always 0 without a data directory.",
        alarm="above 0 for 1 minute: the disk is too slow, or full",
    ),
    _counter(
        "skipring_quarantined_total",
        "Stored publications found damaged or missing, also at the start; neighbours send them.",
        alarm="grows: the disk or the memory of this machine is failing",
    ),
)

OF_SUPERVISORS: Final = (
    _gauge("skipring_supervisor_topics", "Topics with members at this supervisor."),
    _gauge(
        "skipring_supervisor_members",
        "Members of all topics; a node counts once for each topic it is in.",
        alarm="falls by a third within 10 minutes while no node is stopped",
    ),
    _gauge(
        "skipring_supervisor_topic_members",
        "Members of the topic; exported for the largest topics only.",
        ("topic",),
        alarm="below the number of nodes you run for 5 minutes",
    ),
    _counter(
        "skipring_supervisor_requests_total",
        "Messages received, by type; a healthy ring sends a few in each tick.",
        ("type",),
        alarm="grows by more than 10 a tick and topic for 10 minutes: a ring stays degraded",
    ),
    _counter(
        "skipring_supervisor_evictions_total",
        "Members evicted as crashed; a live one rejoins.",
        alarm="grows while no node is stopped: nodes are stuck, or cannot be reached",
    ),
    _counter("skipring_supervisor_probes_total", "Pings sent to suspected members."),
    _gauge(
        "skipring_supervisor_suspects",
        "Members that a ring neighbour has reported as unresponsive, silent since then.",
        alarm="above 0 for 5 minutes",
    ),
    _counter(
        "skipring_supervisor_store_failures_total",
        "Failed writes of the database; the members restore a lost database.",
        alarm="grows: is the disk full?",
    ),
)

METRICS: Final = {each.name: each for each in (*OF_ALL, *OF_NODES, *OF_SUPERVISORS)}
