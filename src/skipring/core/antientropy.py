"""Comparing tries, and sending what the other lacks: PublishTimeout, CheckTrie (Algorithm 5).

Somebody tells a neighbour the root of its trie. Where digests differ the other answers with what
it holds below, and so on, in turns, until both know what each of them lacks. A claim about a
prefix is complete, so that whoever reads it can also send what is missing there (T4): every pair
of tries is equal after one session. Nothing is remembered about a session but that it goes on;
whatever is lost, a later one finds again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Final

from skipring.core.claims import Claim, Summary
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Confirmed, Origin, Outbox
from skipring.core.holdings import Holdings
from skipring.core.messages import CheckAndPublish, CheckTrie, Publications, TrieEqual
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.prefixes import ALL
from skipring.core.publications import Publication
from skipring.core.reconciliation import Answer
from skipring.core.trie import EMPTY_ROOT

# Our guess: enough to tell one's own session from another that happens to cross it, mostly; a
# mistake costs a tick or two.
SESSIONS: Final = 1 << 8

# T2: an empty trie asks like all others.
_NOTHING: Final = (Claim.make(ALL),)
_VIRTUAL_ROOT: Final = (Claim.make(ALL, [Summary(ALL, EMPTY_ROOT)]),)


class AntiEntropy:
    """One subscriber's part in making all tries equal."""

    __slots__ = (
        "_claims",
        "_config",
        "_holdings",
        "_node",
        "_open_ticks",
        "_period",
        "_quiet_ticks",
        "_session",
        "_spent",
    )

    def __init__(self, node: NodeId, holdings: Holdings, config: ProtocolConfig) -> None:
        self._node = node
        self._holdings = holdings
        self._config = config
        self._session = 0
        self._open_ticks = 0  # for which we still wait for an answer (T8)
        self._quiet_ticks = 0  # until we ask again (T18)
        self._period = 1
        self._claims: tuple[Claim, ...] = ()  # of the root
        self._spent: dict[NodeId, int] | None = None  # chunks sent since the last tick (T14)

    # -- periodic actions ------------------------------------------------------------------

    def on_tick(self, partners: Sequence[NodeId], rng: Random, out: Outbox) -> None:
        """PublishTimeout: tell a random neighbour the root (T16: if there is one)."""
        config, trie = self._config, self._holdings.trie
        self._spent = None
        if config.rules.scrub and len(trie):
            self._holdings.scrub(config.scrubbed_ids, out)
        if self._open_ticks > 0:
            self._open_ticks -= 1
            return
        if self._quiet_ticks > 0:
            self._quiet_ticks -= 1
            return
        if not partners or not trie.freshen(config.hashed_ids):
            return
        self._session = int(rng.random() * SESSIONS)
        # T18: the longer nothing differs, the more rarely anybody asks.
        self._quiet_ticks = self._period - 1
        self._period = min(2 * self._period, config.quiet_ticks_max)
        partner = partners[int(rng.random() * len(partners))]
        out.send(partner, CheckTrie(self._node, self._root_claims(), self._session))

    def ask_to_confirm(self, partners: Iterable[NodeId], out: Outbox) -> None:
        """Ask whether the partners' tries are equal to ours, and to be told if they are (T19)."""
        claims = self._root_claims()
        for partner in partners:
            out.send(partner, CheckTrie(self._node, claims, self._session, confirm=True))

    def note_difference(self) -> None:
        """Something is new here or there: compare again soon (T18)."""
        self._period = 1
        self._quiet_ticks = 0

    def _root_claims(self) -> tuple[Claim, ...]:
        """What the root says of all that we hold, made anew only when it has changed."""
        trie = self._holdings.trie
        if not len(trie):
            return _NOTHING if self._config.rules.cover else _VIRTUAL_ROOT
        if not self._claims or self._claims[0].digests != trie.root:
            root = trie.node()
            assert root is not None, "there is something in the trie"
            self._claims = (Claim.make(ALL, [Summary(root.prefix, root.digest)]),)
        return self._claims

    # -- messages --------------------------------------------------------------------------

    def on_check(self, message: CheckTrie | CheckAndPublish, out: Outbox) -> None:
        """CheckTrie and CheckAndPublish: compare, ask for more, send what is lacking there."""
        if message.sender in (self._node, SUPERVISOR):
            return
        if not self._holdings.trie.freshen(self._config.hashed_ids):
            return  # too much has come at once; there will be another session
        if message.claims == self._root_claims():
            self._on_equal(message, out)
            return
        answer = Answer(self._holdings.trie, self._config, message.session)
        is_pushed = self._config.rules.cover or (
            self._config.rules.complement and type(message) is CheckAndPublish
        )
        for claim in message.claims:
            answer.compare(claim, is_pushed=is_pushed)
        if type(message) is CheckAndPublish:
            for claim in message.wanted:
                answer.fetch(claim)
        has_sent = self._push(message, answer, out)
        self._reply(message, answer, out)
        if answer.is_open or has_sent:
            self.note_difference()
        if message.session == self._session and self._config.rules.one_session:
            # T8: an answer to our own question. Wait for the next one, or ask somebody else.
            self._open_ticks = self._config.session_ticks if answer.is_open else 0

    def _on_equal(self, message: CheckTrie | CheckAndPublish, out: Outbox) -> None:
        """Case (i) at the root: silence, unless the sender wants to know (T19)."""
        if type(message) is CheckTrie and message.confirm:
            out.send(message.sender, TrieEqual(self._node, self._holdings.trie.root))

    def on_publications(self, message: Publications, out: Outbox) -> None:
        """Publish(P): take in what we lacked."""
        for publication in message.publications:
            if self._holdings.take(publication, out, origin=Origin.REPAIR) is not None:
                self.note_difference()
        if message.session == self._session and self._config.rules.one_session:
            self._open_ticks = 0

    def on_trie_equal(self, message: TrieEqual, out: Outbox) -> None:
        """The sender had the same root; it counts only if it still is ours (T19)."""
        if message.root == self._holdings.trie.root:
            out.effects.append(Confirmed(message.sender, message.root))

    # -- answers -----------------------------------------------------------------------------

    def _reply(self, message: CheckTrie | CheckAndPublish, answer: Answer, out: Outbox) -> None:
        """Say what is still open: in one message, or as the paper does, each alone."""
        to, node, session = message.sender, self._node, message.session
        if not self._config.rules.batch:
            for claim in answer.claims:
                out.send(to, CheckTrie(node, (claim,), session))
            for doubt in answer.doubts:
                out.send(to, CheckAndPublish(node, (doubt.claim,), session, doubt.wanted))
            for claim in answer.wanted:
                out.send(to, CheckAndPublish(node, (), session, (claim,)))
        elif answer.doubts or answer.wanted:
            claims = (*answer.claims, *(doubt.claim for doubt in answer.doubts))
            wanted = (*answer.wanted, *(claim for doubt in answer.doubts for claim in doubt.wanted))
            out.send(to, CheckAndPublish(node, claims, session, wanted))
        elif answer.claims:
            out.send(to, CheckTrie(node, tuple(answer.claims), session))

    def _push(self, message: CheckTrie | CheckAndPublish, answer: Answer, out: Outbox) -> bool:
        """Send what the partner lacks, in chunks; what its credit does not cover is described."""
        to, spent = message.sender, self._spent or {}
        credit = min(self._config.answer_chunks, self._config.credit_chunks - spent.get(to, 0))
        used, last = 0, None
        for chunk in self._chunks(answer, out):
            if used >= credit:
                if last is not None:  # T14; without any credit there is no answer at all
                    answer.put_off(last)
                break
            out.send(to, Publications(tuple(chunk), message.session))
            used, last = used + 1, chunk[-1].id
        if used:
            self._spent = {**spent, to: spent.get(to, 0) + used}
        elif type(message) is CheckAndPublish and not self._config.rules.no_noise:
            out.send(to, Publications((), message.session))  # T6: the paper also sends nothing
        return used > 0

    def _chunks(self, answer: Answer, out: Outbox) -> Iterator[list[Publication]]:
        """The publications to send, a chunk at a time."""
        chunk: list[Publication] = []
        size = 0
        for key, offset in answer.entries():
            publication = self._holdings.read(key, offset, out)
            if publication is None:
                continue
            if chunk and size + publication.size_bytes > self._config.chunk_bytes:
                yield chunk
                chunk, size = [], 0
            chunk.append(publication)
            size += publication.size_bytes
        if chunk:
            yield chunk
