"""Requests and responses for monitoring.

The tags continue those of ``rpc`` and are part of the wire format: never reuse one.
"""

from __future__ import annotations

from msgspec import Struct

from skipring.core.peers import NodeId, TopicId


class GetSupervisorStatus(Struct, frozen=True, array_like=True, gc=False, tag=87):
    """Ask a supervisor how it fares and for its topics; answered by SupervisorStatus.

    It is about the supervisor, whatever the topic of the envelope. ``start`` counts topics.
    """

    request: int
    start: int


class TopicStatus(Struct, frozen=True, array_like=True, gc=False):
    """A topic of a supervisor: its members, and the protocol's requests about it since the start.

    The supervisor says nothing of publications, of which it knows nothing.
    """

    topic: TopicId
    members: int
    requests: int


class SupervisorStatus(Struct, frozen=True, array_like=True, gc=False, tag=88):
    """How a supervisor fares, and its topics in the order of their names; the rest from ``next``.

    It has had so many ``ticks``, holds so many members for ``suspects`` and has evicted some.
    """

    request: int
    ticks: int
    suspects: int
    evictions: int
    total: int
    next: int | None
    topics: tuple[TopicStatus, ...]


class FetchArrivals(Struct, frozen=True, array_like=True, gc=False, tag=89):
    """Ask a node which publications have come to it ``since`` a number; answered by ArrivalPage.

    A node notes arrivals only while somebody asks for them now and then.
    """

    request: int
    since: int


class Arrival(Struct, frozen=True, array_like=True, gc=False):
    """A message with publications has come, or the node has published itself.

    It came at ``time`` (microseconds since the epoch) from ``sender`` over so many ``hops``, in a
    way that is a place in ``Origin``; ``fresh`` of its ``count`` publications were new. The first
    of them is named by its publisher and number, and was ``published`` then.
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
    """What has come, in order, as far as it is remembered; the rest has the number ``next``."""

    request: int
    next: int
    arrivals: tuple[Arrival, ...]
