"""Effects: a closed set of requests from a machine to its host, applied in order."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.log import Log
from skipring.core.messages import GetConfiguration, Message
from skipring.core.peers import SUPERVISOR, NodeId


class Send(Struct, frozen=True, gc=False):
    """Message for the channel of ``to``."""

    to: NodeId
    message: Message


class Unsubscribed(Struct, frozen=True, gc=False):
    """Permission from the supervisor to leave: the host may remove the machine (section 4)."""


class Origin(StrEnum):
    """Route by which a publication reaches a node."""

    OWN = "own"
    SPREAD = "spread"  # as new, over the tree or a flood (section 4.3)
    REPAIR = "repair"  # by anti-entropy (section 4.2), backfill or handover

    __hash__ = str.__hash__  # Enum.__hash__ is slower, and each delivery needs it


class Store(Struct, frozen=True, gc=False):
    """Batches to append to the log from ``offset`` on, before any later effect is sent."""

    offset: int
    batches: tuple[RecordBatch, ...]
    size_bytes: int = 0  # approximate size in a message


class Discard(Struct, frozen=True, gc=False):
    """Corrupt or duplicate batch at an offset, to quarantine (T12)."""

    offset: int


class Drop(Struct, frozen=True, gc=False):
    """Batches that the topic does not retain: those that end below ``low``, and single ones."""

    low: int
    offsets: tuple[int, ...] = ()

    def apply(self, log: Log) -> int:
        """Drop the batches from a log; return the number of records. The host calls this."""
        return log.trim(self.low) + sum([log.remove(offset) for offset in self.offsets])


class SaveTerms(Struct, frozen=True, gc=False):
    """Bytes to keep beside the log (``Log.terms``), and the policy's limit on bytes, or None."""

    terms: bytes
    max_bytes: int | None

    def apply(self, log: Log) -> int:
        """Save the terms durably with the next commit; return 0. The host calls this."""
        log.save_terms(self.terms)
        log.limit_segments(self.max_bytes)
        return 0


class Deliver(Struct, frozen=True, gc=False):
    """Batches for the application, at consecutive offsets from ``offset`` to before ``end``.

    ``records`` has the decoded records of each batch; none for an opaque batch.
    """

    batches: tuple[RecordBatch, ...]
    records: tuple[tuple[BatchRecord, ...], ...]
    offset: int
    end: int
    origin: Origin
    hops: int


class Rejected(Struct, frozen=True, gc=False):
    """Number of received batches that were dropped, because their id or body is invalid."""

    count: int


class PeerInSync(Struct, frozen=True, gc=False):
    """Confirmation that the trie of ``node`` has the same root as this node's (T19)."""

    node: NodeId
    root: bytes


class SendSynced(Struct, frozen=True, gc=False):
    """Message to send once everything stored so far is on disk; the host commits early for it.

    A host without a disk sends it at once.
    """

    to: NodeId
    message: Message


class HeldBy(Struct, frozen=True, gc=False):
    """Confirmation from a member that it holds the publications with these ids (decision 0049)."""

    node: NodeId
    ids: tuple[bytes, ...]
    durable: bool  # on its disk, not only in memory


class Drained(Struct, frozen=True, gc=False):
    """End of a drain: ``node`` has confirmed everything, or no receiver remains (None)."""

    node: NodeId | None
    absent: bool = False  # receivers remain, but none of them is reachable


class Backfilled(Struct, frozen=True, gc=False):
    """End of a backfill: the host commits the stored publications early."""


class Evicted(Struct, frozen=True, gc=False):
    """Removal of a member by the supervisor's failure detector (section 3.3)."""

    node: NodeId


Effect: TypeAlias = (
    Send
    | Unsubscribed
    | Store
    | Discard
    | Drop
    | SaveTerms
    | Deliver
    | Rejected
    | PeerInSync
    | SendSynced
    | HeldBy
    | Drained
    | Backfilled
    | Evicted
)


class Outbox(list[Effect]):
    """Effects of one event, in order."""

    __slots__ = ()

    def send(self, to: NodeId, message: Message) -> None:
        """Send ``message`` to a node."""
        self.append(Send(to, message))

    def request_configuration(self, about: NodeId) -> None:
        """Ask the supervisor to send ``about`` its configuration."""
        self.append(Send(SUPERVISOR, GetConfiguration(about)))
