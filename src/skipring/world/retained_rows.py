"""Retained rows of a topic with a charter: what every member should hold (decision 0057).

All members have the same effective charter and the same floors, which their clocks and rows
justify. Each holds exactly the rows that the policy keeps of the union, and its quarantine has no
row that belongs in the trie.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from skipring.core.batches import RecordBatch
from skipring.core.config import ProtocolConfig
from skipring.core.limits import NUMBER_MAX
from skipring.core.log import MemoryLog
from skipring.core.messages import CARRIERS, Terms
from skipring.core.peers import NodeId, TopicId
from skipring.core.retention.charter import CharterRow, PlannedCharter, charter_of, effective, rank
from skipring.core.retention.member import Retention
from skipring.core.retention.rows import keep, stamp_of
from skipring.core.state import SubscriberState
from skipring.core.subscriber import Subscriber
from skipring.world.snapshot import Parcel, SubscriberView, publications_in

Members = Mapping[NodeId, SubscriberView]


def retention_of(seen: SubscriberView) -> Retention | None:
    """Return charter, floors and quarantine of a machine or a state; None without them."""
    if isinstance(seen, Subscriber):
        return seen.replica.retention
    terms = seen.memory.terms if isinstance(seen, SubscriberState) and seen.memory else None
    if terms is None:
        return None
    made = Retention(MemoryLog(seen.batches()), ProtocolConfig.live())
    made.load(terms)
    if made.rows is not None:
        made.rows.build(len(seen.batches()))
    return made


def retention_faults(
    members: Members,
    known: Mapping[NodeId, Retention | None],
    in_flight: Sequence[Parcel],
    topic: TopicId,
) -> Iterator[str]:
    """Yield the differences between the members and the rows that the policy keeps, in words."""
    knowing = [each for each in known.values() if each is not None]
    horizon = min((each.clock.horizon for each in knowing), default=NUMBER_MAX)
    union = _union(members, in_flight, topic)
    rows = [batch for batch in union.values() if stamp_of(batch.records()) <= horizon]
    acting = _acting(rows, knowing)
    for node, retention in known.items():
        if (retention.acting if retention is not None else None) != acting:
            yield f"{node} has another effective charter"
    if acting is None:
        policy_rows = rows
    else:
        floors = knowing[0].floors.stamps
        for node, retention in known.items():
            if retention is not None and retention.floors.stamps != floors:
                yield f"{node} has other floors: {retention.floors.stamps} instead of {floors}"
        policy_rows = keep(rows, acting[0].policy, floors, final_charter(knowing))
    kept = {batch.id for batch in policy_rows}
    for node, seen in members.items():
        held = set(seen.trie().keys())
        if lacking := len(kept - held):
            yield f"{node} lacks {lacking} of {len(kept)} publications"
        if surplus := len(held - kept):
            yield f"{node} retains {surplus} publications that the policy does not keep"
        retention = known[node]
        if retention is not None:
            yield from _own_faults(node, retention)


def _own_faults(node: NodeId, retention: Retention) -> Iterator[str]:
    """Yield floors that are not justified, and quarantined rows that belong in the trie."""
    if not retention.is_justified():
        yield f"{node} has floors that its clock and rows do not justify"
    if misplaced := retention.misplaced():
        yield f"{node} has {misplaced} quarantined publications that belong in the trie"


def _union(
    members: Members, in_flight: Iterable[Parcel], topic: TopicId
) -> dict[bytes, RecordBatch]:
    """Return the readable batches in tries, and in messages to members, by id."""
    union: dict[bytes, RecordBatch] = {}
    for seen in members.values():
        indexed = set(seen.trie().keys())
        union |= {each.id: each for each in seen.batches() if each.id in indexed}
    for parcel in in_flight:
        if parcel.to in members:
            union |= {each.id: each for each in _carried(parcel)}
    return {key: each for key, each in union.items() if _is_sound(each, topic)}


def _carried(parcel: Parcel) -> tuple[RecordBatch, ...]:
    """Return the batches that a message brings; Terms bring charters only."""
    message = parcel.message
    if isinstance(message, Terms):
        return tuple(each for each in message.charters if _is_charter(each))
    return publications_in(message) if type(message) in CARRIERS else ()


def _is_charter(batch: RecordBatch) -> bool:
    try:
        records = batch.records()
    except ValueError:
        return False
    return len(records) == 1 and charter_of(records[0]) is not None


def _is_sound(batch: RecordBatch, topic: TopicId) -> bool:
    if not batch.is_genuine(topic):
        return False
    try:
        batch.records()
    except ValueError:
        return False
    return True


def _acting(rows: Iterable[RecordBatch], knowing: Sequence[Retention]) -> CharterRow | None:
    """Return the highest charter that is in effect at a member, or by the earliest clock."""
    slowest = min(knowing, key=lambda each: each.clock.earlier, default=None)
    acting = [each.acting for each in knowing if each.acting is not None]
    if slowest is not None:
        delay_us = ProtocolConfig.live().policy_delay_us
        found = [(charter_of(each.records()[0]), each.id) for each in rows if each.count == 1]
        known = [
            PlannedCharter((each, key), max(each.effective_from, each.stamp + delay_us))
            for each, key in found
            if each is not None
        ]
        own = effective(known, slowest.clock)
        acting += [own] if own is not None else []
    return max(acting, key=rank, default=None)


def final_charter(knowing: Iterable[Retention]) -> CharterRow | None:
    """Return the highest charter that no later one can cancel by the clock of a member."""
    found = [each.charters.final(each.clock) for each in knowing]
    return max([each for each in found if each is not None], key=rank, default=None)
