"""What a subscriber holds of a topic: the trie of ids over the archive of publications."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from operator import itemgetter
from typing import Final

from skipring.core.archive import Archive, MemoryArchive
from skipring.core.effects import Deliver, Discard, Origin, Outbox, Store
from skipring.core.peers import NodeId, TopicId
from skipring.core.prefixes import Prefix
from skipring.core.publications import SEQ_BELIEVED_MAX, Publication
from skipring.core.trie import PublicationTrie

READ_AHEAD_MIN: Final = 16
READ_AHEAD_MAX: Final = 4096  # Our guess: 1 MiB of small publications, from every pack of a store.

# Most tries of a large simulated ring are empty: they share one, which nobody changes.
_NO_PUBLICATIONS: Final = PublicationTrie()


class Holdings:
    """The publications of one subscriber; they only become more (section 4.2)."""

    __slots__ = (
        "_archive",
        "_end",
        "_next_seq",
        "_publisher",
        "_scrubbed",
        "_spent",
        "topic",
        "trie",
    )

    def __init__(self, topic: TopicId, archive: Archive | None) -> None:
        self.topic = topic
        self._archive = archive
        self.trie = _NO_PUBLICATIONS
        self._end = 0
        self._publisher: NodeId | None = None  # whose numbers have been looked up
        self._next_seq = 0
        self._scrubbed = 0  # the offset where the scrub goes on
        self._spent: dict[NodeId, int] | None = None  # chunks sent since the last tick (T14)

    @property
    def archive(self) -> Archive:
        """Where the publications lie; in memory, if no place was given."""
        if self._archive is None:
            self._archive = MemoryArchive()
        return self._archive

    def recover(self, wrong_digests: Mapping[Prefix, bytes]) -> None:
        """Index what is in the archive; digests are worked out again, save corrupted ones."""
        self.trie = _NO_PUBLICATIONS
        self._end = 0
        self._publisher = None
        if self._archive is not None or wrong_digests:
            self.trie = PublicationTrie()
            self.trie.add_many(self.archive.entries())
            self._end = self.archive.end
            self.trie.corrupt(wrong_digests)

    def next_seq(self, publisher: NodeId) -> int:
        """The number of the publisher's next publication."""
        if self._publisher != publisher:
            self._publisher, self._next_seq = publisher, self.archive.next_seq(publisher)
        self._next_seq += 1
        return self._next_seq - 1

    def take(
        self, publication: Publication, out: Outbox, *, origin: Origin, hops: int = 0
    ) -> Publication | None:
        """Keep a publication, under the id that its fields give (T10); None if it is known."""
        if publication.seq < 0 or publication.time < 0:
            return None  # no publication: it can have no id
        if self.trie is _NO_PUBLICATIONS:
            self.trie = PublicationTrie()
        genuine = publication.settled(self.topic)
        if not self.trie.add(genuine.id, self._end):
            return None
        if genuine.publisher == self._publisher and genuine.seq < SEQ_BELIEVED_MAX:
            self._next_seq = max(self._next_seq, genuine.seq + 1)  # one of ours that was lost here
        out.effects.append(Store(self._end, genuine))
        out.effects.append(Deliver(genuine, self._end, origin, hops))
        self._end += 1
        return genuine

    def read(self, key: bytes, offset: int, out: Outbox) -> Publication | None:
        """The publication that was stored under an id; None if it is not there any more (T12)."""
        publication = self.archive.read(offset)
        is_genuine = publication is not None and publication.is_genuine(self.topic)
        if publication is not None and is_genuine and publication.id == key:
            return publication
        self.trie.remove(key)
        if not is_genuine:  # a sound row that only the trie is wrong about stays
            out.effects.append(Discard(offset))
        return None

    def read_many(self, entries: Iterator[tuple[bytes, int]], out: Outbox) -> Iterator[Publication]:
        """The publications under some ids, in the order of the ids, as far as they are there.

        Ids have nothing to do with the order in which publications lie in the archive, so some are
        read ahead, ever more, in that order. Who stops early has wasted less than it has got.
        """
        count = READ_AHEAD_MIN
        while ahead := list(islice(entries, count)):
            count = min(2 * count, READ_AHEAD_MAX)
            in_order = sorted(ahead, key=itemgetter(1))
            found = {key: self.read(key, offset, out) for key, offset in in_order}
            yield from (each for key, _ in ahead if (each := found[key]) is not None)

    def find(self, start: bytes, out: Outbox) -> Publication | None:
        """The publication whose id begins with these bytes, 8 or more."""
        entry = self.trie.find(start)
        return self.read(*entry, out) if entry is not None else None

    # -- corrupted memory --------------------------------------------------------------------

    def scrub(self, ids: int, out: Outbox) -> None:
        """Hold the next ids against their publications, and the next rows against the trie.

        So a wrong digest, a wrong id and a wrong offset all come to light in time (T10 to T12).
        """
        if self.trie is _NO_PUBLICATIONS:
            return
        for key, offset in self.trie.scrub(ids):
            self.read(key, offset, out)
        start = self._scrubbed if self._scrubbed < self._end else 0
        self._scrubbed = start + ids
        for offset in range(start, min(start + ids, self._end)):
            self._check_row(offset, out)

    def _check_row(self, offset: int, out: Outbox) -> None:
        """Put a stored publication into the trie if it is missing there, aside if it is spoilt."""
        publication = self.archive.read(offset)
        if publication is None:
            return
        if publication.is_genuine(self.topic):
            known = self.trie.offset_of(publication.id)
            if known is None:
                self.trie.add(publication.id, offset)
            if known is None or known == offset:
                return
        elif self.trie.offset_of(publication.id) == offset:
            self.trie.remove(publication.id)
        out.effects.append(Discard(offset))  # spoilt, or there a second time

    # -- credits (T14) -----------------------------------------------------------------------

    def renew_credits(self) -> None:
        """A new interval begins."""
        self._spent = None

    def chunks_spent(self, node: NodeId) -> int:
        """How many chunks a node has been sent in this interval."""
        return self._spent.get(node, 0) if self._spent is not None else 0

    def charge(self, node: NodeId, chunks: int) -> None:
        """A node has been sent so many chunks."""
        if self._spent is None:
            self._spent = {}
        self._spent[node] = self._spent.get(node, 0) + chunks
