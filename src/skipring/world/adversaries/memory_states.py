"""Initial states with corrupted memory of the machines: caches, counters and deferred work.

The paper's variables are correct, or as another adversary sets them. Counters have any value,
including values that no machine sets.
"""

from __future__ import annotations

from random import Random
from typing import Final

from msgspec.structs import replace

from skipring.core.log import MemoryLog
from skipring.core.messages import HOPS_MAX
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.prefix import ALL, Prefix
from skipring.core.publications import ID_BYTES
from skipring.core.state import (
    AnnouncementState,
    BackfillRunState,
    BackfillSourceState,
    BackfillState,
    BroadcastState,
    CaseState,
    CompletenessState,
    DetectorState,
    DrainState,
    HandoversState,
    HandoverState,
    LazyPushState,
    LogExtent,
    NumberState,
    PendingWantState,
    RepairState,
    ReplicaState,
    ScrubState,
    SourceProgress,
    SubscriberMemory,
    SubscriberState,
    SupervisorMemory,
    SyncState,
    TransferState,
)
from skipring.core.summaries import RangeSummary, Summary
from skipring.core.topology import Chains
from skipring.world.adversaries.arbitrary import Arbitrary, arbitrary_world
from skipring.world.adversaries.builders import (
    legitimate_world,
    permuted,
    recorded_nodes,
    scatter,
    scattered_publications,
    with_states,
)
from skipring.world.adversaries.database_states import swapped_entries
from skipring.world.snapshot import Snapshot

# Guesses: beyond every counter that a machine accepts, and the ends of 40 bits.
_COUNTER: Final = 1 << 10
_HUGE: Final = 1 << 40
_PUBLICATIONS: Final = 40


class Memories:
    """Generator of arbitrary memory for the machines of a world."""

    def __init__(self, world: Snapshot, rng: Random) -> None:
        rows = {p.id: p for state in world.subscribers.values() for p in state.publications}
        nodes = [*sorted(world.subscribers), *world.crashed]
        labels = {node: state.label for node, state in world.subscribers.items()}
        self._draw = Arbitrary(rng, nodes, labels=labels, publications=list(rows.values()))
        self._rng = rng

    def counter(self) -> int:
        """Return any number."""
        return self._rng.choice((0, 1, -_HUGE, _HUGE, self._rng.randint(-_COUNTER, _COUNTER)))

    def _numbers(self) -> tuple[NumberState, ...]:
        """Return wrong newest numbers of several incarnations."""
        incarnations = {0, *(self._rng.randrange(_COUNTER) for _ in range(self._rng.randrange(4)))}
        return tuple(
            NumberState(incarnation, self._draw.maybe(0.8, self.counter))
            for incarnation in sorted(incarnations)
        )

    def _hops(self) -> int:
        return self._rng.randint(0, HOPS_MAX)

    def _nodes(self) -> tuple[NodeId | None, ...]:
        found = {self._draw.maybe(0.9, self._draw.node) for _ in range(self._rng.randrange(4))}
        return tuple(sorted(found, key=lambda node: node or ""))

    def supervisor(self) -> SupervisorMemory:
        """Return arbitrary counters, suspicions and answers of a supervisor."""
        nodes = self._draw.nodes
        return SupervisorMemory(
            ticks=self.counter(),
            calm_ticks=self.counter(),
            mismatches=self.counter(),
            refresh_ticks=self.counter(),
            answered=(self.counter(), self.counter()),
            told={node: self.counter() for node in nodes},
            suspects={node: self.counter() for node in nodes},
            audited=self.counter(),
            audited_sum=self._draw.digest(),
            detector=DetectorState(
                cases={node: self._case() for node in self._draw.some(self._draw.node)},
                unanswered={node: self.counter() for node in self._draw.some(self._draw.node)},
                pings=self.counter(),
                reports=self.counter(),
            ),
        )

    def _case(self) -> CaseState:
        accusers = tuple(sorted(set(self._draw.some(self._draw.node))))
        return CaseState(self.counter(), self.counter(), accusers, self.counter())

    def counters(self) -> SubscriberMemory:
        """Return arbitrary counters of a subscriber, and its supposed partners."""
        draw = self._draw
        return SubscriberMemory(
            audit_ticks=self.counter(),
            ask_ticks=self.counter(),
            spreading=BroadcastState(
                calm_ticks=self.counter(),
                has_news=draw.chance(0.5),
                news_ticks=self.counter(),
            ),
            repair=RepairState(
                session=self.counter(),
                patience=self.counter(),
                open_ticks=self.counter(),
                quiet_ticks=self.counter(),
                period=self.counter(),
            ),
            histories=self._transfers(),
            scrub=self._scrub(),
            holdings=ReplicaState(
                numbers=self._numbers(),
                spent={node: self.counter() for node in draw.some(draw.node)},
                scrubbed=self.counter(),
            ),
            completeness=self._completeness(),
            backfill=self._backfill(),
            sync=self._sync(),
            unheard={node: self.counter() for node in draw.some(draw.node)} or None,
            terms=draw.terms_state(self.counter),
            exchange=draw.exchange_state(self.counter),
        )

    def _transfers(self) -> TransferState:
        draw = self._draw
        return TransferState(
            source=draw.maybe(0.5, draw.node),
            source_ticks=self.counter(),
            received_ticks=self.counter(),
            rest_ticks=self.counter(),
            served={node: (self.counter(), self.counter()) for node in draw.some(draw.node)},
        )

    def _completeness(self) -> CompletenessState:
        draw = self._draw
        return CompletenessState(
            age=self.counter(),
            session=self.counter(),
            complete=draw.chance(0.5),
            asked=draw.maybe(0.5, draw.node),
            asked_times=self.counter(),
            confirmed=tuple(dict.fromkeys(draw.some(draw.node))),
        )

    def _scrub(self) -> ScrubState:
        return ScrubState(
            offset=self.counter(),
            end=self.counter(),
            ids=self.counter(),
            found=self.counter(),
            has_doubts=self._draw.chance(0.5),
        )

    def _sync(self) -> SyncState:
        return SyncState(
            confirmed=tuple(sorted(set(self._draw.some(self._draw.node)))),
            ask_ticks=self.counter(),
            period=self.counter(),
        )

    def _backfill(self) -> BackfillState:
        draw = self._draw
        return BackfillState(
            expected=draw.chance(0.5), requests=self.counter(), run=draw.maybe(0.5, self._run)
        )

    def _run(self) -> BackfillRunState:
        """Return a backfill in progress; half of them have valid prefixes."""
        draw = self._draw
        is_plausible = draw.chance(0.5)
        bits = draw.rng.randrange(3) if is_plausible else self.counter()
        prefixes = range(1 << bits) if is_plausible else (self.counter(),)
        return BackfillRunState(
            sources={
                node: self._source(draw.rng.choice(prefixes)) for node in draw.some(draw.node)
            },
            prefixes=tuple(prefix for prefix in prefixes if draw.chance(0.5)),
            bits=bits,
            is_reading=draw.chance(0.5),
            held=self.counter(),
            ticks=self.counter(),
        )

    def _source(self, prefix: int) -> BackfillSourceState:
        draw = self._draw
        is_plausible = draw.chance(0.5)

        def number() -> int:
            return draw.rng.randrange(_PUBLICATIONS) if is_plausible else self.counter()

        extent = LogExtent("", 0, number(), number())
        return BackfillSourceState(
            request=number(),
            extent=draw.maybe(0.5, lambda: extent),
            prefix=draw.maybe(0.5, lambda: prefix),
            start=number(),
            is_held=draw.chance(0.5),
            progress=SourceProgress(float(min(number(), 3)), number(), number()),
            pages=number(),
        )

    def deferred(self, state: SubscriberState) -> SubscriberMemory:
        """Return arbitrary deferred work of a subscriber: to index, announce and request."""
        draw, rng = self._draw, self._rng
        stored = MemoryLog(state.publications).entries()
        waiting = {key: at for key, at in stored if draw.chance(0.25)}
        wrong = {rng.randbytes(ID_BYTES): rng.randrange(_PUBLICATIONS) for _ in range(2)}
        return SubscriberMemory(
            announcing=LazyPushState(
                news={
                    i: AnnouncementState(self._hops(), self._nodes())
                    for i in draw.some(draw.short_id)
                },
                missing={
                    short: PendingWantState(self._holder(), self._hops(), self.counter())
                    for short in draw.some(draw.short_id)
                },
                recent=tuple(sorted(set(draw.some(draw.short_id)))),
                told=tuple(sorted(set(draw.some(draw.short_id)))),
            ),
            holdings=ReplicaState(
                unindexed={
                    key: at if draw.chance(0.5) else rng.randrange(_PUBLICATIONS)
                    for key, at in (waiting | wrong).items()
                },
            ),
            handovers=HandoversState(
                session=self.counter(),
                to={node: self._handover() for node in draw.some(draw.node)},
            ),
            drain=self._drain(),
        )

    def _drain(self) -> DrainState:
        draw = self._draw
        return DrainState(
            ticks=self.counter(),
            receiver=draw.maybe(0.5, draw.node),
            ids=tuple(dict.fromkeys(draw.some(draw.whole_id))),
            everything=draw.chance(0.5),
            takes_memory=draw.chance(0.5),
            told={node: draw.node() for node in draw.some(draw.node)},
            passed=tuple(dict.fromkeys(draw.some(draw.node))),
            absent=tuple(dict.fromkeys(draw.some(draw.node))),
            leaving={node: self.counter() for node in draw.some(draw.node)},
        )

    def _handover(self) -> HandoverState:
        draw = self._draw
        return HandoverState(
            self.counter(),
            tuple(dict.fromkeys(draw.some(draw.prefix))),
            {key: self.counter() for key in draw.some(draw.whole_id)},
            draw.maybe(0.5, self.counter),
            draw.chance(0.5),
            self.counter(),
        )

    def _holder(self) -> NodeId:
        return SUPERVISOR if self._draw.chance(0.1) else self._draw.node()

    def derived(self, state: SubscriberState) -> SubscriberMemory:
        """Return wrong derived values of a subscriber, about its place and its publications.

        Either the index or the claim about the root is wrong, not both: a subscriber recomputes a
        claim about another root.
        """
        draw, rng = self._draw, self._rng
        places = {p.id: rng.choice((None, rng.randrange(_HUGE))) for p in state.publications}
        wrong = {key: place for key, place in places.items() if draw.chance(0.25)}
        wrong |= {rng.randbytes(ID_BYTES): rng.randrange(_PUBLICATIONS) for _ in range(2)}
        claim = RangeSummary.make(ALL, [Summary(Prefix(3, rng.randrange(8)), state.trie().root())])
        count = rng.choice((0, 1, rng.randrange(_COUNTER), rng.randrange(_HUGE)))
        is_claimed = draw.chance(0.5)
        return SubscriberMemory(
            chains=self._chains(state),
            weight=draw.digest(),
            spreading=BroadcastState(tree_edges=self._nodes(), levels=self.counter()),
            repair=RepairState(claims=(claim,) if is_claimed else None),
            holdings=ReplicaState() if is_claimed else ReplicaState(index=wrong, count=count),
        )

    def _chains(self, state: SubscriberState) -> Chains | None:
        """Return chains with the labels around a subscriber and otherwise arbitrary fields."""
        if state.label is None:
            return None
        draw = self._draw
        pred, succ = state.left or state.ring, state.right or state.ring
        return Chains(
            own=state.label,
            pred=pred.label if pred is not None else None,
            succ=succ.label if succ is not None else None,
            slots=tuple(dict.fromkeys(draw.some(draw.label))),
            left_end=draw.maybe(0.5, draw.label),
            right_end=draw.maybe(0.5, draw.label),
            children=tuple(dict.fromkeys(draw.some(draw.label))),
            parent=draw.maybe(0.5, draw.label),
        )

    def all_of(self, state: SubscriberState) -> SubscriberMemory:
        """Return arbitrary memory for all parts of a subscriber."""
        derived, deferred, counters = self.derived(state), self.deferred(state), self.counters()
        return replace(
            counters,
            chains=derived.chains,
            weight=derived.weight,
            spreading=replace(
                counters.spreading,
                tree_edges=derived.spreading.tree_edges,
                levels=derived.spreading.levels,
            ),
            announcing=deferred.announcing,
            handovers=deferred.handovers,
            drain=deferred.drain,
            repair=replace(counters.repair, claims=derived.repair.claims),
            holdings=replace(
                counters.holdings,
                unindexed=deferred.holdings.unindexed,
                index=derived.holdings.index,
                count=derived.holdings.count,
            ),
        )


# -- worlds ----------------------------------------------------------------------------------


def swapped_under_an_old_digest(n: int, rng: Random) -> Snapshot:
    """Return a world with two swapped entries and the digest of the database before the swap."""
    world = swapped_entries(n, rng)
    order = sorted(world.subscribers.items(), key=lambda item: _index(item[1]))
    before = legitimate_digest([node for node, _ in order])
    return _with_supervisor(world, SupervisorMemory(digest=before))


def _index(state: SubscriberState) -> int:
    assert state.label is not None
    return state.label.index


def legitimate_digest(nodes: list[NodeId]) -> int:
    """Return the digest of a database that records the nodes in this order."""
    world = Snapshot(subscribers={})
    roster = world.roster
    for node in nodes:
        roster.add(node)
    return roster.digest()


def wrong_index(n: int, rng: Random) -> Snapshot:
    """Return a world whose supervisor indexes members at wrong places of its list."""
    world = legitimate_world(n, rng)
    nodes = recorded_nodes(world)
    index = {node: place for place, node in enumerate(permuted(nodes, rng))}
    return _with_supervisor(world, SupervisorMemory(index=index))


def arbitrary_supervisor_memory(n: int, rng: Random) -> Snapshot:
    """Return a world with two swapped entries and arbitrary memory of the supervisor."""
    world = swapped_entries(n, rng)
    return _with_supervisor(world, Memories(world, rng).supervisor())


def wrong_derived_values(n: int, rng: Random, *, batch: int = 1) -> Snapshot:
    """Scatter publications; set wrong chains, weights, tree edges, claims and indexes."""
    world = scattered_publications(n, rng, batch=batch)
    draw = Memories(world, rng)
    return with_states(world, lambda _, state: replace(state, memory=draw.derived(state)))


def arbitrary_counters(n: int, rng: Random, *, batch: int = 1) -> Snapshot:
    """Scatter publications; set arbitrary counters of the subscribers."""
    return with_counters(scattered_publications(n, rng, batch=batch), rng)


def with_counters(world: Snapshot, rng: Random) -> Snapshot:
    """Return the world with arbitrary counters of the subscribers."""
    draw = Memories(world, rng)
    return with_states(world, lambda _, state: replace(state, memory=draw.counters()))


def arbitrary_deferred_work(n: int, rng: Random, *, batch: int = 1) -> Snapshot:
    """Scatter publications; set arbitrary work to index, announce and request."""
    world = scattered_publications(n, rng, batch=batch)
    draw = Memories(world, rng)
    return with_states(world, lambda _, state: replace(state, memory=draw.deferred(state)))


def arbitrary_memory(n: int, rng: Random, *, batch: int = 1) -> Snapshot:
    """Scatter publications; set every variable of every machine to an arbitrary value."""
    return with_memories(scatter(arbitrary_world(n, rng), _PUBLICATIONS, rng, batch=batch), rng)


def with_memories(world: Snapshot, rng: Random) -> Snapshot:
    """Return the world with arbitrary memory in all its machines."""
    draw = Memories(world, rng)
    changed = with_states(world, lambda _, state: replace(state, memory=draw.all_of(state)))
    return _with_supervisor(changed, draw.supervisor())


def _with_supervisor(world: Snapshot, memory: SupervisorMemory) -> Snapshot:
    return replace(world, supervisor=replace(world.supervisor, memory=memory))
