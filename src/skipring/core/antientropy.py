"""Anti-entropy between two members: PublishTimeout, CheckTrie, CheckAndPublish (Algorithm 5).

A member sends a neighbour the root of its trie. Where digests differ, the neighbour replies with
its summaries below that prefix, and so on in turns, until both know what each of them lacks. A
summary of a range is complete, so its receiver can also send the publications that are missing
there (T4): every pair of tries is equal after one session. A member stores nothing about a session
except that it is open; a later session repairs what an earlier one lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Final

from skipring.core.backfill import TransferTracker
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Origin, Outbox, PeerInSync
from skipring.core.events import HistoryRead
from skipring.core.messages import CheckAndPublish, CheckTrie, Publications, TrieEqual
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.prefix import ALL, Prefix, are_disjoint
from skipring.core.publications import Publication
from skipring.core.reconcile import Reconciler
from skipring.core.replica import Replica
from skipring.core.scrub import Scrubber
from skipring.core.state import RepairState, ScrubState
from skipring.core.summaries import EMPTY_ROOT, RangeSummary, Summary
from skipring.core.trie import BUCKET_IDS, PublicationTrie

# Our guess: enough to tell one's own session from another that happens to cross it, mostly; a
# mistake costs a tick or two.
SESSIONS: Final = 1 << 8
NO_SESSION: Final = 0

# T2: an empty trie asks like all others.
_NOTHING: Final = (RangeSummary.make(ALL),)
_VIRTUAL_ROOT: Final = (RangeSummary.make(ALL, [Summary(ALL, EMPTY_ROOT)]),)

SIZE_TOLERANCE: Final = 2  # Our guess: of what others may put into a message.


class AntiEntropy:
    """One subscriber's part in making all tries equal."""

    __slots__ = (
        "_claims",
        "_config",
        "_histories",
        "_holdings",
        "_node",
        "_open_ticks",
        "_patience",
        "_period",
        "_quiet_ticks",
        "_scrubbing",
        "_session",
    )

    def __init__(self, node: NodeId, holdings: Replica, config: ProtocolConfig) -> None:
        self._node = node
        self._holdings = holdings
        self._config = config
        self._session = NO_SESSION
        self._patience = config.session_ticks
        self._open_ticks = 0  # for which we still wait for an answer (T8)
        self._quiet_ticks = 0  # until we ask again (T18)
        self._period = 1
        self._claims: tuple[RangeSummary, ...] = ()  # of the root
        self._histories = TransferTracker(config)
        self._scrubbing: Scrubber | None = None  # as long as there is nothing to be scrubbed

    # -- periodic actions ------------------------------------------------------------------

    def on_tick(self, partners: Sequence[NodeId], rng: Random, out: Outbox) -> None:
        """PublishTimeout: tell a random neighbour the root (T16: if there is one)."""
        config, holdings = self._config, self._holdings
        holdings.renew_credits()
        if holdings.has_index_backlog:  # nothing takes long at once
            if not self._histories.is_reading:
                holdings.index_some(config.hashed_ids)
            self._histories.on_tick()
            return
        if config.rules.scrub and not self._histories.is_reading:
            self._scrub(out)
        # Memory may be corrupted: no counter is believed beyond what it can have been set to.
        self._patience = min(max(self._patience, config.session_ticks), config.session_ticks_max)
        self._open_ticks = min(self._open_ticks, self._patience)
        self._histories.on_tick()
        if self._histories.is_receiving:
            return
        self._quiet_ticks = min(self._quiet_ticks, config.quiet_ticks_max)
        if not 0 < self._period <= config.quiet_ticks_max:
            self._period = 1
        if self._open_ticks > 0:
            self._open_ticks -= 1
            if self._open_ticks == 0:  # whoever has more to do than time gets fewer questions
                self._patience *= 2
            return
        if self._quiet_ticks > 0:
            self._quiet_ticks -= 1
            return
        claims = self._question(rng) if partners else ()
        if not claims:
            return
        self._session = 1 + int(rng.random() * (SESSIONS - 1))
        # T18: the longer nothing differs, the more rarely anybody asks.
        self._quiet_ticks = self._period - 1
        self._period = min(2 * self._period, config.quiet_ticks_max)
        partner = partners[int(rng.random() * len(partners))]
        out.send(partner, CheckTrie(self._node, claims, self._session))

    def _scrub(self, out: Outbox) -> None:
        """T10 to T12: hold a slice of what is kept against what it was derived from."""
        if not self._holdings.is_untouched:
            if self._scrubbing is None:
                self._scrubbing = Scrubber(self._holdings)
            self._scrubbing.step(self._config.scrubbed_ids, out)

    def _question(self, rng: Random) -> tuple[RangeSummary, ...]:
        """A claim about all that we hold; about a part of it while hashes cannot keep up."""
        trie, ids = self._holdings.trie, self._config.hashed_ids
        if trie.freshen(ids):
            return self._root_claims()
        length = max(trie.bucket_bits - (ids // (2 * BUCKET_IDS)).bit_length() + 1, 1)
        prefix = Prefix(length, int(rng.random() * (1 << length)))
        if trie.work_out(prefix, ids) < 0:
            return ()
        own = trie.node(prefix)
        return (
            RangeSummary.make(prefix, [Summary(own.prefix, own.digest)] if own is not None else []),
        )

    def ask_to_confirm(self, partners: Iterable[NodeId], out: Outbox) -> None:
        """Ask whether the partners' tries are equal to ours, and to be told if they are (T19)."""
        if self._is_busy:
            return  # whoever wants to know asks again
        if self._holdings.trie.freshen(self._config.hashed_ids):
            claims = self._root_claims()
            for partner in partners:
                out.send(partner, CheckTrie(self._node, claims, self._session, confirm=True))

    @property
    def _is_busy(self) -> bool:
        """True while so much comes, or has come, that there is no time to compare tries."""
        return self._histories.is_reading or self._holdings.has_index_backlog

    @property
    def is_behind(self) -> bool:
        """True if there is something to be worked off before tries are compared."""
        return self._holdings.is_behind and not self._histories.is_reading

    def index_some(self) -> None:
        """Index and hash a slice of what has come."""
        self._holdings.index_some(self._config.hashed_ids)

    def drop_derived(self) -> None:
        """Let the claim about the root be made again: memory may be corrupted."""
        self._claims = ()

    def reset_backoff(self) -> None:
        """Something is new here or there: compare again soon (T18)."""
        self._period = 1
        self._quiet_ticks = 0

    def _root_claims(self) -> tuple[RangeSummary, ...]:
        """What the root says of all that we hold, made anew only when it has changed."""
        trie = self._holdings.trie
        if self._claims and len(trie) and self._claims[0].digests == trie.root:
            return self._claims
        if not len(trie):
            return _NOTHING if self._config.rules.cover else _VIRTUAL_ROOT
        self._claims = self._made_claims(trie)
        return self._claims

    def _made_claims(self, trie: PublicationTrie) -> tuple[RangeSummary, ...]:
        root = trie.node()
        if root is None:  # corrupted memory: the count is wrong
            return ()
        # T6: the label of a leaf would say it all once more, in 33 bytes.
        is_short = root.is_leaf and self._config.rules.no_noise
        return (RangeSummary.make(ALL, [Summary(ALL if is_short else root.prefix, root.digest)]),)

    # -- messages --------------------------------------------------------------------------

    def on_check(self, message: CheckTrie | CheckAndPublish, out: Outbox) -> None:
        """CheckTrie and CheckAndPublish: compare, ask for more, send what is lacking there."""
        rules = self._config.rules
        if not self._can_answer(message) or self._is_busy:
            return  # who asks will ask again
        is_fresh = self._holdings.trie.freshen(self._config.hashed_ids)
        if is_fresh and type(message) is CheckTrie and message.claims == self._root_claims():
            self._on_equal(message, out)
            return
        if type(message) is CheckTrie and message.confirm:
            self.reset_backoff()  # it only wants to know; a session will find what differs
            return
        if not (rules.one_session and self._histories.is_other(message.sender, message.session)):
            self._answer(message, out)

    def _answer(self, message: CheckTrie | CheckAndPublish, out: Outbox) -> None:
        """Say what is still open, and send what is lacking."""
        answer = self._compared(message)
        chunks = self._affordable(message.sender, answer, out)
        # Questions first: what the publications are put to makes hashes unknown over there.
        self._reply(message, answer, out)
        if not chunks and type(message) is CheckAndPublish and not self._config.rules.no_noise:
            chunks = [[]]  # T6: the paper also sends nothing
        for left, chunk in enumerate(chunks, start=1 - len(chunks)):
            ends = NO_SESSION if left or answer.statements else message.session
            out.send(message.sender, Publications(tuple(chunk), ends))
        if answer.statements or chunks:
            self.reset_backoff()
        self._histories.on_sent(message.sender, message.session, sum(map(len, chunks)))
        if self._is_own(message.session):
            # T8: an answer to our own question. Wait for the next one, or ask somebody else.
            if answer.statements:
                self._open_ticks = self._patience
            else:
                self._end()

    def _is_own(self, session: int) -> bool:
        """True if a message belongs to the session that we have begun (T8)."""
        return session == self._session != NO_SESSION and self._config.rules.one_session

    def _can_answer(self, message: CheckTrie | CheckAndPublish) -> bool:
        """False for what is from nobody, too long, or says the same thing twice."""
        is_from_somebody = message.sender not in (self._node, SUPERVISOR)
        is_short = _size_bytes(message) <= SIZE_TOLERANCE * self._config.claims_bytes
        whole = (claim for claim in _wanted(message) if not claim.leaves)
        chosen = (claim for claim in _wanted(message) if claim.leaves)
        return (is_from_somebody and is_short) and all(
            are_disjoint(claim.prefix for claim in claims)
            for claims in (message.claims, whole, chosen)
        )

    def _compared(self, message: CheckTrie | CheckAndPublish) -> Reconciler:
        """What is to be said and sent in answer to a message."""
        answer = Reconciler(self._holdings.trie, self._config, message.session)
        is_demand, rules = type(message) is CheckAndPublish, self._config.rules
        for claim in message.claims:
            answer.compare(claim, is_pushed=rules.cover or (rules.complement and is_demand))
        for claim in _wanted(message):
            answer.fetch(claim)
        return answer

    def _on_equal(self, message: CheckTrie, out: Outbox) -> None:
        """Case (i) at the root: silence, unless the sender wants to know (T19)."""
        if message.confirm:
            out.send(message.sender, TrieEqual(self._node, self._holdings.trie.root))

    def on_publications(
        self, message: Publications, sender: NodeId | None, out: Outbox
    ) -> tuple[Publication, ...]:
        """Publish(P): take in what we lacked; return it."""
        taken = self._holdings.add(message.publications, out, origin=Origin.REPAIR)
        if taken:
            self.reset_backoff()
        self._histories.on_received(sender, len(taken), is_last=message.session != NO_SESSION)
        if self._is_own(message.session):
            self._end()
        return taken

    def on_history(self, part: HistoryRead, out: Outbox) -> None:
        """Take in a part of a history that was read from neighbours; the last one is empty."""
        if part.is_awaited:
            self._histories.on_page(is_last=False)
            return
        is_new = self._holdings.add_backfill(part, out)
        if is_new or not part.publications:
            self.reset_backoff()
            self._histories.on_page(is_last=not part.publications)

    def _end(self) -> None:
        """A session of ours is over; the next one may be quicker."""
        self._open_ticks = 0
        self._patience //= 2

    def on_trie_equal(self, message: TrieEqual, out: Outbox) -> None:
        """The sender had the same root; it counts only if it still is ours (T19)."""
        trie = self._holdings.trie
        if trie.is_fresh and message.root == trie.root:
            out.effects.append(PeerInSync(message.sender, message.root))

    # -- state as a value --------------------------------------------------------------------

    def state(self) -> RepairState:
        """What we remember; the claim about the root only if it is wrong."""
        config, trie = self._config, self._holdings.indexed
        is_used = bool(self._claims) and self._claims[0].digests == trie.root
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
    def histories(self) -> TransferTracker:
        """The histories that we take part in."""
        return self._histories

    @property
    def scrub(self) -> ScrubState | None:
        """How far the scrub has come; None if there was nothing to be scrubbed."""
        return self._scrubbing.state() if self._scrubbing is not None else None

    def load(self, state: RepairState, scrub: ScrubState | None) -> None:
        """Take over what we are supposed to remember."""
        self._session, self._open_ticks = state.session, state.open_ticks
        self._quiet_ticks, self._period = state.quiet_ticks, state.period
        patience = self._config.session_ticks if state.patience is None else state.patience
        self._patience, self._claims = patience, state.claims or ()
        self._scrubbing = None
        if scrub is not None:
            self._scrubbing = Scrubber(self._holdings)
            self._scrubbing.load(scrub)

    # -- answers -----------------------------------------------------------------------------

    def _reply(self, message: CheckTrie | CheckAndPublish, answer: Reconciler, out: Outbox) -> None:
        """Say what is still open."""
        to, node, session = message.sender, self._node, message.session
        for said in answer.batches():
            if said.is_lacking:
                out.send(to, CheckAndPublish(node, said.claims, session, said.wanted))
            else:
                out.send(to, CheckTrie(node, said.claims, session))

    def _affordable(self, to: NodeId, answer: Reconciler, out: Outbox) -> list[list[Publication]]:
        """The chunks to send that the partner has credit for; the rest is described (T14)."""
        config, spent = self._config, self._holdings.chunks_spent(to)
        credit = min(config.answer_chunks, config.credit_chunks - spent)
        chunks: list[list[Publication]] = []
        for chunk in self._chunks(answer, out) if credit > 0 else ():
            if len(chunks) == credit:
                answer.defer_after(chunks[-1][-1].id)
                break
            chunks.append(chunk)
        if chunks:
            self._holdings.charge(to, len(chunks))
        return chunks

    def _chunks(self, answer: Reconciler, out: Outbox) -> Iterator[list[Publication]]:
        """The publications to send, a chunk at a time."""
        chunk: list[Publication] = []
        size = 0
        for publication in self._holdings.read_many(answer.entries(), out):
            if chunk and size + publication.size_bytes > self._config.chunk_bytes:
                yield chunk
                chunk, size = [], 0
            chunk.append(publication)
            size += publication.size_bytes
        if chunk:
            yield chunk


def _size_bytes(message: CheckTrie | CheckAndPublish) -> int:
    return sum(claim.size_bytes for claim in (*message.claims, *_wanted(message)))


def _wanted(message: CheckTrie | CheckAndPublish) -> tuple[RangeSummary, ...]:
    return message.wanted if type(message) is CheckAndPublish else ()
