"""Exchange of terms between members: charter, floors, clock and freshness (decision 0057).

Members compare tries under equal terms, because they would send each other rows that the receiver
refuses. On different terms both first send their own and adopt what they can justify; the next
comparison proceeds even if the terms still differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from skipring.core.batches import RecordBatch, is_reserved
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Drop, Origin, Outbox, SaveTerms
from skipring.core.events import Tick
from skipring.core.limits import NUMBER_MAX
from skipring.core.messages import CheckAndPublish, CheckTrie, Terms
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.replica import Replica
from skipring.core.retention.charter import charter_of
from skipring.core.retention.floors import NO_FLOORS, FloorStamps
from skipring.core.retention.member import STALE, Retention, TermsState
from skipring.core.retention.retained import Dropped
from skipring.core.state import ExchangeState

TERMS_TICKS: Final = 64  # Guess: ticks between two Terms to a ring neighbour.
MET_TICKS: Final = 8  # Guess: an exchange is over by then, or its messages were lost.
PARTNERS_MAX: Final = 128  # Limit: a member has 20 neighbours in a ring of 1,000.
TAUGHT_MAX: Final = 1024  # Guess: a stale member reads this number of batches in 10 ms.
SENT_TIMES: Final = 2  # Guess: a partner that still lacks a batch refuses it, perhaps by its clock.
SENT_MAX: Final = 4096  # Limit: batches sent since the last audit, in memory.
COMPARISONS_MIN: Final = 8  # rule 11: 4 ceil(log2 n) + 8 comparisons
COMPARISONS_LEVEL: Final = 4


def is_same(one: bytes, other: bytes) -> bool:
    """Return True if two digests are of the same charter and floors."""
    return one[:-1] == other[:-1] and (not one or one[-1] | STALE == other[-1] | STALE)


def is_fresh(terms: bytes) -> bool:
    """Return True if the sender of a digest has a charter and is not stale."""
    return bool(terms) and not terms[-1] & STALE


class TermsExchange:
    """Terms of one subscriber, and its partners in the exchange of terms."""

    __slots__ = (
        "_equal",
        "_has_counted",
        "_known",
        "_levels",
        "_met",
        "_node",
        "_replica",
        "_sent",
        "_ticks",
    )

    def __init__(self, node: NodeId, replica: Replica) -> None:
        self._node = node
        self._replica = replica
        self._equal = 0  # equal comparisons with stale members only, in a row
        self._has_counted = False  # an equal comparison, since the last tick
        self._levels = 0  # of the ring, estimated
        self._met: dict[NodeId, int] = {}  # partners, with the ticks in which they may compare
        self._known: tuple[bytes, ...] = ()  # charters at the last tick
        self._ticks = 0  # until the next Terms to the ring neighbours
        self._sent: dict[tuple[NodeId, bytes], int] = {}  # times, since the last audit

    # -- periodic actions --------------------------------------------------------------------

    def on_tick(
        self,
        event: Tick,
        ring_neighbours: Sequence[NodeId],
        levels: int,
        config: ProtocolConfig,
        out: Outbox,
    ) -> None:
        """Set the clocks, drop rows that are not retained, and send terms at times."""
        retention = self._replica.retention
        self._met = {
            node: min(ticks, MET_TICKS) - 1 for node, ticks in self._met.items() if ticks > 1
        }
        if retention is None:
            return
        retention.on_tick(event.now, event.monotonic, ring_neighbours)
        self._has_counted = False
        self.drop_some(config.dropped_batches, out)
        self._levels = levels
        if not ring_neighbours and not retention.is_stale:
            retention.confirm()
        self._announce(ring_neighbours, retention, out)
        for key in retention.quarantine.due(retention.clock.horizon):
            self._replica.reveal(key)

    def _announce(
        self, ring_neighbours: Sequence[NodeId], retention: Retention, out: Outbox
    ) -> None:
        """Send terms to the ring neighbours, and save them, at times and after a new charter."""
        # Memory may be corrupted: clamp the counter to its valid range.
        self._ticks = min(max(self._ticks, 0), TERMS_TICKS) - 1
        known, self._known = self._known, retention.charters.ids
        if self._ticks >= 0 and known == self._known:
            clock = retention.clock
            for node in ring_neighbours if clock.is_known else ():
                if not clock.has_clock_of(node):
                    self._send(node, out, asks=True)
            return
        self._ticks = TERMS_TICKS
        for node in ring_neighbours:
            self._send(node, out, asks=False)
        saved = retention.saved()
        if known != self._known or saved != self._replica.log.terms:
            out.append(SaveTerms(saved, retention.policy.max_bytes))

    @property
    def has_to_drop(self) -> bool:
        """Return True if batches of a large log wait to be indexed."""
        return self._replica.retention is not None and self._replica.retention.is_behind

    def drop_some(self, batches: int, out: Outbox, confirmed: FloorStamps = NO_FLOORS) -> None:
        """Drop the next batches that the topic does not retain, or quarantine those of the future.

        ``confirmed`` are the floors in the message of a ring neighbour that is handled now.
        """
        replica, retention = self._replica, self._replica.retention
        if retention is not None and retention.is_unsure:
            return
        if retention is None or not replica.is_idle:
            return
        for key, offset in retention.hide_early(batches):
            replica.remove(key, offset)
        dropped = retention.next_drops(batches, confirmed)
        for offset, batch in dropped:
            if batch is not None:
                replica.remove(batch.id, offset)
                retention.departed.add(offset, batch)
        if dropped:
            out.append(_drop(dropped, replica.log.low))

    def audit(self) -> None:
        """Derive the charter again, and admit quarantined batches that belong in the trie."""
        self._sent = {}
        retention = self._replica.retention
        for key in retention.audit() if retention is not None else ():
            self._replica.reveal(key)

    # -- messages ----------------------------------------------------------------------------

    def agrees(self, node: NodeId, terms: bytes, out: Outbox) -> bool:
        """Return True if tries may be compared with a partner; else start an exchange of terms."""
        if is_same(terms, self._replica.terms) or node in self._met:
            return True
        self._meet(node)
        self._send(node, out, asks=True)
        return False

    def _meet(self, node: NodeId) -> None:
        self._met.pop(node, None)
        self._met[node] = MET_TICKS
        if len(self._met) > PARTNERS_MAX:
            del self._met[next(iter(self._met))]

    def _send(self, node: NodeId, out: Outbox, *, asks: bool) -> None:
        retention = self._replica.retention
        if retention is None:
            out.send(node, Terms(self._node, (), NO_FLOORS, 0, asks))
            return
        stamps = retention.floors.stamps
        message = Terms(
            self._node,
            retention.charters.batches(),
            FloorStamps(*map(_number, (stamps.age, stamps.full, stamps.tombstones))),
            retention.clock.own,
            asks,
        )
        out.send(node, message)

    def on_terms(
        self, message: Terms, ring_neighbours: Sequence[NodeId], batches: int, out: Outbox
    ) -> None:
        """Adopt what this node's clock and rows justify, drop rows, and answer with its terms."""
        node, replica = message.sender, self._replica
        if node in (self._node, SUPERVISOR):
            return
        rows = [each for each in message.charters if _is_charter(each)]
        replica.add(rows, out, origin=Origin.REPAIR)
        retention = replica.retention
        if retention is not None:
            is_neighbour = node in ring_neighbours
            if is_neighbour:  # before the floors, which the clocks justify
                retention.clock.record(node, message.clock)
                retention.charters.confirm(rows[0].id if rows else b"")
                retention.choose(replica.end)
            retention.adopt(message.floors, from_ring_neighbour=is_neighbour)
            confirmed = message.floors if is_neighbour else NO_FLOORS
            self.drop_some(batches, out, confirmed)
        self._meet(node)
        if message.asks:
            self._send(node, out, asks=False)

    # -- stale members (rules 9 to 11) -------------------------------------------------------

    def on_equal(self, terms: bytes) -> None:
        """Record an equal trie of a partner under equal terms."""
        retention = self._replica.retention
        if retention is None:
            return
        if is_fresh(terms):
            self._equal = 0
            retention.confirm()
        elif retention.is_stale and not self._has_counted:  # one for each tick
            self._has_counted = True
            # Memory may be corrupted: clamp the counter to its valid range.
            self._equal = min(max(self._equal, 0), self._needed) + 1
            if self._equal > self._needed:
                self._equal = 0
                retention.confirm()

    def on_different(self, terms: bytes) -> None:
        """Record a different trie of a partner: a fresh one interrupts the count."""
        if is_fresh(terms):
            self._equal = 0

    @property
    def _needed(self) -> int:
        return COMPARISONS_LEVEL * min(max(self._levels, 0), 64) + COMPARISONS_MIN

    def taught(
        self,
        message: CheckTrie | CheckAndPublish,
        entries: Iterable[tuple[bytes, int]],
        out: Outbox,
    ) -> Iterator[tuple[bytes, int]]:
        """Yield the entries that this node sends to a partner that lacks them (rule 10).

        A stale node withholds old rows from a fresh partner and quarantines them, once it is sure
        that it is stale. Batches that the partner has refused are sent again after the next audit.
        """
        replica, retention, to = self._replica, self._replica.retention, message.sender
        entries = (each for each in entries if self._sent.get((to, each[0]), 0) < SENT_TIMES)
        is_sure = retention is not None and retention.is_stale and not retention.is_unsure
        if retention is None or not (is_sure and is_fresh(message.terms)):
            yield from entries
            return
        for key, offset in list(islice(entries, TAUGHT_MAX)):
            batch = replica.read(key, offset, out)
            if batch is not None and not retention.withholds(batch):
                yield key, offset
            elif batch is not None and retention.hide(offset, batch):
                replica.remove(key, offset)

    def on_sent(self, node: NodeId, batches: Iterable[RecordBatch]) -> None:
        """Count the batches that were sent to a partner."""
        for batch in batches:
            place = node, batch.id
            self._sent[place] = self._sent.pop(place, 0) + 1
        while len(self._sent) > SENT_MAX:
            del self._sent[next(iter(self._sent))]

    # -- state as a value --------------------------------------------------------------------

    def state(self) -> ExchangeState:
        """Return the variables as a value."""
        return ExchangeState(
            equal=self._equal,
            levels=self._levels,
            met=dict(self._met),
            ticks=self._ticks,
        )

    def load(self, state: ExchangeState) -> None:
        """Replace the variables; the value may be corrupted."""
        self._equal, self._levels, self._ticks = state.equal, state.levels, state.ticks
        self._met = dict(state.met)


def load_terms(replica: Replica, state: TermsState) -> None:
    """Replace clocks, floors and quarantine of a replica; the value may be corrupted."""
    retention = replica.ensure_retention()
    retention.load(state)
    for key, offset in retention.quarantine.hidden.items():
        replica.remove(key, offset)


def _drop(dropped: Iterable[Dropped], low: int) -> Drop:
    """Return the effect that drops batches: those at the begin of the log, and single ones."""
    by_offset = sorted({each.offset: each.batch for each in dropped}.items())
    begin = 0
    for offset, batch in by_offset:
        if offset != low or batch is None:
            break
        low, begin = offset + max(batch.count, 1), begin + 1
    return Drop(low if begin else 0, tuple([offset for offset, _ in by_offset[begin:]]))


def _is_charter(batch: RecordBatch) -> bool:
    """Return True if a batch in Terms has a charter; others are ignored."""
    try:
        records = batch.records()
    except ValueError:
        return False
    return is_reserved(records) and charter_of(records[0]) is not None


def _number(stamp: int) -> int:
    """Return a stamp for a message; memory may be corrupted."""
    return min(max(stamp, 0), NUMBER_MAX)
