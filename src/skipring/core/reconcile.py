"""Set reconciliation: comparison of another member's summaries with a trie (section 4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from msgspec import Struct

from skipring.core.config import ProtocolConfig
from skipring.core.prefix import ALL, Prefix, complement
from skipring.core.publications import ID_BITS
from skipring.core.summaries import EMPTY_ROOT, RangeSummary, Summary, Truncation
from skipring.core.trie import PublicationTrie, TrieNode

SCANNED_IDS_MAX: Final = 256  # Guess: longer than any honest list, and quick to read.


class Finding(Struct, frozen=True):
    """Content of one reply: CheckTrie, or CheckAndPublish if publications are missing here."""

    claims: tuple[RangeSummary, ...]
    wanted: tuple[RangeSummary, ...] = ()
    is_missing_some: bool = True

    @property
    def cost_bytes(self) -> int:
        """Return the cost of replying to this finding, as a number of bytes."""
        return sum(claim.cost_bytes for claim in (*self.claims, *self.wanted))


class SendRange(Struct, frozen=True):
    """Ids that the partner is missing: those under a prefix, with or without some short ids."""

    prefix: Prefix
    short_ids: frozenset[bytes]
    is_chosen: bool  # True: only these short ids; False: all except these

    def entries(self, trie: PublicationTrie, truncation: Truncation) -> Iterator[tuple[bytes, int]]:
        """Yield the ids to send, in order, with their offsets."""
        for key, offset in trie.entries(self.prefix):
            if (truncation.short_id(key) in self.short_ids) is self.is_chosen:
                yield key, offset


class Reconciler:
    """Reply to the claims of one message: findings, and publications to send."""

    def __init__(self, trie: PublicationTrie, config: ProtocolConfig, session: int) -> None:
        self._trie = trie
        self._config = config
        self._truncation = Truncation(session)
        self._ids_left = config.answer_ids  # the ids that this reply may still hash
        self.findings: list[Finding] = []
        self.ranges: list[SendRange] = []

    def batches(self) -> Iterator[Finding]:
        """Yield the findings, joined up to the cost of a message; one by one without rule BATCH."""
        waiting: list[Finding] = []
        cost = 0
        for finding in self.findings:
            is_full = cost + finding.cost_bytes > self._config.claims_bytes
            if waiting and (is_full or not self._config.rules.batch):
                yield _joined(waiting)
                waiting, cost = [], 0
            waiting.append(finding)
            cost += finding.cost_bytes
        if waiting:
            yield _joined(waiting)

    def entries(self) -> Iterator[tuple[bytes, int]]:
        """Yield the ids that the partner is missing, with their offsets."""
        for part in self.ranges:
            yield from part.entries(self._trie, self._truncation)

    # -- reading claims ----------------------------------------------------------------------

    def compare(self, claim: RangeSummary, *, is_pushed: bool) -> None:
        """Compare the trie with a claim; if ``is_pushed``, send what the sender lacks (T4)."""
        cover, summaries = claim.prefix, claim.summaries()
        if self._config.rules.batch and not self._is_held(cover):
            if claim.leaves or not all(map(_is_virtual_root, summaries)):
                self.findings.append(Finding((), (RangeSummary.make(cover),)))
            return
        if claim.leaves or is_pushed:
            labels = [summary.prefix for summary in summaries]
            gaps = list(complement(cover, labels, self._narrowed))
            if claim.leaves and not self._can_scan(gaps):
                self._describe(cover)
                return
            short_ids = claim.short_ids()
            if is_pushed:
                without = frozenset(short_ids)
                self.ranges += [SendRange(gap, without, is_chosen=False) for gap in gaps]
            self._request_missing(cover, gaps, short_ids)
        for summary in summaries:
            self._compare_node(summary)

    def fetch(self, wanted: RangeSummary) -> None:
        """Send the requested publications: all under a prefix, or some ids of it."""
        cover, chosen = wanted.prefix, frozenset(wanted.short_ids())
        if not chosen or self._can_scan([cover]):
            self.ranges.append(SendRange(cover, chosen, is_chosen=bool(chosen)))

    def _is_held(self, prefix: Prefix) -> bool:
        return not self._trie.has_at_most(0, prefix)

    def _narrowed(self, prefix: Prefix) -> Prefix | None:
        """Return the part of a prefix under which this node has ids, or None."""
        some = list(islice(self._trie.keys(prefix), 2))
        if not some:
            return None
        return Prefix.of_id(some[0]) if len(some) == 1 else prefix

    def _can_scan(self, prefixes: Iterable[Prefix]) -> bool:
        """Return True if no prefix has more than SCANNED_IDS_MAX ids."""
        return all(self._trie.has_at_most(SCANNED_IDS_MAX, prefix) for prefix in prefixes)

    def _request_missing(self, cover: Prefix, gaps: list[Prefix], short_ids: list[bytes]) -> None:
        """Request leaves of the partner that this node does not have."""
        if not short_ids:
            return
        own = {self._truncation.short_id(key) for gap in gaps for key in self._trie.keys(gap)}
        missing = [short for short in short_ids if short not in own]
        if missing:
            self.findings.append(Finding((), (RangeSummary.make(cover, leaves=missing),)))

    def _compare_node(self, summary: Summary) -> None:
        """Handle the three cases of section 4.2: equal, different, missing."""
        label = summary.prefix
        self._ids_left = self._trie.hash_under(label, self._ids_left)
        if self._ids_left < 0:
            return  # beyond the limit of one reply; another session finds it
        own = self._trie.node(label)
        if own is None:
            if not _is_virtual_root(summary):
                self.findings.append(Finding((), (RangeSummary.make(label),)))
        elif not self._truncation.is_equal(own.digest, summary.digest):
            self._describe(label)

    # -- making claims -----------------------------------------------------------------------

    def _describe(self, label: Prefix) -> None:
        """Describe the ids under a prefix; prefixes only get longer, so a session ends (T9)."""
        own = self._trie.node(label)
        if own is None or own.prefix.length == label.length == ID_BITS:
            return
        claims, rules = (self._claim_below(label, own),), self._config.rules
        if own.prefix.length == label.length:
            self.findings.append(Finding(claims, is_missing_some=False))
        elif rules.cover or rules.complement:
            self.findings.append(Finding(claims))
        else:  # T3: the paper asks for the first sibling only
            bits = own.prefix.length - label.length - 1
            sibling = Prefix(label.length + 1, own.prefix.value >> bits).sibling
            self.findings.append(Finding(claims, (RangeSummary.make(sibling),)))

    def _claim_below(self, label: Prefix, own: TrieNode) -> RangeSummary:
        config, truncation = self._config, self._truncation
        if config.rules.batch and self._trie.has_at_most(config.listed_ids_max, label):
            return RangeSummary.make(label, leaves=map(truncation.short_id, self._trie.keys(label)))
        summaries: list[Summary] = []
        leaves: list[bytes] = []
        for node in self._nodes_below(label, own):
            if node.is_leaf and config.rules.no_noise:
                leaves.append(truncation.short_id(node.key))
            else:
                digest = truncation.short_digest(node.digest) if config.rules.batch else node.digest
                summaries.append(Summary(node.prefix, digest))
        return RangeSummary.make(label, summaries, leaves)

    def _nodes_below(self, label: Prefix, own: TrieNode) -> list[TrieNode]:
        """Return the nodes ``batch_levels`` below a prefix, which cover all ids under it."""
        is_below = own.prefix.length > label.length
        nodes = [own] if is_below else self._trie.children(own)
        levels = self._config.batch_levels if self._config.rules.batch else 1
        for _ in range(levels - 1):
            nodes = [
                below
                for node in nodes
                for below in ([node] if node.is_leaf else self._trie.children(node))
            ]
        return nodes

    def defer_after(self, last: bytes) -> None:
        """Describe the rest after an id instead of sending it (T14).

        Ids that the partner requested one by one wait for another session: a claim about their
        prefix would cover more than these ids.
        """
        number = int.from_bytes(last, "big")
        passed = False
        for part in self.ranges:
            if part.is_chosen:
                continue
            if passed:
                self._describe(part.prefix)
            elif part.prefix.covers(Prefix.of_id(last)):
                passed = True
                for length in range(ID_BITS, part.prefix.length, -1):
                    branch = Prefix(length, number >> (ID_BITS - length))
                    if not branch.value & 1:
                        self._describe(branch.sibling)


def _is_virtual_root(summary: Summary) -> bool:
    """Return True if the partner states that its trie is empty (T2)."""
    return summary.digest == EMPTY_ROOT and summary.prefix == ALL


def _joined(findings: list[Finding]) -> Finding:
    return Finding(
        tuple(claim for finding in findings for claim in finding.claims),
        tuple(claim for finding in findings for claim in finding.wanted),
        is_missing_some=any(finding.is_missing_some for finding in findings),
    )
