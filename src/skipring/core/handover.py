"""Handover of publications to one member, until it has confirmed them (decision 0049).

A holder asks a receiver about ranges of ids: a prefix and the digest of everything under it. The
receiver confirms the equal ranges and names those that differ. The holder splits a range that
differs, down to lists of ids, sends the publications that the receiver lacks and asks again. A
member drops or hides only what the policy of the topic excludes, so a confirmed range need not be
asked about again: a handover ends even under steady publishing, at a cost proportional to the
difference. A receiver with a disk confirms after the sync. Quarantined batches are not handed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Final

from msgspec import Struct

from skipring.core.batches import in_chunks
from skipring.core.config import ProtocolConfig
from skipring.core.effects import HeldBy, Outbox, SendSynced
from skipring.core.messages import (
    IDS_ASKED,
    CheckHeld,
    HandoverDone,
    Held,
    Publications,
    RequestHandover,
    ids_in,
)
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.prefix import ALL, Prefix
from skipring.core.replica import Replica
from skipring.core.retention.member import Retention
from skipring.core.state import HandoversState, HandoverState
from skipring.core.summaries import RangeSummary, Summary
from skipring.core.transfers import read_ahead

RANGES_ASKED: Final = 64  # Guess: 2 KiB of claims in a question.
IDS_LISTED: Final = 64  # Guess: a range of at most 64 ids is listed, not split.
LEVELS_SPLIT: Final = 4  # Guess: the same as batch_levels.
IDS_OPEN: Final = 2048  # Limit: with more open ids the holder asks about no range.
HANDOVERS_MAX: Final = 16  # Limit: concurrent handovers on request; the same for other handovers.
REPEAT_TICKS: Final = 2  # A question without a reply for this many ticks counts as lost.
SENT_MAX: Final = 8  # Guess: a receiver that still lacks the publication then refuses it.
PATIENCE_TICKS: Final = 8  # Guess: a handover without progress for longer ends.
SESSIONS: Final = 1 << 31


class _Handover(Struct):
    """Ranges and ids that one receiver has not confirmed."""

    session: int
    ranges: dict[Prefix, None]
    ids: dict[bytes, int]  # id -> number of times sent
    request: int | None = None  # session of the receiver's request; it expects HandoverDone
    is_waiting: bool = False  # for a reply
    ticks: int = 0  # since the last progress

    @property
    def is_requested(self) -> bool:
        return self.request is not None

    @property
    def is_over(self) -> bool:
        return not self.ranges and not self.ids


class Handovers:
    """Handovers of one subscriber, and its confirmations to other holders."""

    __slots__ = ("_config", "_node", "_replica", "_session", "by_receiver")

    def __init__(self, node: NodeId, replica: Replica, config: ProtocolConfig) -> None:
        self._node = node
        self._replica = replica
        self._config = config
        self._session = 0
        self.by_receiver: dict[NodeId, _Handover] = {}

    def __contains__(self, node: NodeId) -> bool:
        return node in self.by_receiver

    # -- the holder --------------------------------------------------------------------------

    def start(
        self,
        to: NodeId,
        out: Outbox,
        *,
        ids: Iterable[bytes] = (),
        everything: bool = False,
        request: int | None = None,
        is_drain: bool = False,
    ) -> bool:
        """Hand publications over to a node, in addition to those of a current handover.

        Return False if there are too many receivers, or if the node cannot be one. A drain has one
        receiver and no limit. Handovers on request and other handovers have separate limits.
        """
        handover = self.by_receiver.get(to)
        if handover is None:
            is_full = (
                not is_drain and self._count(is_requested=request is not None) >= HANDOVERS_MAX
            )
            if is_full or to in (self._node, SUPERVISOR):
                return False
            handover = self.by_receiver[to] = _Handover(self._next_session(), {}, {})
        for key in ids:
            handover.ids.setdefault(key, 0)
        if everything:
            handover.ranges = {ALL: None}
            # Replies to earlier questions cover only publications held before.
            handover.session, handover.is_waiting = self._next_session(), False
            handover.ticks = 0
        if request is not None:
            handover.request = request
        if not handover.is_waiting:
            self._ask(to, handover, out)
        return True

    def _count(self, *, is_requested: bool) -> int:
        return sum(each.is_requested == is_requested for each in self.by_receiver.values())

    def on_request(
        self, message: RequestHandover, neighbours: Sequence[NodeId], out: Outbox
    ) -> None:
        """Hand everything over to a node that requests it, in one handover at a time.

        At the limit, a neighbour replaces a receiver that is not a neighbour.
        """
        handover = self.by_receiver.get(message.sender)
        if handover is not None and handover.is_requested:
            return
        if message.sender in neighbours and self._count(is_requested=True) >= HANDOVERS_MAX:
            others = (n for n, each in self.by_receiver.items() if each.is_requested)
            self.stop(next((node for node in others if node not in neighbours), ""))
        self.start(message.sender, out, everything=True, request=message.session)

    def stop(self, to: NodeId) -> None:
        """End the handover to a node."""
        self.by_receiver.pop(to, None)

    def _next_session(self) -> int:
        self._session = (self._session + 1) % SESSIONS
        return self._session

    def on_held(self, message: Held, out: Outbox) -> None:
        """Record confirmations of a receiver, send missing publications, ask about the rest.

        Progress is one range or id less to confirm, or a publication sent for the first time. After
        a reply without progress, the next question waits for the tick.
        """
        handover = self.by_receiver.get(message.sender)
        if handover is None or handover.session != message.session:
            return
        handover.session, handover.is_waiting = self._next_session(), False
        held = tuple(key for key in ids_in(message.held) if key in handover.ids)
        for key in held:
            del handover.ids[key]
        if held:
            out.append(HeldBy(message.sender, held, message.durable))
        # Splitting would index a backlog at once: the range is asked about again later.
        is_progress, is_behind = bool(held), self._replica.has_index_backlog
        for claim in message.claims:
            prefix = claim.prefix
            if prefix in handover.ranges and (claim.digests or not is_behind):
                del handover.ranges[prefix]
                is_progress = True
                if not claim.digests:
                    self._split(handover, prefix)
        missing = [key for key in ids_in(message.missing) if key in handover.ids]
        if self._send(message.sender, handover, missing, out) or is_progress:
            handover.ticks = 0
            if message.sender in self.by_receiver:
                self._ask(message.sender, handover, out)

    def _split(self, handover: _Handover, prefix: Prefix) -> None:
        """Replace a range that differs with its parts, or with its ids if there are few."""
        trie = self._replica.index()
        if trie.has_at_most(IDS_LISTED, prefix):
            for key in trie.keys(prefix):
                handover.ids.setdefault(key, 0)
            return
        parts = 1 << LEVELS_SPLIT
        for value in range(prefix.value * parts, (prefix.value + 1) * parts):
            part = Prefix(prefix.length + LEVELS_SPLIT, value)
            if not trie.has_at_most(0, part):
                handover.ranges[part] = None

    def _send(self, to: NodeId, handover: _Handover, missing: list[bytes], out: Outbox) -> bool:
        """Send missing publications within the credit (T14); return True if that is progress.

        A receiver that still lacks a sent publication may have had no room. End the handover after
        sending one publication more than SENT_MAX times.
        """
        config, replica, ids = self._config, self._replica, handover.ids
        credit = min(config.credit_chunks - replica.chunks_spent(to), config.answer_chunks)
        entries = [(key, at) for key in missing if (at := replica.offset_of(key)) is not None]
        retention = replica.retention
        if retention is not None and retention.is_unsure:
            return False
        if retention is not None and retention.is_stale:  # it keeps its old rows (decision 0057)
            entries = self._taught(handover, entries, retention, out)
        found = in_chunks(read_ahead(replica, iter(entries), out), config.chunk_bytes)
        chunks = list(islice(found, max(credit, 0)))
        for chunk in chunks:
            out.send(to, Publications(chunk, fresh=replica.is_fresh))
        replica.charge(to, len(chunks))
        is_progress = False
        for batch in chain.from_iterable(chunks):
            ids[batch.id] = max(ids[batch.id], 0) + 1  # memory may be corrupted
            is_progress = is_progress or ids[batch.id] == 1
            if ids[batch.id] > SENT_MAX:
                self.stop(to)
                return False
        for key in missing:
            if replica.offset_of(key) is None:  # lost on this node too
                ids.pop(key, None)
                is_progress = True
        return is_progress

    def _taught(
        self,
        handover: _Handover,
        entries: list[tuple[bytes, int]],
        retention: Retention,
        out: Outbox,
    ) -> list[tuple[bytes, int]]:
        """Drop the rows from the handover that a stale member does not teach.

        A leaving member quarantines them: its host counts what was not handed over.
        """
        taught: list[tuple[bytes, int]] = []
        for key, offset in entries:
            batch = self._replica.read(key, offset, out)
            if batch is not None and retention.withholds(batch):
                handover.ids.pop(key, None)
                if not handover.is_requested and retention.hide(offset, batch):
                    self._replica.remove(key, offset)
            else:
                taught.append((key, offset))
        return taught

    def _ask(self, to: NodeId, handover: _Handover, out: Outbox) -> bool:
        """Ask about the next ids and ranges; return False if there is nothing to ask now."""
        ids = tuple(islice(handover.ids, IDS_ASKED))
        claims = self._claims(handover) if len(handover.ids) < IDS_OPEN else []
        is_asked = bool(ids or claims)
        if is_asked:
            if not 0 <= handover.session < SESSIONS:  # memory may be corrupted
                handover.session = self._next_session()
            handover.is_waiting = True
            out.send(to, CheckHeld(self._node, handover.session, tuple(claims), b"".join(ids)))
        return is_asked

    def _claims(self, handover: _Handover) -> list[RangeSummary]:
        """Return claims about the next ranges, limited by the time for hashing."""
        if not handover.ranges or self._replica.has_index_backlog:
            return []
        trie, left = self._replica.index(), self._config.answer_ids
        claims: list[RangeSummary] = []
        for prefix in list(islice(reversed(handover.ranges), RANGES_ASKED)):
            left = trie.hash_under(prefix, left)
            if left < 0:
                break
            claim = _claim(prefix, trie.digest(prefix))
            if claim is not None:
                claims.append(claim)
            else:
                del handover.ranges[prefix]
        return claims

    def unconfirmed(self, to: NodeId) -> int:
        """Return an upper bound on the publications that a receiver has not confirmed."""
        handover = self.by_receiver.get(to)
        return self._replica.records_of(handover.ids, handover.ranges) if handover else 0

    def finished(self, out: Outbox, *, is_complete: bool) -> list[NodeId]:
        """Remove the finished handovers; return their receivers."""
        over = [node for node, handover in self.by_receiver.items() if handover.is_over]
        for node in over:
            request = self.by_receiver.pop(node).request
            # Memory may be corrupted: the session may be out of range.
            if request is not None and 0 <= request < SESSIONS:
                out.send(node, HandoverDone(self._node, request, is_complete))
        if not self.by_receiver:
            self.by_receiver = {}  # a dict keeps the memory of its largest size until it is dropped
        return over

    def on_tick(self, out: Outbox) -> None:
        """Repeat unanswered questions; end handovers to receivers without progress."""
        for node, handover in list(self.by_receiver.items()):
            # Memory may be corrupted: a counter below 0 counts as 0.
            ticks = max(handover.ticks, 0) + 1
            is_early = handover.is_waiting and ticks % REPEAT_TICKS != 0
            if ticks > PATIENCE_TICKS:
                del self.by_receiver[node]
            elif is_early or self._ask(node, handover, out):
                handover.ticks = ticks  # a tick without a question does not count: the index lags

    # -- the receiver ------------------------------------------------------------------------

    def on_check_held(self, message: CheckHeld, out: Outbox) -> None:
        """Confirm, after the sync, which of another node's publications this node holds."""
        is_from_somebody = message.sender not in (self._node, SUPERVISOR)
        keys = ids_in(message.ids)
        if not is_from_somebody or len(keys) > IDS_ASKED or len(message.claims) > RANGES_ASKED:
            return
        held = [key for key in keys if self._replica.offset_of(key) is not None]
        # A node that still reads its log after a start does not know which ids are missing.
        is_known = not self._replica.is_starting
        missing = [key for key in keys if is_known and self._replica.offset_of(key) is None]
        claims = self._compared(message.claims)
        if held or missing or claims:
            answer = Held(
                self._node,
                message.session,
                self._replica.log.is_durable,
                tuple(claims),
                b"".join(held),
                b"".join(missing),
            )
            out.append(SendSynced(message.sender, answer))

    def _compared(self, claims: Iterable[RangeSummary]) -> list[RangeSummary]:
        """Return each claim unchanged if it is true here too, else without its digest.

        The time for hashing limits their number; the holder asks about the others again.
        """
        compared: list[RangeSummary] = []
        if self._replica.has_index_backlog:
            return compared
        trie, left = self._replica.index(), self._config.answer_ids
        for claim in claims:
            prefix = claim.prefix
            left = trie.hash_under(prefix, left)
            if left < 0:
                break
            own = _claim(prefix, trie.digest(prefix))
            compared.append(claim if claim == own else RangeSummary.make(prefix))
        return compared

    # -- state as a value --------------------------------------------------------------------

    def state(self) -> HandoversState:
        """Return the variables as a value."""
        return HandoversState(
            session=self._session,
            to={
                node: HandoverState(
                    each.session,
                    tuple(each.ranges),
                    dict(each.ids),
                    each.request,
                    each.is_waiting,
                    each.ticks,
                )
                for node, each in self.by_receiver.items()
            },
        )

    def load(self, state: HandoversState) -> None:
        """Replace the variables; the value may be corrupted."""
        self._session = state.session
        self.by_receiver = {
            node: _Handover(
                each.session,
                dict.fromkeys(each.ranges),
                dict(each.ids),
                each.request,
                each.waiting,
                each.ticks,
            )
            for node, each in state.to.items()
        }


def _claim(prefix: Prefix, digest: bytes) -> RangeSummary | None:
    """Return the claim about everything under a prefix; None if there are no ids."""
    return RangeSummary.make(prefix, [Summary(prefix, digest)]) if digest else None
