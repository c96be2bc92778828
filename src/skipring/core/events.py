"""Events: the closed set of inputs of a machine."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.messages import Message, RoutineMessage
from skipring.core.peers import NodeId
from skipring.core.prefix import Prefix
from skipring.core.state import SubscriberState, SupervisorState


class Tick(Struct, frozen=True, gc=False):
    """The paper's Timeout: the machine runs its periodic actions once.

    ``late``: the host was paused for several ticks, so it received nothing from its neighbours.
    """

    late: bool = False
    throttled: bool = False  # the disk cannot keep up: request no more pages of a backfill
    scrubs: bool = True  # False: topics of the process take turns, and this one is not due
    now: int = 0  # wall clock in microseconds since the epoch; 0: no clock
    monotonic: int = 0  # microseconds, unaffected by changes of the wall clock


class Received(Struct, frozen=True, gc=False):
    """Arrival of a message; ``sender`` is None for a message of the initial state."""

    message: Message
    sender: NodeId | None = None
    frame: object = None  # of the host, opaque here: the received bytes
    throttled: bool = False  # as in Tick


class RoutineReceived(Struct, frozen=True, gc=False):
    """Arrival of the routine messages of one tick of ``sender``, handled one after the other."""

    messages: tuple[RoutineMessage, ...]
    sender: NodeId


class SubscribeRequested(Struct, frozen=True, gc=False):
    """Request from the application to join the topic.

    The incarnation is above those of earlier joins of this process (decision 46); 0 in simulations.
    """

    incarnation: int = 0


class UnsubscribeRequested(Struct, frozen=True, gc=False):
    """Request from the application to leave the topic."""


class NodeSuspected(Struct, frozen=True, gc=False):
    """Suspicion by the supervisor's failure detector that ``node`` has crashed (section 3.3).

    For a subscriber that drains: its host cannot reach ``node``.
    """

    node: NodeId


class PublishRequested(Struct, frozen=True, gc=False):
    """Request from the application to publish records; the machine numbers and batches them."""

    records: tuple[BatchRecord, ...]


class SubmitRequested(Struct, frozen=True, gc=False):
    """Request from a client to publish the batches that it has made."""

    batches: tuple[RecordBatch, ...]


class ResendRequested(Struct, frozen=True, gc=False):
    """Request to broadcast the batches of records again: their first broadcast may be lost.

    An id is that of a record or of a batch.
    """

    ids: tuple[bytes, ...]


class Flush(Struct, frozen=True, gc=False):
    """Timer shorter than a tick: the machine sends deferred announcements and answers."""


class Overwritten(Struct, frozen=True, gc=False):
    """Replacement of the state with an arbitrary one (fault injection)."""

    state: SubscriberState | SupervisorState


class IndexRequested(Struct, frozen=True, gc=False):
    """Request to index or hash about ``ids`` publications, for a status request."""

    ids: int


class Corrupted(Struct, frozen=True, gc=False):
    """Corruption of some digests of the trie (fault injection)."""

    digests: dict[Prefix, bytes]


class SyncRequested(Struct, frozen=True, gc=False):
    """Request to ask the ring neighbours whether their tries equal this node's (T19)."""


class DrainRequested(Struct, frozen=True, gc=False):
    """Request to hand publications over to a remaining member before leaving.

    The node hands over ``ids`` first, then all other publications if ``everything`` is True.
    """

    ids: tuple[bytes, ...] = ()
    everything: bool = True


class ReplicationRequested(Struct, frozen=True, gc=False):
    """Request to ask nodes to confirm that they hold publications."""

    ids: tuple[bytes, ...]
    nodes: tuple[NodeId, ...]


Event: TypeAlias = (
    Tick
    | Received
    | RoutineReceived
    | SubscribeRequested
    | UnsubscribeRequested
    | NodeSuspected
    | PublishRequested
    | SubmitRequested
    | ResendRequested
    | Flush
    | Overwritten
    | IndexRequested
    | Corrupted
    | SyncRequested
    | DrainRequested
    | ReplicationRequested
)
