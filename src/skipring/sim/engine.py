"""World of a simulation: all processes of one topic and their channels (section 1.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from sys import maxsize
from typing import Final, assert_never

from msgspec.structs import replace

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.config import ProtocolConfig
from skipring.core.effects import (
    Backfilled,
    Deliver,
    Discard,
    Drained,
    Drop,
    Effect,
    Evicted,
    HeldBy,
    Origin,
    PeerInSync,
    Rejected,
    SaveTerms,
    Send,
    SendSynced,
    Store,
    Unsubscribed,
)
from skipring.core.events import (
    DrainRequested,
    Event,
    Flush,
    NodeSuspected,
    PublishRequested,
    Received,
    SubscribeRequested,
    Tick,
    UnsubscribeRequested,
)
from skipring.core.log import MemoryLog
from skipring.core.messages import CARRIERS, Message
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.roster import Roster
from skipring.core.state import SubscriberState, SupervisorState
from skipring.core.subscriber import Subscriber
from skipring.core.supervisor import Supervisor
from skipring.sim.network_faults import DELIVERED, Fault
from skipring.world.snapshot import Parcel, Snapshot, publications_in


class DeliveryStats:
    """Counters of deliveries in a world; a publication is a batch."""

    def __init__(self) -> None:
        self.by_origin: Counter[Origin] = Counter()
        self.hops: Counter[int] = Counter()  # of publications delivered by broadcast
        self.copies = 0  # of publications that reached live subscribers, duplicates included

    @property
    def published(self) -> int:
        """Return the number of publications that were new to the world."""
        return self.by_origin[Origin.OWN]

    @property
    def received(self) -> int:
        """Return how often a publication was new to its receiver."""
        return self.by_origin[Origin.SPREAD] + self.by_origin[Origin.REPAIR]

    @property
    def duplicates(self) -> int:
        """Return how often a publication reached a subscriber that already had it."""
        return self.copies - self.received

    @property
    def hops_max(self) -> int:
        """Return the longest path of a broadcast publication."""
        return max(self.hops, default=0)

    @property
    def hops_mean(self) -> float:
        """Return the mean path length of broadcast publications."""
        total = self.hops.total()
        return sum(hops * count for hops, count in self.hops.items()) / total if total else 0.0

    def on_delivered(self, delivery: Deliver) -> None:
        """Count publications that an application received."""
        count = len(delivery.batches)
        self.by_origin[delivery.origin] += count
        if delivery.origin is Origin.SPREAD:
            self.hops[delivery.hops] += count

    def on_received(self, message: Message) -> None:
        """Count the publications in a message that arrived."""
        self.copies += len(publications_in(message))


_TICK = Tick()
_FLUSH = Flush()


# Messages in flight for each subscriber at which a run ends. Measured: runs of mode paper that heal
# have at most 22; Algorithm 1 can multiply messages without end (decision 0061).
IN_FLIGHT_PER_NODE_MAX: Final = 250


class MessageLimitError(Exception):
    """More messages in flight than the limit of a world; the round ends unfinished."""


class World:
    """Machines and channels of a simulation; the only place where effects are applied.

    All machines share one random generator: a Random per machine would take more memory than the
    machine.
    """

    def __init__(  # noqa: PLR0913  (the parts of a world)
        self,
        start: Snapshot,
        *,
        seed: int,
        config: ProtocolConfig,
        faults: Sequence[Fault] = (),
        uses_up_start: bool = False,
        rng: Random | None = None,
        in_flight_max: int | None = None,
    ) -> None:
        self.topic = start.topic
        self.clocks = start.clocks
        self.config = replace(
            config, accepts_opaque_ids=config.accepts_opaque_ids or start.has_opaque
        )
        self.rng = rng if rng is not None else Random(f"skipring/{seed}")
        self.round = 0
        self.events = 0
        self.sent: Counter[type[Message]] = Counter()
        self.deliveries = DeliveryStats()
        self.drained: dict[NodeId, NodeId | None] = {}  # leaver -> receiver (decision 49)
        self.drained_absent: dict[NodeId, bool] = {}  # True: only unreachable ones remain
        self.held_by: dict[bytes, set[NodeId]] = {}  # the nodes that have confirmed an id
        self.backfilled: list[NodeId] = []  # nodes whose backfill has ended
        self.evicted: list[NodeId] = []  # by the supervisor's failure detector
        self.supervisor = Supervisor(config=config, state=start.supervisor)
        self.subscribers: dict[NodeId, Subscriber] = {}
        # At n = 10^5 a second copy of the state would be larger than all machines.
        take = start.subscribers.pop if uses_up_start else start.subscribers.__getitem__
        for node in sorted(start.subscribers):  # the order in a world file must not affect the run
            self.add(node, take(node))
        self.crashed: dict[NodeId, int] = dict.fromkeys(start.crashed, 0)  # round of the crash
        self.channels: list[Parcel] = list(start.channels)
        assert all(parcel.serial < 0 for parcel in self.channels)
        self.next_serial = 0
        self._held: dict[int, list[Parcel]] = {}  # by the round in which they are released
        self._faults = tuple(faults)
        self._in_flight_max = in_flight_max if in_flight_max is not None else maxsize

    # -- queries ---------------------------------------------------------------------------

    @property
    def roster(self) -> Roster:
        """Return the supervisor's database."""
        return self.supervisor.roster

    @property
    def messages(self) -> int:
        """Return the number of messages sent."""
        return self.sent.total()

    @property
    def is_full(self) -> bool:
        """Return True if the channels exceed the message limit, at which a run ends."""
        return len(self.channels) > self._in_flight_max

    def processes(self) -> list[NodeId]:
        """Return all processes that run Timeout: the supervisor and the live subscribers."""
        return [SUPERVISOR, *self.subscribers]

    def in_flight(self) -> Iterator[Parcel]:
        """Yield every message in a channel, delayed or not."""
        yield from self.channels
        for held in self._held.values():
            yield from held

    def snapshot(self) -> Snapshot:
        """Return the state as a value."""
        return Snapshot(
            topic=self.topic,
            supervisor=replace(self.supervisor.state(), memory=self.supervisor.memory()),
            subscribers={
                node: replace(machine.state(), memory=machine.memory())
                for node, machine in self.subscribers.items()
            },
            crashed=tuple(self.crashed),
            clocks=self.clocks,
            channels=tuple(
                Parcel(parcel.to, parcel.message, parcel.sender)
                for parcel in sorted(self.in_flight(), key=lambda parcel: parcel.serial)
            ),
        )

    # -- steps -----------------------------------------------------------------------------

    def begin_round(self) -> None:
        """Release the messages that are delayed until this round."""
        self.channels.extend(self._held.pop(self.round, ()))

    def end_round(self) -> None:
        """Advance the round counter, and the clocks."""
        self.round += 1
        if self.clocks.now:
            self.clocks = replace(self.clocks, now=self.clocks.now + self.clocks.step)

    def set_clocks(self, offsets: Mapping[NodeId, int]) -> None:
        """Set the wall clocks of some nodes, by their offsets from the time of the world."""
        self.clocks = replace(self.clocks, offsets={**self.clocks.offsets, **offsets})

    def pass_time(self, time_us: int) -> None:
        """Advance the clocks without any event."""
        self.clocks = replace(self.clocks, now=self.clocks.now + time_us)

    def tick(self, node: NodeId) -> None:
        """Run a process's Timeout, then its Flush if it has deferred work."""
        self.events += 1
        clocks = self.clocks
        self.dispatch(
            node, Tick(now=clocks.of(node), monotonic=clocks.now) if clocks.now else _TICK
        )
        machine = self.subscribers.get(node)
        if machine is not None and machine.has_to_flush:
            self.flush(node)

    def flush(self, node: NodeId) -> None:
        """Send a Flush event to a subscriber, which does its deferred work."""
        self.events += 1
        self.dispatch(node, _FLUSH)

    def deliver(self, parcel: Parcel) -> None:
        """Deliver a message to its receiver; a crashed node ignores it."""
        self.events += 1
        if type(parcel.message) in CARRIERS and parcel.to in self.subscribers:
            self.deliveries.on_received(parcel.message)
        self.dispatch(parcel.to, Received(parcel.message, parcel.sender))

    def subscribe(self, node: NodeId) -> None:
        """Request membership as the application at a node would; start a missing node."""
        if node not in self.subscribers:
            self.crashed.pop(node, None)
            self.add(node, SubscriberState(member=False))
        self.dispatch(node, SubscribeRequested())

    def unsubscribe(self, node: NodeId) -> None:
        """Request to leave at a node, as its application would."""
        self.dispatch(node, UnsubscribeRequested())

    def drain(self, node: NodeId, ids: tuple[bytes, ...] = (), *, everything: bool = True) -> None:
        """Request the handover of a node's publications before it leaves (decision 0049)."""
        self.drained.pop(node, None)
        self.dispatch(node, DrainRequested(ids, everything))

    def publish(self, node: NodeId, *payloads: bytes) -> None:
        """Publish a batch of these records at a node, as its application would."""
        self.publish_records(node, *map(BatchRecord, payloads))

    def publish_records(self, node: NodeId, *records: BatchRecord) -> None:
        """Publish records at a node, with its time if they have none."""
        now = self.clocks.of(node)
        made = tuple([each if each.time else replace(each, time=now) for each in records])
        self.dispatch(node, PublishRequested(made))

    def publish_and_crash(self, node: NodeId, *payloads: bytes) -> None:
        """Publish a batch at a node that crashes between sending and storing (decision 51)."""
        request = PublishRequested(tuple(map(BatchRecord, payloads)))
        effects = self.subscribers[node].handle(request)
        self._apply(node, [effect for effect in effects if isinstance(effect, Send)])
        self.crash(node)

    def suspect(self, node: NodeId) -> None:
        """Report a node as crashed to the supervisor, as its failure detector would."""
        self.dispatch(SUPERVISOR, NodeSuspected(node))

    def dispatch(self, node: NodeId, event: Event) -> None:
        """Run one event of a node and apply its effects."""
        machine = self.supervisor if node == SUPERVISOR else self.subscribers.get(node)
        if machine is not None:
            effects = machine.handle(event)
            if effects:
                self._apply(node, effects)
                if len(self.channels) > self._in_flight_max:
                    raise MessageLimitError(f"more than {self._in_flight_max} messages in flight")

    def _apply(self, node: NodeId, effects: list[Effect]) -> None:  # noqa: C901, PLR0912  (one match)
        """Apply the effects of one event at ``node``, in order."""
        for effect in effects:
            match effect:
                case Send() | SendSynced():  # first, because most are; memory needs no sync
                    message = effect.message
                    self.sent[type(message)] += 1
                    parcel = Parcel(effect.to, message, node, self.next_serial)
                    self.next_serial += 1
                    if self._faults:
                        self._post(parcel)
                    else:
                        self.channels.append(parcel)
                case Store():
                    self._store(node, effect)
                case Discard():
                    self._log_of(node).discard(effect.offset)
                case Drop() | SaveTerms():
                    effect.apply(self._log_of(node))
                case Deliver():
                    self.deliveries.on_delivered(effect)
                case Rejected():
                    pass  # a corrupt initial state is ordinary input
                case PeerInSync():
                    pass  # the machine records it
                case Drained():
                    self.drained[node] = effect.node
                    self.drained_absent[node] = effect.absent
                case HeldBy():
                    self._on_held(effect)
                case Backfilled():
                    self.backfilled.append(node)
                case Evicted():
                    self.evicted.append(effect.node)
                case Unsubscribed():
                    pass  # the machine stays: its state is part of the snapshot
                case _:
                    assert_never(effect)

    def _on_held(self, effect: HeldBy) -> None:
        """Record a node that has confirmed publications."""
        for key in effect.ids:
            self.held_by.setdefault(key, set()).add(effect.node)

    def _store(self, node: NodeId, effect: Store) -> None:
        """Append batches to the log of a node."""
        log = self._log_of(node)
        assert log.end == effect.offset
        for batch in effect.batches:
            log.append(batch)

    def _log_of(self, node: NodeId) -> MemoryLog:
        log = self.subscribers[node].replica.log
        assert isinstance(log, MemoryLog)
        return log

    def _post(self, parcel: Parcel) -> None:
        """Apply the faults to a message: enqueue its copies, each with its delay."""
        delays = DELIVERED
        for fault in self._faults:
            delays = tuple(
                delay + more
                for delay in delays
                for more in fault.verdict(parcel, self.round, self.rng)
            )
        for delay in delays:
            if delay > 0:
                self._held.setdefault(self.round + delay, []).append(parcel)
            else:
                self.channels.append(parcel)

    # -- faults of processes ---------------------------------------------------------------

    def add(self, node: NodeId, state: SubscriberState, *, incarnation: int = 0) -> None:
        """Start a subscriber in a given state."""
        self.subscribers[node] = Subscriber(
            node,
            topic=self.topic,
            rng=self.rng,
            config=self.config,
            log=MemoryLog(state.publications) if state.publications else None,
            state=state,
            incarnation=incarnation,
        )

    def crash(self, node: NodeId) -> None:
        """Crash a subscriber without notification (section 3.3)."""
        del self.subscribers[node]
        self.crashed[node] = self.round

    def restart(
        self, node: NodeId, publications: tuple[RecordBatch, ...], *, incarnation: int
    ) -> None:
        """Start a crashed subscriber again, in a new incarnation, with the log that it stored."""
        del self.crashed[node]
        state = SubscriberState(member=False, publications=publications)
        self.add(node, state, incarnation=incarnation)
        self.subscribe(node)

    def restart_supervisor(self) -> None:
        """Restart the supervisor with an empty database."""
        self.supervisor = Supervisor(config=self.config, state=SupervisorState())
