"""What a subscriber holds of a topic: the trie of ids over the archive of publications."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from skipring.core.archive import Archive, MemoryArchive
from skipring.core.effects import Deliver, Discard, Origin, Outbox, Store
from skipring.core.peers import NodeId, TopicId
from skipring.core.prefixes import Prefix
from skipring.core.publications import SEQ_BELIEVED_MAX, Publication
from skipring.core.trie import PublicationTrie

# Most tries of a large simulated ring are empty: they share one, which nobody changes.
_NO_PUBLICATIONS: Final = PublicationTrie()


class Holdings:
    """The publications of one subscriber; they only become more (section 4.2)."""

    __slots__ = ("_archive", "_end", "_next_seq", "_publisher", "topic", "trie")

    def __init__(self, topic: TopicId, archive: Archive | None) -> None:
        self.topic = topic
        self._archive = archive
        self.trie = _NO_PUBLICATIONS
        self._end = 0
        self._publisher: NodeId | None = None  # whose numbers have been looked up
        self._next_seq = 0

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
        if publication.id and publication.id in self.trie:
            return None
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
        if publication is not None and publication.id == key and publication.is_genuine(self.topic):
            return publication
        self.trie.remove(key)
        out.effects.append(Discard(offset))
        return None

    def find(self, start: bytes, out: Outbox) -> Publication | None:
        """The publication whose id begins with these bytes, 8 or more."""
        entry = self.trie.find(start)
        return self.read(*entry, out) if entry is not None else None

    def scrub(self, ids: int, out: Outbox) -> None:
        """Check the next ids against their publications, and digests against ids (T10 to T12)."""
        if self.trie is _NO_PUBLICATIONS:
            return
        for key, offset in self.trie.scrub(ids):
            self.read(key, offset, out)
