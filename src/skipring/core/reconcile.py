"""Set reconciliation: compare the summaries of another member with the own trie (section 4.2)."""

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

SCANNED_IDS_MAX: Final = 256  # Our guess: more than any honest list, soon read.


class Finding(Struct, frozen=True):
    """One of the paper's messages: CheckTrie, or CheckAndPublish if something is lacking here."""

    claims: tuple[RangeSummary, ...]
    wanted: tuple[RangeSummary, ...] = ()
    is_lacking: bool = True

    @property
    def size_bytes(self) -> int:
        """About how much room it takes in a message."""
        return sum(claim.size_bytes for claim in (*self.claims, *self.wanted))


class SendRange(Struct, frozen=True):
    """Where to look for what the partner lacks: under a prefix, with or without some ids."""

    prefix: Prefix
    short_ids: frozenset[bytes]
    is_chosen: bool  # only those ids; otherwise all but those

    def entries(self, trie: PublicationTrie, lens: Truncation) -> Iterator[tuple[bytes, int]]:
        """The ids to send, in order, with their offsets."""
        for key, offset in trie.entries(self.prefix):
            if (lens.short_id(key) in self.short_ids) is self.is_chosen:
                yield key, offset


class Reconciler:
    """What is to be said and sent in answer to the claims of one message."""

    def __init__(self, trie: PublicationTrie, config: ProtocolConfig, session: int) -> None:
        self._trie = trie
        self._config = config
        self._lens = Truncation(session)
        self._ids_left = config.answer_ids  # there is time to hash for this answer
        self.statements: list[Finding] = []
        self.regions: list[SendRange] = []

    def batches(self) -> Iterator[Finding]:
        """The statements, put together as far as one message goes; without the rule each alone."""
        waiting: list[Finding] = []
        size = 0
        for statement in self.statements:
            is_full = size + statement.size_bytes > self._config.claims_bytes
            if waiting and (is_full or not self._config.rules.batch):
                yield _joined(waiting)
                waiting, size = [], 0
            waiting.append(statement)
            size += statement.size_bytes
        if waiting:
            yield _joined(waiting)

    def entries(self) -> Iterator[tuple[bytes, int]]:
        """What the partner lacks: ids with their offsets."""
        for region in self.regions:
            yield from region.entries(self._trie, self._lens)

    # -- reading claims ----------------------------------------------------------------------

    def compare(self, claim: RangeSummary, *, is_pushed: bool) -> None:
        """Find what differs from a claim; what the partner lacks is sent if it is pushed (T4)."""
        cover, summaries = claim.prefix, claim.summaries()
        if self._config.rules.batch and not self._is_held(cover):
            if claim.leaves or not all(map(_is_virtual_root, summaries)):
                self.statements.append(Finding((), (RangeSummary.make(cover),)))
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
                self.regions += [SendRange(gap, without, is_chosen=False) for gap in gaps]
            self._want_missing(cover, gaps, short_ids)
        for summary in summaries:
            self._compare_node(summary)

    def fetch(self, wanted: RangeSummary) -> None:
        """Send what the partner asks for: all under a prefix, or some of it."""
        cover, chosen = wanted.prefix, frozenset(wanted.short_ids())
        if not chosen or self._can_scan([cover]):
            self.regions.append(SendRange(cover, chosen, is_chosen=bool(chosen)))

    def _is_held(self, prefix: Prefix) -> bool:
        return not self._trie.has_at_most(0, prefix)

    def _narrowed(self, prefix: Prefix) -> Prefix | None:
        """Where under a prefix there is anything of ours."""
        some = list(islice(self._trie.keys(prefix), 2))
        if not some:
            return None
        return Prefix.of_id(some[0]) if len(some) == 1 else prefix

    def _can_scan(self, prefixes: Iterable[Prefix]) -> bool:
        """True if so few ids lie there that each can be looked at."""
        return all(self._trie.has_at_most(SCANNED_IDS_MAX, prefix) for prefix in prefixes)

    def _want_missing(self, cover: Prefix, gaps: list[Prefix], short_ids: list[bytes]) -> None:
        """Ask for leaves of the partner that we do not have."""
        if not short_ids:
            return
        own = {self._lens.short_id(key) for gap in gaps for key in self._trie.keys(gap)}
        missing = [short for short in short_ids if short not in own]
        if missing:
            self.statements.append(Finding((), (RangeSummary.make(cover, leaves=missing),)))

    def _compare_node(self, summary: Summary) -> None:
        """The three cases of section 4.2: equal, different, not there."""
        label = summary.prefix
        self._ids_left = self._trie.work_out(label, self._ids_left)
        if self._ids_left < 0:
            return  # too much has come at once; another session will find it
        own = self._trie.node(label)
        if own is None:
            if not _is_virtual_root(summary):
                self.statements.append(Finding((), (RangeSummary.make(label),)))
        elif not self._lens.is_equal(own.digest, summary.digest):
            self._describe(label)

    # -- making claims -----------------------------------------------------------------------

    def _describe(self, label: Prefix) -> None:
        """Say what we hold under a label: its nodes are longer, so this comes to an end (T9)."""
        own = self._trie.node(label)
        if own is None or own.prefix.length == label.length == ID_BITS:
            return
        claims, rules = (self._claim_below(label, own),), self._config.rules
        if own.prefix.length == label.length:
            self.statements.append(Finding(claims, is_lacking=False))
        elif rules.cover or rules.complement:
            self.statements.append(Finding(claims))
        else:  # T3: the paper asks for the first sibling only
            bits = own.prefix.length - label.length - 1
            sibling = Prefix(label.length + 1, own.prefix.value >> bits).sibling
            self.statements.append(Finding(claims, (RangeSummary.make(sibling),)))

    def _claim_below(self, label: Prefix, own: TrieNode) -> RangeSummary:
        config, lens = self._config, self._lens
        if config.rules.batch and self._trie.has_at_most(config.listed_ids_max, label):
            return RangeSummary.make(label, leaves=map(lens.short_id, self._trie.keys(label)))
        summaries: list[Summary] = []
        leaves: list[bytes] = []
        for node in self._nodes_below(label, own):
            if node.is_leaf and config.rules.no_noise:
                leaves.append(lens.short_id(node.key))
            else:
                digest = lens.short_digest(node.digest) if config.rules.batch else node.digest
                summaries.append(Summary(node.prefix, digest))
        return RangeSummary.make(label, summaries, leaves)

    def _nodes_below(self, label: Prefix, own: TrieNode) -> list[TrieNode]:
        """The nodes below a label that hold everything there, some levels down."""
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
        """Describe what is to be sent after an id instead of sending it (T14).

        Ids that were asked for one by one are left to another session: a claim about their prefix
        would be about more than them.
        """
        number = int.from_bytes(last, "big")
        passed = False
        for region in self.regions:
            if region.is_chosen:
                continue
            if passed:
                self._describe(region.prefix)
            elif region.prefix.covers(Prefix.of_id(last)):
                passed = True
                for length in range(ID_BITS, region.prefix.length, -1):
                    branch = Prefix(length, number >> (ID_BITS - length))
                    if not branch.value & 1:
                        self._describe(branch.sibling)


def _is_virtual_root(summary: Summary) -> bool:
    """True if the partner only says that its trie is empty (T2)."""
    return summary.digest == EMPTY_ROOT and summary.prefix == ALL


def _joined(statements: list[Finding]) -> Finding:
    return Finding(
        tuple(claim for statement in statements for claim in statement.claims),
        tuple(claim for statement in statements for claim in statement.wanted),
        is_lacking=any(statement.is_lacking for statement in statements),
    )
