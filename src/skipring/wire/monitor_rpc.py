"""Requests and responses for monitoring.

The tags continue those of ``rpc`` and are part of the wire format: never reuse one.
"""

from __future__ import annotations

from msgspec import Struct

from skipring.core.messages import Number
from skipring.core.peers import NodeId, TopicId


class GetSupervisorStatus(Struct, frozen=True, array_like=True, gc=False, tag=87):
    """Request for the status and topics of a supervisor; answered by SupervisorStatus.

    It concerns the supervisor, whatever the topic of the envelope. ``start`` counts topics.
    """

    request: Number
    start: Number


class TopicStatus(Struct, frozen=True, array_like=True, gc=False):
    """Topic of a supervisor: its members, and the protocol's requests about it since the start.

    It has no number of publications, because the supervisor does not know it.
    """

    topic: TopicId
    members: int
    requests: int


class SupervisorStatus(Struct, frozen=True, array_like=True, gc=False, tag=88):
    """State of a supervisor, and its topics sorted by name; the rest starts at ``next``.

    ``ticks`` counts its ticks, ``suspects`` the currently suspected members, ``evictions`` the
    evicted ones.
    """

    request: Number
    ticks: Number
    suspects: Number
    evictions: Number
    total: Number
    next: Number | None
    topics: tuple[TopicStatus, ...]


class FetchArrivals(Struct, frozen=True, array_like=True, gc=False, tag=89):
    """Request for publications that reached a node ``since`` a number; answered by ArrivalPage.

    A node records arrivals only while clients request them regularly.
    """

    request: Number
    since: Number


class Arrival(Struct, frozen=True, array_like=True, gc=False):
    """Arrival of a message with publications, or a publication of the node itself.

    It arrived at ``time`` (microseconds since the epoch) from ``sender`` over ``hops`` hops;
    ``origin`` is a place in ``Origin``. ``fresh`` of its ``count`` publications were new.
    ``publisher``, ``seq`` and ``published``, its time, identify the first of them.
    """

    time: int
    sender: NodeId | None
    hops: int
    origin: int
    count: int
    fresh: int
    publisher: NodeId
    seq: int
    published: int


class ArrivalPage(Struct, frozen=True, array_like=True, gc=False, tag=90):
    """Recorded arrivals in order; ``next`` is the number to continue with."""

    request: Number
    next: Number
    arrivals: tuple[Arrival, ...]
