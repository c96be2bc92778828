"""Publications of other nodes, messages about them, and a node with label 01 in a ring of 16.

The node is ``m``. Its parent in the tree is a@0, its children are j@0011 and k@0101; its other
neighbours, b@1, e@001 and f@011, are not beside it in the tree.
"""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from skipring.core.batches import RecordBatch
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Effect, Store
from skipring.core.events import Received
from skipring.core.log import Log
from skipring.core.messages import IHave, Message, PublishMany, PublishNew, Want
from skipring.core.peers import NodeId
from skipring.core.state import SubscriberState, legitimate_state
from skipring.core.subscriber import Subscriber
from skipring.core.summaries import SHORT_BYTES
from skipring.sim.network_faults import DELIVERED, LOST, Verdict
from skipring.world.snapshot import Parcel
from tests.support.batches import batch
from tests.support.fake_host import FakeHost, Sent, receivers
from tests.support.machines import ME, TOPIC, subscriber

NODES = ["a", "b", ME, *"defghijklnopq"]
QUARTER = legitimate_state(2, NODES)
TREE, LAZY = ["a", "j", "k"], ["b", "e", "f"]
NEIGHBOURS = sorted([*TREE, *LAZY])
CALM = 4 + 4  # the longest label that m knows, plus calm_ticks


# -- publications ------------------------------------------------------------------------------


def made(seq: int, publisher: NodeId = "z", payload: bytes = b"news") -> RecordBatch:
    """Return a publication of another node."""
    return batch(payload, publisher=publisher, first=seq, topic=TOPIC)


def made_many(count: int, start: int = 0) -> tuple[RecordBatch, ...]:
    """Return publications of z with consecutive numbers."""
    return tuple(made(seq) for seq in range(start, start + count))


def news(*numbers: int) -> PublishNew | PublishMany:
    """Return the message in which publications of z arrive: one alone, several as a pack."""
    pack = tuple(map(made, numbers))
    return PublishNew(pack[0]) if len(pack) == 1 else PublishMany(pack)


def store(offset: int, *publications: RecordBatch) -> Store:
    """Return the Store effect of publications with their total size."""
    return Store(offset, publications, sum(each.size_bytes for each in publications))


def i_have(sender: NodeId, *publications: RecordBatch, hops: int = 1) -> IHave:
    """Return the announcement of publications."""
    return IHave(sender, short_ids(*publications), bytes([hops] * len(publications)))


def want(sender: NodeId, *publications: RecordBatch, hops: int = 1) -> Want:
    """Return the request for publications that were announced with the same hops."""
    return want_each(sender, *((each, hops) for each in publications))


def want_each(sender: NodeId, *wanted: tuple[RecordBatch, int]) -> Want:
    """Return the request for publications, each with its hops."""
    ids = short_ids(*(each for each, _ in wanted))
    return Want(sender, ids, bytes(hops for _, hops in wanted))


def short_ids(*publications: RecordBatch) -> bytes:
    """Return the short ids of publications, one after the other."""
    return b"".join(each.id[:SHORT_BYTES] for each in publications)


# -- hosts -------------------------------------------------------------------------------------


def quarter(
    state: SubscriberState = QUARTER, log: Log | None = None, **constants: object
) -> FakeHost[Subscriber]:
    """Return the host of m; without repair unless a constant says otherwise."""
    config = replace(ProtocolConfig(repairs=False), **constants)
    return subscriber(state, config=config, log=log)


def calm_quarter(state: SubscriberState = QUARTER, **constants: object) -> FakeHost[Subscriber]:
    """Return the host of m, whose view has not changed for long enough to use the tree."""
    host = quarter(state, **constants)
    host.tick(CALM)
    return host


def deferring(
    state: SubscriberState = QUARTER, log: Log | None = None, **constants: object
) -> FakeHost[Subscriber]:
    """Return the host of m, which indexes publications later, and backfills."""
    return quarter(
        state, log, **{"defers_indexing": True, "backfills": True, "backfill_min": 1, **constants}
    )


def arrive(
    host: FakeHost[Subscriber], message: Message, sender: NodeId | None = "a"
) -> list[Effect]:
    """Let a message arrive from a neighbour; return all effects."""
    return host.handle(Received(message, sender))


def addressed(messages: Sent, kind: type[Message] = PublishNew) -> list[NodeId]:
    """Return the receivers of messages of a type, sorted by name."""
    return sorted(receivers(messages, kind))


# -- faults ------------------------------------------------------------------------------------


class Losing:
    """Fault that loses a share of the messages of some types."""

    def __init__(self, *kinds: type[Message], share: float = 1.0) -> None:
        self._kinds = kinds
        self._share = share

    def verdict(self, parcel: Parcel, now: int, rng: Random) -> Verdict:
        """Decide about one message."""
        is_one = isinstance(parcel.message, self._kinds)
        return LOST if is_one and rng.random() < self._share else DELIVERED
