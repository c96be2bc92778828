"""Lazy push: announcements sent and received, and the lookups that they cost."""

from __future__ import annotations

import pytest

from skipring.core import lazy_push as lazy_push_module
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Outbox
from skipring.core.lazy_push import Announcement, LazyPush
from skipring.core.messages import IHave, Message, Want
from skipring.core.peers import NodeId
from skipring.core.publications import Publication
from skipring.core.replica import Replica
from skipring.core.state import LazyPushState, PendingWantState
from tests.support.machines import ME, TOPIC, sent

NEIGHBOURS = ["a", "b"]
SOME = tuple(
    Publication(publisher="z", seq=seq, payload=b"news").with_id(TOPIC) for seq in range(6)
)


class Edges:
    """Lazy push of a node with a replica."""

    def __init__(self, **constants: int) -> None:
        self.replica = Replica(TOPIC, None)
        self.lazy_push = LazyPush(ME, self.replica, ProtocolConfig(**constants))

    def keep(self, *publications: Publication, is_noted: bool = True) -> None:
        """Store publications as after their delivery; index nothing."""
        size_bytes = sum(each.size_bytes for each in publications)
        self.replica.persist(publications, Outbox(), size_bytes=size_bytes)
        if is_noted:
            self.lazy_push.mark_stored(publications)

    def hear(self, sender: NodeId, *publications: Publication, is_all_stored: bool = True) -> None:
        ids = b"".join(each.id[:8] for each in publications)
        message = IHave(sender, ids, bytes(len(publications)))
        self.lazy_push.on_ihave(message, is_all_stored=is_all_stored)

    def flush(self) -> list[tuple[NodeId, Message]]:
        out = Outbox()
        self.lazy_push.on_flush(NEIGHBOURS, out)
        return sent(out.effects)

    def wanted(self) -> list[set[bytes]]:
        """Return the ids that a Flush requests, one set per message."""
        return [message.shorts() for _, message in self.flush() if isinstance(message, Want)]

    @property
    def is_indexed(self) -> bool:
        """Return True if a lookup has indexed the trie."""
        return len(self.replica._trie) > 0


def short(*publications: Publication) -> set[bytes]:
    return {each.id[:8] for each in publications}


def test_new_node_has_nothing_to_announce() -> None:
    edges = Edges()
    assert not edges.lazy_push.has_pending
    assert edges.flush() == []


def test_new_publication_is_announced_once_to_nodes_that_may_lack_it() -> None:
    edges = Edges()
    edges.lazy_push.queue(SOME[:2], Announcement(3, frozenset({"a"})))
    assert edges.lazy_push.has_pending
    ids = b"".join(each.id[:8] for each in SOME[:2])
    assert edges.flush() == [("b", IHave(ME, ids, bytes([3, 3])))]
    assert edges.flush() == []


def test_publications_stored_since_the_flush_before_last_are_not_looked_up() -> None:
    edges = Edges()
    edges.keep(*SOME[:2])
    edges.flush()
    edges.keep(*SOME[2:4])
    edges.hear("a", *SOME[:4])
    assert edges.wanted() == []
    assert not edges.is_indexed


def test_publications_stored_earlier_are_looked_up_and_found() -> None:
    edges = Edges()
    edges.keep(*SOME[:2])
    edges.flush()
    edges.flush()
    edges.hear("a", *SOME[:2])
    assert edges.is_indexed
    assert edges.wanted() == []


def test_missing_publications_are_requested() -> None:
    edges = Edges()
    edges.keep(*SOME[:3])
    edges.hear("a", *SOME)
    assert edges.wanted() == [short(*SOME[3:])]


def test_trie_is_used_if_more_is_stored_than_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_push_module, "RECENT_MAX", 2)
    edges = Edges()
    edges.keep(*SOME[:3])
    edges.hear("a", *SOME[:4])
    assert edges.is_indexed
    assert edges.wanted() == [short(SOME[3])]


def test_announcement_during_deferred_storage_is_evaluated_after_it() -> None:
    edges = Edges()
    edges.hear("a", *SOME[:2], is_all_stored=False)
    assert edges.lazy_push.has_pending
    edges.keep(SOME[0])
    assert edges.wanted() == [short(SOME[1])]


def test_number_of_announcements_kept_during_deferred_storage_is_bounded() -> None:
    edges = Edges(announced_max=3)
    for each in SOME:
        edges.hear("a", each, is_all_stored=False)
    assert edges.wanted() == [short(*SOME[:3])]


def test_empty_announcement_is_not_remembered() -> None:
    edges = Edges()
    for _ in range(1000):
        edges.hear("a", is_all_stored=False)
    assert not edges.lazy_push.has_pending
    assert edges.lazy_push._received == []


def test_publication_that_arrives_before_its_request_is_not_looked_up() -> None:
    edges = Edges(want_flushes=2)
    edges.hear("a", SOME[0])
    assert edges.wanted() == []
    edges.keep(SOME[0])
    assert edges.wanted() == []
    assert not edges.is_indexed


def test_only_stored_publications_count_after_a_recovery() -> None:
    edges = Edges()
    edges.keep(*SOME[:2], is_noted=False)
    edges.lazy_push.mark_stored(SOME)  # including publications that are gone
    edges.lazy_push.forget_stored()
    edges.hear("a", *SOME[:3])
    assert edges.wanted() == [short(SOME[2])]


def test_node_with_a_large_index_backlog_neither_looks_up_nor_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edges = Edges()
    edges.keep(*SOME[:2])
    edges.hear("a", *SOME[2:4], is_all_stored=False)
    monkeypatch.setattr("skipring.core.replica.FAR_BEHIND", 1)
    assert edges.wanted() == []
    assert not edges.is_indexed


# -- corrupted memory --------------------------------------------------------------------------


def test_wrong_count_of_announcements_is_gone_after_a_flush() -> None:
    edges = Edges()
    edges.lazy_push._received_ids = 10**9
    edges.flush()
    edges.hear("a", SOME[0], is_all_stored=False)
    assert edges.wanted() == [short(SOME[0])]


def test_number_of_flushes_to_wait_is_limited_to_the_configured_one() -> None:
    edges = Edges(want_flushes=2)
    start = SOME[0].id[:8]
    edges.lazy_push.load(LazyPushState(missing={start: PendingWantState("a", 3, 10**9)}))
    assert [edges.wanted() for _ in range(3)] == [[], [{start}], []]
