"""Topics with a charter: rows, a member with a clock, and rings whose clocks differ."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Effect
from skipring.core.events import Received, Tick
from skipring.core.log import Log
from skipring.core.messages import Publications
from skipring.core.peers import NodeId
from skipring.core.publications import DELETED
from skipring.core.retention.charter import US, Charter, Policy, charter_record
from skipring.core.retention.member import Retention
from skipring.core.subscriber import Subscriber
from skipring.sim.engine import World
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.world.adversaries import legitimate_world
from skipring.world.snapshot import Clocks
from tests.support.fake_host import FakeHost
from tests.support.machines import TOPIC, subscriber
from tests.support.publications import QUARTER

# Adversaries with charters need clocks: tests/properties/test_retention.py runs them.
CHARTERED = frozenset(f"A5{number}" for number in range(8))
NOW = 1_700_000_000 * US
HOUR_S = 3600
HOUR = HOUR_S * US
AGED = Policy(max_age_s=HOUR_S)
COUNTED = Policy(max_count=16)
COMPACTED = Policy(compact=True, tombstones_s=HOUR_S)


def row(
    seq: int,
    time: int = NOW,
    key: bytes | None = b"k",
    *,
    publisher: NodeId = "z",
    is_deleted: bool = False,
) -> RecordBatch:
    """Return a batch of one record of another node."""
    record = BatchRecord(b"value %d" % seq, time, key, {DELETED: "1"} if is_deleted else {})
    return RecordBatch.of([record], publisher=publisher, first=seq, topic=TOPIC)


def charter_row(policy: Policy, *, seq: int = 1000, stamp: int = 1, start: int = 0) -> RecordBatch:
    """Return the batch of a charter."""
    charter = Charter(stamp=stamp, effective_from=start, policy=policy)
    return RecordBatch.of([charter_record(charter)], publisher="z", first=seq, topic=TOPIC)


def ticked(host: FakeHost[Subscriber], now: int = NOW, ticks: int = 1) -> list[Effect]:
    """Run ticks at a time, which is that of the ring neighbours too; return the effects."""
    effects: list[Effect] = []
    for _ in range(ticks):
        retention = host.machine.replica.retention
        if retention is not None:
            retention.clock.on_tick(now, now)
            for node in host.machine.ring_neighbours():
                retention.clock.record(node, now)
        effects += host.handle(Tick(now=now, monotonic=now))
    return effects


def arrives(host: FakeHost[Subscriber], *batches: RecordBatch) -> list[Effect]:
    """Let batches arrive from the left neighbour, by repair."""
    return host.handle(Received(Publications(batches), "a"))


def member(
    policy: Policy | None = None, *rows: RecordBatch, log: Log | None = None, now: int = NOW
) -> FakeHost[Subscriber]:
    """Return a member that has stored some rows and then a charter, after three ticks."""
    host = subscriber(QUARTER, config=ProtocolConfig.live(), log=log)
    if rows:
        arrives(host, *rows)
    if policy is not None:
        arrives(host, charter_row(policy))
    ticked(host, now, ticks=3)
    return host


def retention_of(host: FakeHost[Subscriber]) -> Retention:
    """Return the retention of a member of a topic with a charter."""
    found = host.machine.replica.retention
    assert found is not None
    return found


def held(host: FakeHost[Subscriber]) -> set[int]:
    """Return the numbers of the rows in the trie, without charters."""
    indexed = set(host.machine.trie().keys())
    batches = [each for each in host.stored if each.id in indexed]
    return {each.first for each in batches if each.first < 1000}


class Ring:
    """Ring of members whose clocks differ, under one policy."""

    def __init__(self, n: int, policy: Policy, seed: int = 0, *, off: int = 20 * US) -> None:
        self.rng = Random(f"{n}/{seed}")
        start = legitimate_world(n, self.rng)
        offsets = {node: self.rng.randint(-off, off) for node in start.subscribers}
        start = replace(start, clocks=Clocks(now=NOW, offsets=offsets))
        self.world = World(start, seed=seed, config=ProtocolConfig.live())
        self.nodes = sorted(self.world.subscribers)
        self._order = RandomOrder()
        charter = Charter(stamp=NOW - HOUR, effective_from=NOW - HOUR, policy=policy)
        self.world.publish_records(self.nodes[0], charter_record(charter))
        self.run(4)

    def run(self, rounds: int) -> None:
        """Run some rounds."""
        run_rounds(self.world, self._order, rounds)

    def put(self, node: NodeId, key: bytes | None = None, *, is_deleted: bool = False) -> None:
        """Publish a value or a tombstone of a key."""
        headers = {DELETED: "1"} if is_deleted else {}
        self.world.publish_records(node, BatchRecord(b"value", 0, key, headers))

    @property
    def counts(self) -> set[int]:
        """Return the numbers of batches of the members."""
        return {machine.count for machine in self.world.subscribers.values()}

    @property
    def roots(self) -> int:
        """Return the number of different tries."""
        return len({machine.trie().root() for machine in self.world.subscribers.values()})

    def live_keys(self, node: NodeId) -> set[bytes | None]:
        """Return the keys with a value in the trie of a member."""
        machine = self.world.subscribers[node]
        indexed = set(machine.trie().keys())
        records = [b.records()[0] for b in machine.batches() if b.id in indexed]
        return {each.key for each in records if DELETED not in each.headers}
