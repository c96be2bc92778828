"""The explicit state of the machines as values: what is dumped, loaded and judged.

The fields carry the paper's names, since the world file does.
"""

from __future__ import annotations

from msgspec import Struct

from skipring.core.labels import Label
from skipring.core.peers import NodeId, Peer
from skipring.core.prefixes import Prefix
from skipring.core.publications import Publication
from skipring.core.trie import PublicationTrie


class SilenceState(Struct, frozen=True, array_like=True, gc=False):
    """How long a ring neighbour has not been heard, and when that is too long (R9)."""

    ticks: int
    threshold: int
    pending: bool


class SubscriberState(Struct, frozen=True, kw_only=True, gc=False):
    """The variables of a subscriber (section 3.2)."""

    member: bool = True
    label: Label | None = None
    left: Peer | None = None
    right: Peer | None = None
    ring: Peer | None = None
    shortcuts: dict[Label, NodeId | None] = {}
    silence: dict[NodeId, SilenceState] = {}
    digests: dict[NodeId, int] = {}
    publications: tuple[Publication, ...] = ()
    hashes: dict[Prefix, bytes] = {}  # of the trie, where they are not what they should be

    @property
    def trie(self) -> PublicationTrie:
        """v.T: the trie of the publications, with the hashes that are wrong."""
        trie = PublicationTrie()
        trie.add_many(
            (publication.id, place) for place, publication in enumerate(self.publications)
        )
        trie.corrupt(self.hashes)
        return trie


class SupervisorState(Struct, frozen=True, kw_only=True):
    """The variables of the supervisor (section 3.1).

    The database is the paper's multiset of (label, subscriber) pairs, so that it can hold every
    corruption the paper names, labels that l never produces among them.
    """

    database: tuple[tuple[str, NodeId | None], ...] = ()
    next: int = 0
    queue: tuple[NodeId, ...] = ()
