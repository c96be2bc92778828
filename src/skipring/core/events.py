"""Events: the closed set of inputs of a machine."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from skipring.core.messages import Message
from skipring.core.peers import NodeId
from skipring.core.publications import Encoded, Publication


class Tick(Struct, frozen=True, gc=False):
    """The paper's Timeout: run the periodic actions once."""


class Received(Struct, frozen=True, gc=False):
    """A message has arrived; the sender is unknown for what was in a channel from the start."""

    message: Message
    sender: NodeId | None = None


class SubscribeRequested(Struct, frozen=True, gc=False):
    """The application wants this node to be a member of the topic."""


class UnsubscribeRequested(Struct, frozen=True, gc=False):
    """The application wants this node to leave the topic."""


class NodeSuspected(Struct, frozen=True, gc=False):
    """The supervisor's failure detector holds ``node`` for crashed (section 3.3).

    For a subscriber that drains: its host cannot reach ``node``.
    """

    node: NodeId


class PublishRequested(Struct, frozen=True, kw_only=True, gc=False):
    """The application publishes; ``publisher`` and ``seq`` together name another publisher."""

    payload: bytes
    time: int = 0
    key: bytes | None = None
    headers: dict[str, str] = {}
    publisher: NodeId | None = None
    seq: int | None = None


class PublishManyRequested(Struct, frozen=True, gc=False):
    """The application publishes several at once."""

    requests: tuple[PublishRequested, ...]


class HistoryRead(Struct, frozen=True, gc=False):
    """The host has read publications from a neighbour's store; none: it has read all there are.

    With them come the ids under which they are stored there: what has another one is spoilt. And,
    if the host has them so, the publications as they are stored.
    """

    publications: tuple[Publication, ...]
    ids: bytes = b""  # one behind the other
    encoded: Encoded | None = None
    is_awaited: bool = False  # nothing was read yet, but the host has begun to ask


class Flush(Struct, frozen=True, gc=False):
    """Say what was put off: the ids for lazy edges; more often than a tick, less than at once."""


class SyncRequested(Struct, frozen=True, gc=False):
    """The application wants to know whether the ring neighbours have all that we have (T19)."""


class DrainRequested(Struct, frozen=True, gc=False):
    """The application is about to leave: hand publications over to a remaining member first.

    These ids first, and then everything that is held, if it is to be.
    """

    ids: tuple[bytes, ...] = ()
    everything: bool = True


class CompletenessRequested(Struct, frozen=True, gc=False):
    """The application wants a neighbour to hand over everything that we lack (decision 0049)."""


class ReplicationRequested(Struct, frozen=True, gc=False):
    """The application wants some nodes to confirm that they hold publications."""

    ids: tuple[bytes, ...]
    nodes: tuple[NodeId, ...]


Event: TypeAlias = (
    Tick
    | Received
    | SubscribeRequested
    | UnsubscribeRequested
    | NodeSuspected
    | PublishRequested
    | PublishManyRequested
    | HistoryRead
    | Flush
    | SyncRequested
    | DrainRequested
    | CompletenessRequested
    | ReplicationRequested
)
