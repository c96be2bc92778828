"""Initial states of a topic with a charter: wrong floors, clocks, charters, rows and quarantines.

The clocks of all members are off by minutes. Time passes slowly, so that no floor moves while a
world heals. One member, the keeper, has every row that the policy keeps. No tombstone is old enough
to be removed: fresh members without it could restore the value (decision 0057).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from msgspec.structs import replace

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.limits import NUMBER_MAX
from skipring.core.peers import NodeId
from skipring.core.publications import DELETED, ID_BYTES
from skipring.core.retention.charter import US, Charter, Policy, charter_record
from skipring.core.retention.floors import FloorsState
from skipring.core.retention.member import TermsState
from skipring.core.retention.quarantine import QuarantineState
from skipring.core.retention.topic_clock import ClockState, NeighbourClock
from skipring.core.state import (
    ExchangeState,
    SubscriberMemory,
    SubscriberState,
)
from skipring.world.adversaries.builders import legitimate_world, share
from skipring.world.snapshot import Clocks, Snapshot

AGE_S: Final = 7 * 86_400
AGE: Final = AGE_S * US
_QUANTUM: Final = AGE // 64
NOW: Final = 650_000 * _QUANTUM + _QUANTUM // 4  # far from the steps of all floors
OFF: Final = 300 * US  # Five minutes: clocks are off by at most this time.
YEARS: Final = 10 * 365 * 86_400 * US
_STEP: Final = US  # in a round: published rows wait for the slowest clock, ten minutes at most
_ROWS: Final = 60
_KEYS: Final = 12
_SHARE: Final = 1 / 2
_TOMBSTONES: Final = 1 / 2
_EARLY: Final = 1 / 10

POLICIES: Final = (
    Policy(max_age_s=AGE_S),
    Policy(max_count=30),
    Policy(max_bytes=3000),
    Policy(compact=True, tombstones_s=AGE_S),
    Policy(compact=True, tombstones_s=AGE_S // 2, max_age_s=AGE_S),
    Policy(max_age_s=AGE_S, max_count=25, max_bytes=4000),
    Policy(compact=True, tombstones_s=AGE_S, max_count=8),
    Policy(compact=True, tombstones_s=AGE_S, max_bytes=1000),
    Policy(compact=True, tombstones_s=AGE_S, max_age_s=AGE_S, max_count=8),
)


class _Builder:
    """Builder of one world with a policy; its rows have unique stamps and ``batch`` records."""

    def __init__(self, n: int, rng: Random, batch: int, policy: Policy | None = None) -> None:
        self.rng, self.batch = rng, batch
        self.world = legitimate_world(n, rng)
        self.nodes = sorted(self.world.subscribers)
        self.keeper = rng.choice(self.nodes)
        self.policy = policy if policy is not None else rng.choice(POLICIES)
        self._sequence = 0
        self.charter = self.charter_row(Charter(stamp=NOW - 3 * AGE, policy=self.policy))
        self.rows = [self.row(NOW - rng.randrange(OFF, 2 * AGE)) for _ in range(_ROWS)]
        self.clocks = Clocks(
            now=NOW, step=_STEP, offsets={node: rng.randint(-OFF, OFF) for node in self.nodes}
        )

    def row(
        self, stamp: int, key: bytes | None = None, *, is_deleted: bool | None = None
    ) -> RecordBatch:
        """Return a batch of records, half of the recent ones tombstones."""
        first = self._record(stamp, key, is_deleted)
        return self._made(first, *(self._record(stamp, None, None) for _ in range(1, self.batch)))

    def _record(self, stamp: int, key: bytes | None, is_deleted: bool | None) -> BatchRecord:
        rng, self._sequence = self.rng, self._sequence + 1
        if is_deleted is None:
            is_deleted = stamp > NOW - AGE // 2 + 2 * OFF and rng.random() < _TOMBSTONES
        key = key or b"key %d" % rng.randrange(_KEYS)
        headers = {DELETED: "1"} if is_deleted else {}
        return BatchRecord(b"value %d" % self._sequence, stamp, key, headers)

    def charter_row(self, charter: Charter) -> RecordBatch:
        """Return the batch of a charter."""
        self._sequence += 1
        return self._made(charter_record(charter))

    def _made(self, *records: BatchRecord) -> RecordBatch:
        return RecordBatch.of(
            records,
            publisher=self.rng.choice(self.nodes),
            first=self._sequence - len(records) + 1,
            topic=self.world.topic,
        )

    def held(self, node: NodeId) -> list[RecordBatch]:
        """Return all rows for the keeper, else about half of them."""
        if node == self.keeper:
            return [self.charter, *self.rows]
        return [row for row in (self.charter, *self.rows) if self.rng.random() < _SHARE]

    def state(
        self, node: NodeId, rows: Sequence[RecordBatch], memory: SubscriberMemory | None = None
    ) -> SubscriberState:
        """Return the state of a member that holds some rows and has confirmed its trie."""
        known = tuple([at for at, row in enumerate(rows) if row.id == self.charter.id])
        memory = memory or SubscriberMemory()
        terms = memory.terms or TermsState(last_confirmed=NOW)
        memory = replace(memory, terms=replace(terms, charters=known))
        return replace(self.world.subscribers[node], publications=tuple(rows), memory=memory)

    def snapshot(self, states: dict[NodeId, SubscriberState]) -> Snapshot:
        """Return the world with these states and the clocks of the builder."""
        return replace(self.world, subscribers=states, clocks=self.clocks)

    def stamp(self) -> int:
        """Return any stamp, in range or not."""
        return self.rng.choice((0, 1, -5, NOW - AGE, NOW, 3 * NOW, NUMBER_MAX, 1 << 70))

    def floors(self) -> FloorsState:
        """Return arbitrary floors and adopted floors."""
        return FloorsState(
            age=self.stamp(),
            full=self.stamp(),
            tombstones=self.stamp(),
            adopted_age=self.stamp(),
            adopted_tombstones=self.stamp(),
        )

    def neighbour_clocks(self) -> ClockState:
        """Return arbitrary clocks of some nodes, which may be no neighbours."""
        rng = self.rng
        clocks = {
            node: NeighbourClock(self.stamp(), self.stamp())
            for node in rng.sample(self.nodes, min(len(self.nodes), rng.randrange(4)))
        }
        return ClockState(own=self.stamp(), monotonic=self.stamp(), neighbours=clocks)


def arbitrary_floors(n: int, rng: Random, *, batch: int = 1) -> Snapshot:
    """Give members arbitrary floors and adopted floors, and scattered rows (A50)."""
    made = _Builder(n, rng, batch)
    memories = {
        node: SubscriberMemory(terms=TermsState(floors=made.floors(), last_confirmed=NOW))
        for node in made.nodes
    }
    return made.snapshot(
        {node: made.state(node, made.held(node), memories[node]) for node in made.nodes}
    )


def arbitrary_neighbour_clocks(n: int, rng: Random, *, batch: int = 1) -> Snapshot:
    """Give members arbitrary clocks of their neighbours, and arbitrary floors (A51)."""
    made = _Builder(n, rng, batch)
    memories = {
        node: SubscriberMemory(
            terms=TermsState(
                clock=made.neighbour_clocks(), floors=made.floors(), last_confirmed=NOW
            )
        )
        for node in made.nodes
    }
    return made.snapshot(
        {node: made.state(node, made.held(node), memories[node]) for node in made.nodes}
    )


def scattered_charters(n: int, rng: Random, *, batch: int = 1) -> Snapshot:
    """Scatter superseded, future and forged charters, and a mistake with its undo (A52)."""
    made = _Builder(n, rng, batch)
    limit = Policy(max_count=1)
    others = [made.charter_row(Charter(stamp=NOW - 4 * AGE - k, policy=limit)) for k in range(3)]
    others += [
        made.charter_row(Charter(epoch=k, stamp=NOW + YEARS + k, policy=limit)) for k in range(3)
    ]
    late = Charter(stamp=NOW - 3 * OFF, effective_from=NOW + AGE, policy=limit)
    epoch = Charter(epoch=NUMBER_MAX, stamp=NOW - 2 * AGE, policy=limit)
    forged = replace(made.charter_row(late), id=rng.randbytes(ID_BYTES))
    others += [made.charter_row(late), made.charter_row(epoch), forged]
    # The mistake has begun by all clocks; the undo, which cancels it, has not.
    mistake = Charter(stamp=NOW - 2 * AGE, effective_from=NOW - 2 * OFF, policy=limit)
    undo = Charter(stamp=NOW - AGE, effective_from=NOW + AGE, policy=made.policy)
    undone = [made.charter_row(mistake), made.charter_row(undo)]

    def rows(node: NodeId) -> list[RecordBatch]:
        some = [row for row in others if rng.random() < _SHARE]
        return [*made.held(node), *some, *(undone if rng.random() < _SHARE else ())]

    return made.snapshot({node: made.state(node, rows(node)) for node in made.nodes})


def scattered_expired_rows(n: int, rng: Random, *, batch: int = 1) -> Snapshot:
    """Scatter expired and superseded rows, without members that know the floors (A53)."""
    made = _Builder(n, rng, batch)
    old = [made.row(NOW - 2 * AGE - rng.randrange(AGE)) for _ in range(_ROWS)]

    def rows(node: NodeId) -> list[RecordBatch]:
        return [*made.held(node), *(row for row in old if rng.random() < _SHARE)]

    return made.snapshot({node: made.state(node, rows(node)) for node in made.nodes})


def returning_members(n: int, rng: Random, *, batch: int = 1) -> Snapshot:
    """Let a quarter of the members return with values of keys that were deleted long ago (A54)."""
    made = _Builder(n, rng, batch, Policy(compact=True, tombstones_s=AGE_S))
    others = [node for node in made.nodes if node != made.keeper]
    back = set(rng.sample(others, min(share(n, 4), len(others))))
    deleted = [made.row(NOW - 2 * AGE, b"deleted %d" % k, is_deleted=False) for k in range(6)]
    alive = [made.row(NOW - 2 * AGE, b"alive %d" % k, is_deleted=False) for k in range(6)]
    made.rows[:] = [row for row in made.rows if row.records()[0].time > NOW - AGE + 2 * OFF]
    made.rows.extend(alive)
    stale = SubscriberMemory(terms=TermsState(last_confirmed=NOW - 2 * AGE))
    return made.snapshot(
        {
            node: made.state(node, [made.charter, *deleted, *alive], stale)
            if node in back
            else made.state(node, made.held(node))
            for node in made.nodes
        }
    )


def arbitrary_confirmations(n: int, rng: Random, *, batch: int = 1) -> Snapshot:
    """Give all members but the keeper arbitrary confirmations and counters of comparisons (A55)."""
    made = _Builder(n, rng, batch)

    def memory(node: NodeId) -> SubscriberMemory:
        if node == made.keeper:
            return SubscriberMemory(terms=TermsState(last_confirmed=NOW))
        met = {other: made.stamp() for other in made.nodes if rng.random() < _SHARE}
        exchange = ExchangeState(
            equal=made.stamp(), levels=made.stamp(), met=met, ticks=made.stamp()
        )
        terms = TermsState(
            last_confirmed=made.stamp(), newest=made.stamp(), rows_ticks=made.stamp()
        )
        return SubscriberMemory(exchange=exchange, terms=terms)

    return made.snapshot(
        {node: made.state(node, made.held(node), memory(node)) for node in made.nodes}
    )


def exchanged_quarantines(n: int, rng: Random, *, batch: int = 1) -> Snapshot:
    """Quarantine rows that belong in the trie, and put rows from the future into tries (A56)."""
    made = _Builder(n, rng, batch)
    future = [made.row(NOW + YEARS + k) for k in range(6)]

    def state(node: NodeId) -> SubscriberState:
        rows = [*made.held(node), *(row for row in future if rng.random() < _SHARE)]
        hidden = {
            row.id: at
            for at, row in enumerate(rows)
            if rng.random() < _SHARE and row.records()[0].time > NOW - AGE // 2 + 2 * OFF
        }
        early = {key: made.stamp() for key in hidden if rng.random() < _EARLY}
        quarantine = QuarantineState(hidden=hidden, early=early)
        terms = TermsState(
            quarantine=quarantine, last_confirmed=NOW, confirmed=rng.randbytes(ID_BYTES)
        )
        return made.state(node, rows, SubscriberMemory(terms=terms))

    return made.snapshot({node: state(node) for node in made.nodes})


def broken_clocks(n: int, rng: Random, *, batch: int = 1) -> Snapshot:
    """Set the clock of one member ten years ahead, that of another ten years back (A57)."""
    made = _Builder(n, rng, batch)
    ahead, behind = (*rng.sample(made.nodes, min(n, 2)), *made.nodes)[:2]
    offsets = {**made.clocks.offsets, ahead: YEARS, behind: -YEARS}
    world = made.snapshot({node: made.state(node, made.held(node)) for node in made.nodes})
    return replace(world, clocks=replace(made.clocks, offsets=offsets))


def with_charter(world: Snapshot, policy: Policy, rng: Random) -> Snapshot:
    """Add a charter to a world, at one of its members."""
    members = [node for node, state in sorted(world.subscribers.items()) if state.member]
    if not members:
        return world
    node = rng.choice(members)
    record = charter_record(Charter(stamp=NOW - 3 * AGE, policy=policy))
    charter = RecordBatch.of([record], publisher=node, first=1 << 30, topic=world.topic)
    state = world.subscribers[node]
    changed = replace(state, publications=(*state.publications, charter))
    return replace(world, subscribers=world.subscribers | {node: changed})
