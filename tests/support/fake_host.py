"""FakeHost: runs one machine in a test, as a node or supervisor process would.

``subscriber`` and ``supervisor`` in ``tests/support/machines.py`` return one. Example::

    host = FakeHost(Subscriber("m", topic="news", rng=Random(0), config=ProtocolConfig()))
    assert host.request(SubscribeRequested()) == [("supervisor", Subscribe("m"))]
    host.receive(SetConfiguration(None, Label.nth(0), None), SUPERVISOR)
    host.publish(b"hello")
    assert host.payloads == [b"hello"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeAlias, TypeVar

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.effects import (
    Deliver,
    Discard,
    Drop,
    Effect,
    Outbox,
    PeerInSync,
    SaveTerms,
    Send,
    SendSynced,
    Store,
)
from skipring.core.events import Event, Flush, PublishRequested, Received, Tick
from skipring.core.log import Log, MemoryLog
from skipring.core.messages import Message
from skipring.core.peers import NodeId
from tests.support.batches import payloads_of

Sent: TypeAlias = list[tuple[NodeId, Message]]
EffectT = TypeVar("EffectT")
MachineT = TypeVar("MachineT")


class FakeHost(Generic[MachineT]):
    """Host of one machine, or of one part of it, that applies and records every effect.

    ``handle`` returns all effects of an event. ``request``, ``receive``, ``tick``, ``flush`` and
    ``publish`` return the messages only, as pairs of receiver and message. A part of a machine
    that writes into an Outbox runs with ``run``.

    Effects are applied in order: Store and Discard change ``log``, which the machine reads; Deliver
    adds to ``delivered`` each batch with its offset; PeerInSync adds to ``in_sync``. ``effects``
    has all effects since the start or the last ``clear``.
    """

    def __init__(self, machine: MachineT, log: Log | None = None) -> None:
        self.machine = machine
        replica = getattr(machine, "replica", machine)
        self.log: Log = log or getattr(replica, "log", None) or MemoryLog()
        self.effects: list[Effect] = []
        self.delivered: list[tuple[int, RecordBatch]] = []
        self.in_sync: list[NodeId] = []

    # -- events ------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Effect]:
        """Run one event; apply and return its effects."""
        return self.apply(self.machine.handle(event))  # type: ignore[attr-defined]

    def request(self, event: Event) -> Sent:
        """Run one event, mostly a request of the application; return the messages sent."""
        return sent(self.handle(event))

    def receive(self, message: Message, sender: NodeId | None = None) -> Sent:
        """Deliver a message to the machine; return the messages sent."""
        return self.request(Received(message, sender))

    def tick(self, ticks: int = 1) -> Sent:
        """Run the Timeout, once or several times; return the messages sent."""
        return [each for _ in range(ticks) for each in self.request(Tick())]

    def flush(self) -> Sent:
        """Send the deferred messages; return them in the order of their receivers."""
        return sorted(self.request(Flush()), key=lambda item: item[0])

    def publish(self, *payloads: bytes) -> Sent:
        """Publish records in one call as the application; return the messages sent."""
        records = tuple(map(BatchRecord, payloads or (b"own",)))
        return self.request(PublishRequested(records))

    # -- effects -----------------------------------------------------------------------------

    def run(self, action: Callable[[Outbox], object]) -> list[Effect]:
        """Run a part of a machine that writes into an Outbox; apply and return its effects."""
        out = Outbox()
        action(out)
        return self.apply(out)

    def apply(self, effects: list[Effect]) -> list[Effect]:
        """Apply effects in order and record them."""
        for effect in effects:
            match effect:
                case Store(offset=offset, batches=batches):
                    assert offset == self.log.end
                    for batch in batches:
                        self.log.append(batch)
                case Discard(offset=offset):
                    self.log.discard(offset)
                case Drop() | SaveTerms():
                    effect.apply(self.log)
                case Deliver(batches=batches, offset=offset):
                    for batch in batches:
                        self.delivered.append((offset, batch))
                        offset += batch.count
                case PeerInSync(node=node):
                    self.in_sync.append(node)
        self.effects += effects
        return effects

    def all(self, kind: type[EffectT]) -> list[EffectT]:
        """Return the recorded effects of a type."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def clear(self) -> None:
        """Forget the recorded effects; the log stays."""
        self.effects, self.delivered, self.in_sync = [], [], []

    @property
    def stored(self) -> list[RecordBatch]:
        """Return the batches in the log."""
        return [entry.batch for entry in self.log.read_range(0, self.log.end)]

    @property
    def payloads(self) -> list[bytes]:
        """Return the payloads of the records in the log."""
        return payloads_of(self.stored)


def sent(effects: Iterable[Effect]) -> Sent:
    """Return the messages among the effects, in order, with their receivers."""
    return [
        (effect.to, effect.message) for effect in effects if isinstance(effect, Send | SendSynced)
    ]


def receivers(messages: Sent, kind: type[Message]) -> list[NodeId]:
    """Return the receivers of messages of a type."""
    return [to for to, message in messages if type(message) is kind]


def kinds(effects: Iterable[Effect]) -> list[type[Effect]]:
    """Return the types of effects, in order; consecutive messages count as one."""
    found: list[type[Effect]] = []
    for effect in effects:
        if not (found and found[-1] is type(effect) is Send):
            found.append(type(effect))
    return found


def distinct(effects: Iterable[Effect], kind: type[Message]) -> list[Message]:
    """Return the distinct messages of a type among the effects, in order."""
    found: list[Message] = []
    for _, message in sent(effects):
        if type(message) is kind and message not in found:
            found.append(message)
    return found
