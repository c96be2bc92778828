"""Anti-entropy between two members: PublishTimeout, CheckTrie, CheckAndPublish (Algorithm 5).

A member sends a neighbour the root of its trie. If the digests differ, the neighbour replies with
its summaries below that prefix. They alternate until each knows which publications it lacks.
A summary of a range is complete, so its receiver also sends the publications that the
sender lacks there (T4): after a session that runs to its end, both tries are equal. A member stores
only that a session is open; a later session repairs the losses of an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from random import Random
from typing import Final

from skipring.core.batches import RecordBatch, in_chunks
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Origin, Outbox
from skipring.core.messages import CheckAndPublish, CheckTrie, Publications, TrieEqual
from skipring.core.peers import SUPERVISOR, NodeId, golden_fraction
from skipring.core.prefix import ALL, Prefix, are_disjoint
from skipring.core.reconcile import Reconciler
from skipring.core.replica import Replica
from skipring.core.scrub import Scrubber
from skipring.core.state import RepairState, ScrubState
from skipring.core.summaries import EMPTY_ROOT, RangeSummary, Summary
from skipring.core.terms import TermsExchange, is_fresh, is_same
from skipring.core.transfers import TransferTracker, read_ahead
from skipring.core.trie import BUCKET_IDS, PublicationTrie

SESSIONS: Final = 1 << 8  # Guess: concurrent sessions differ; a collision costs a tick or two.
NO_SESSION: Final = 0

# T2: an empty trie starts sessions too.
_NOTHING: Final = (RangeSummary.make(ALL),)
_VIRTUAL_ROOT: Final = (RangeSummary.make(ALL, [Summary(ALL, EMPTY_ROOT)]),)

COST_TOLERANCE: Final = 2  # Guess: a peer may exceed claims_bytes by this factor.


class AntiEntropy:
    """Anti-entropy of one subscriber: its own sessions and its replies to other members."""

    __slots__ = (
        "_claims",
        "_config",
        "_node",
        "_open_ticks",
        "_patience",
        "_period",
        "_quiet_ticks",
        "_replica",
        "_scrubber",
        "_session",
        "_transfers",
        "terms",
    )

    def __init__(
        self,
        node: NodeId,
        replica: Replica,
        transfers: TransferTracker,
        config: ProtocolConfig,
    ) -> None:
        self._node = node
        self._replica = replica
        self._config = config
        self._session = NO_SESSION
        self._patience = config.session_ticks
        self._open_ticks = 0  # ticks left to wait for a reply (T8)
        self._quiet_ticks = 0  # ticks until the next session (T18)
        self._period = 1
        self._claims: tuple[RangeSummary, ...] = ()  # cached, about the root
        self._transfers = transfers
        self._scrubber: Scrubber | None = None  # None until the replica is first used
        self.terms: TermsExchange | None = None  # None until a charter or terms arrive

    # -- periodic actions ------------------------------------------------------------------

    def on_tick(self, out: Outbox, *, scrubs: bool = True) -> bool:
        """Count one tick, maybe scrub; return True if a session is due (PublishTimeout)."""
        config, replica = self._config, self._replica
        replica.renew_credits()
        if replica.has_index_backlog:  # in slices: no event should take long
            if not self._transfers.is_reading:
                replica.index_some(config.hashed_ids)
            self._transfers.on_tick()
            return False
        if scrubs and config.rules.scrub and not self._transfers.is_reading:
            self._scrub(out)
        # Memory may be corrupted: clamp counters to their valid range.
        self._patience = min(max(self._patience, config.session_ticks), config.session_ticks_max)
        self._open_ticks = min(self._open_ticks, self._patience)
        self._transfers.on_tick()
        if self._transfers.is_receiving:
            return False
        self._quiet_ticks = min(self._quiet_ticks, config.quiet_ticks_max)
        if not 0 < self._period <= config.quiet_ticks_max:
            self._period = 1
        if self._open_ticks > 0:
            self._open_ticks -= 1
            if self._open_ticks == 0:  # ask an overloaded partner less often
                self._patience *= 2
            return False
        if self._quiet_ticks > 0:
            self._quiet_ticks -= 1
            return False
        return True

    def start_session(self, partners: Sequence[NodeId], rng: Random, out: Outbox) -> None:
        """Start a session with a random partner, if there is one (T16)."""
        count, counts = self._session % (SESSIONS - 1) + 1, self._config.rules.deterministic
        draw = partial(golden_fraction, count) if counts else rng.random  # D1
        claims = self._question(draw) if partners else ()
        if not claims:
            return
        self._session = count if counts else 1 + int(draw() * (SESSIONS - 1))
        # T18: the interval doubles while no session finds a difference.
        self._quiet_ticks = self._period - 1
        self._period = min(2 * self._period, self._config.quiet_ticks_max)
        partner = partners[int(draw() * len(partners))]
        out.send(partner, CheckTrie(self._node, claims, self._session, terms=self._replica.terms))
        retention = self._replica.retention
        if retention is not None and retention.is_stale:
            self._quiet_ticks = 0  # its neighbours judge it in these sessions (rule 10)

    def _scrub(self, out: Outbox) -> None:
        """Compare a slice of derived values with the values they derive from (T10 to T12)."""
        if not self._replica.is_untouched:
            if self._scrubber is None:
                self._scrubber = Scrubber(self._replica)
            self._scrubber.step(self._config.scrubbed_ids, out)

    def _question(self, draw: Callable[[], float]) -> tuple[RangeSummary, ...]:
        """Return a claim about the whole trie, or about a random prefix while digests are missing.

        Return an empty tuple if even the digest of that prefix would take too long to compute.
        """
        trie, ids = self._replica.index(), self._config.hashed_ids
        if trie.hash_some(ids):
            return self._root_claims()
        length = max(trie.bucket_bits - (ids // (2 * BUCKET_IDS)).bit_length() + 1, 1)
        prefix = Prefix(length, int(draw() * (1 << length)))
        if trie.hash_under(prefix, ids) < 0:
            return ()
        own = trie.node(prefix)
        return (
            RangeSummary.make(prefix, [Summary(own.prefix, own.digest)] if own is not None else []),
        )

    def ask_to_confirm(self, partners: Iterable[NodeId], out: Outbox) -> None:
        """Ask partners to confirm that their tries are equal to this one (T19)."""
        if self._is_busy:
            return  # the caller asks again
        if self._replica.index().hash_some(self._config.hashed_ids):
            claims, terms = self._root_claims(), self._replica.terms
            for partner in partners:
                out.send(partner, CheckTrie(self._node, claims, NO_SESSION, True, terms))

    @property
    def _is_busy(self) -> bool:
        """Return True while a backfill or an index backlog leaves no time to compare tries."""
        return self._transfers.is_reading or self._replica.has_index_backlog

    @property
    def is_behind(self) -> bool:
        """Return True if publications wait for indexing or hashing, and no backfill is running."""
        return self._replica.is_behind and not self._transfers.is_reading

    def index_some(self) -> None:
        """Index or hash a slice of the stored publications."""
        self._replica.index_some(self._config.hashed_ids)

    def drop_derived(self) -> None:
        """Drop the cached claim about the root: memory may be corrupted."""
        self._claims = ()
        if self.terms is not None:
            self.terms.audit()

    def ensure_terms(self) -> TermsExchange:
        """Return the exchange of terms; create it at the first charter or terms."""
        if self.terms is None:
            self.terms = TermsExchange(self._node, self._replica)
        return self.terms

    def reset_backoff(self) -> None:
        """Compare again soon, because the tries may differ now (T18)."""
        self._period = 1
        self._quiet_ticks = 0

    def _root_claims(self) -> tuple[RangeSummary, ...]:
        """Return the claim about the whole trie; make it again only if the root has changed."""
        trie = self._replica.index()
        if self._claims and len(trie) and self._claims[0].digests == trie.root():
            return self._claims
        if not len(trie):
            return _NOTHING if self._config.rules.cover else _VIRTUAL_ROOT
        self._claims = self._made_claims(trie)
        return self._claims

    def _made_claims(self, trie: PublicationTrie) -> tuple[RangeSummary, ...]:
        root = trie.node()
        if root is None:  # corrupted memory: the count of ids is wrong
            return ()
        # T6: the prefix of a leaf would repeat the whole id, in 33 bytes.
        is_short = root.is_leaf and self._config.rules.no_noise
        return (RangeSummary.make(ALL, [Summary(ALL if is_short else root.prefix, root.digest)]),)

    # -- messages --------------------------------------------------------------------------

    def on_check(self, message: CheckTrie | CheckAndPublish, out: Outbox) -> None:
        """Handle CheckTrie and CheckAndPublish: compare, ask for details, send publications."""
        rules = self._config.rules
        if not self._can_answer(message) or self._is_busy:
            return  # the sender asks again
        terms, is_check = self._replica.terms, type(message) is CheckTrie
        is_other = is_check and not is_same(terms, message.terms)
        if is_other and not self.ensure_terms().agrees(message.sender, message.terms, out):
            return
        is_fresh = self._replica.index().hash_some(self._config.hashed_ids)
        if is_check and is_fresh and message.claims == self._root_claims():
            self._on_equal(message, out)
            return
        if self.terms is not None:
            self.terms.on_different(message.terms)
        if type(message) is CheckTrie and message.confirm:
            self.reset_backoff()  # a later session finds the difference
            return
        if not (rules.one_session and self._transfers.is_other(message.sender, message.session)):
            self._answer(message, out)

    def _on_equal(self, message: CheckTrie | CheckAndPublish, out: Outbox) -> None:
        """Confirm an equal trie on request (T19) or to a stale member; else no reply (case i)."""
        terms = self._replica.terms
        if not is_same(terms, message.terms):
            return
        if self.terms is not None:
            self.terms.on_equal(message.terms)
        is_stale = bool(message.terms) and not is_fresh(message.terms)
        if type(message) is CheckTrie and (message.confirm or is_stale):
            out.send(message.sender, TrieEqual(self._node, self._replica.index().root(), terms))

    def _answer(self, message: CheckTrie | CheckAndPublish, out: Outbox) -> None:
        """Reply with the open ranges, and send the publications that the sender lacks."""
        answer = self._compared(message)
        chunks = self._affordable(message, answer, out)
        # Questions first: publications invalidate digests at the receiver.
        self._reply(message, answer, out)
        if not chunks and type(message) is CheckAndPublish and not self._config.rules.no_noise:
            chunks = [()]  # T6: the paper sends an empty Publish
        for left, chunk in enumerate(chunks, start=1 - len(chunks)):
            ends = NO_SESSION if left or answer.findings else message.session
            out.send(message.sender, Publications(chunk, ends, self._replica.is_fresh))
        if answer.findings or chunks:
            self.reset_backoff()
        self._transfers.on_sent(message.sender, message.session, sum(map(len, chunks)))
        if self._is_own(message.session):
            # T8: a reply in this node's session. Wait for the next one, or end the session.
            if answer.findings:
                self._open_ticks = self._patience
            else:
                self._end()

    def _is_own(self, session: int) -> bool:
        """Return True if a message belongs to the session that this node has started (T8)."""
        return session == self._session != NO_SESSION and self._config.rules.one_session

    def _can_answer(self, message: CheckTrie | CheckAndPublish) -> bool:
        """Return False if the sender is invalid, the message is too long, or claims overlap."""
        is_from_somebody = message.sender not in (self._node, SUPERVISOR)
        is_short = _cost_bytes(message) <= COST_TOLERANCE * self._config.claims_bytes
        wanted = _wanted(message)
        whole = [claim for claim in wanted if not claim.leaves]
        chosen = [claim for claim in wanted if claim.leaves]
        return (is_from_somebody and is_short) and all(
            are_disjoint([claim.prefix for claim in claims])
            for claims in (message.claims, whole, chosen)
            if len(claims) > 1
        )

    def _compared(self, message: CheckTrie | CheckAndPublish) -> Reconciler:
        """Return the reply to a message: open ranges, and publications to send."""
        answer = Reconciler(self._replica.index(), self._config, message.session)
        is_demand, rules = type(message) is CheckAndPublish, self._config.rules
        for claim in message.claims:
            answer.compare(claim, is_pushed=rules.cover or (rules.complement and is_demand))
        for claim in _wanted(message):
            answer.fetch(claim)
        return answer

    def on_publications(
        self, message: Publications, sender: NodeId | None, out: Outbox
    ) -> tuple[RecordBatch, ...]:
        """Store the batches that were missing here, and return them (Publish)."""
        batches = self._replica.trusted(message.publications, is_from_fresh=message.fresh)
        added = self._replica.add(batches, out, origin=Origin.REPAIR)
        if added:
            self.reset_backoff()
        self._transfers.on_received(sender, len(added), is_last=message.session != NO_SESSION)
        if self._is_own(message.session):
            self._end()
        return added

    def _end(self) -> None:
        """End this node's session; halve the wait for a reply in the next one."""
        self._open_ticks = 0
        self._patience //= 2

    def is_equal(self, message: TrieEqual) -> bool:
        """Return True if a peer has the same root, and the root has not changed since (T19)."""
        if self._replica.has_index_backlog:
            return False
        trie = self._replica.index()
        is_equal = trie.is_fresh and message.root == trie.root()
        return is_equal and is_same(message.terms, self._replica.terms)

    # -- state as a value --------------------------------------------------------------------

    def state(self) -> RepairState:
        """Return the variables as a value; include the cached claim only if it is wrong."""
        config, trie = self._config, self._replica.indexed_trie
        is_used = bool(self._claims) and self._claims[0].digests == trie.root()
        is_wrong = is_used and self._claims != self._made_claims(trie)
        return RepairState(
            session=self._session,
            patience=self._patience if self._patience != config.session_ticks else None,
            open_ticks=self._open_ticks,
            quiet_ticks=self._quiet_ticks,
            period=self._period,
            claims=self._claims if is_wrong else None,
        )

    @property
    def scrub(self) -> ScrubState | None:
        """Return the progress of the scrub; None if there was nothing to scrub."""
        return self._scrubber.state() if self._scrubber is not None else None

    def load(self, state: RepairState, scrub: ScrubState | None) -> None:
        """Replace the variables; the value may be corrupted."""
        self._session, self._open_ticks = state.session, state.open_ticks
        self._quiet_ticks, self._period = state.quiet_ticks, state.period
        patience = self._config.session_ticks if state.patience is None else state.patience
        self._patience, self._claims = patience, state.claims or ()
        self._scrubber = None
        if scrub is not None:
            self._scrubber = Scrubber(self._replica)
            self._scrubber.load(scrub)

    # -- replies -----------------------------------------------------------------------------

    def _reply(self, message: CheckTrie | CheckAndPublish, answer: Reconciler, out: Outbox) -> None:
        """Send the open ranges: CheckAndPublish if something is missing here, else CheckTrie."""
        to, node, session = message.sender, self._node, message.session
        terms = self._replica.terms
        for finding in answer.batches():
            if finding.is_missing_some:
                out.send(to, CheckAndPublish(node, finding.claims, session, finding.wanted, terms))
            else:
                out.send(to, CheckTrie(node, finding.claims, session, terms=terms))

    def _affordable(
        self, message: CheckTrie | CheckAndPublish, answer: Reconciler, out: Outbox
    ) -> list[tuple[RecordBatch, ...]]:
        """Return the chunks that the partner has credit for; describe the rest (T14)."""
        to, config, entries = message.sender, self._config, answer.entries()
        spent = self._replica.chunks_spent(to)
        if self.terms is not None:
            entries = self.terms.taught(message, entries, out)
        credit = min(config.answer_chunks, config.credit_chunks - spent)
        chunks: list[tuple[RecordBatch, ...]] = []
        missing = read_ahead(self._replica, entries, out) if credit > 0 else ()
        for chunk in in_chunks(missing, config.chunk_bytes):
            if len(chunks) == credit:
                answer.defer_after(chunks[-1][-1].id)
                break
            chunks.append(chunk)
        if chunks:
            self._replica.charge(to, len(chunks))
            if self.terms is not None:
                self.terms.on_sent(to, chain.from_iterable(chunks))
        return chunks


def _cost_bytes(message: CheckTrie | CheckAndPublish) -> int:
    return sum(claim.cost_bytes for claim in (*message.claims, *_wanted(message)))


def _wanted(message: CheckTrie | CheckAndPublish) -> tuple[RangeSummary, ...]:
    return message.wanted if type(message) is CheckAndPublish else ()
