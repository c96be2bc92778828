"""Announcing: what is said and heard over lazy edges, and how little of it has to be looked up."""

from __future__ import annotations

import pytest

from skipring.core import lazy_push as announcing_module
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
    """Lazy edges, over what their owner holds."""

    def __init__(self, **constants: int) -> None:
        self.holdings = Replica(TOPIC, None)
        self.announcing = LazyPush(ME, self.holdings, ProtocolConfig(**constants))

    def keep(self, *publications: Publication, is_noted: bool = True) -> None:
        """Hold publications, as after they were delivered; nothing is indexed yet."""
        size_bytes = sum(each.size_bytes for each in publications)
        self.holdings.persist(publications, Outbox(), size_bytes=size_bytes)
        if is_noted:
            self.announcing.mark_stored(publications)

    def hear(self, sender: NodeId, *publications: Publication, is_all_kept: bool = True) -> None:
        ids = b"".join(each.id[:8] for each in publications)
        message = IHave(sender, ids, bytes(len(publications)))
        self.announcing.on_ihave(message, is_all_kept=is_all_kept)

    def flush(self) -> list[tuple[NodeId, Message]]:
        out = Outbox()
        self.announcing.on_flush(NEIGHBOURS, out)
        return sent(out.effects)

    def wanted(self) -> list[set[bytes]]:
        """What is asked for at a Flush, message by message."""
        return [message.shorts() for _, message in self.flush() if isinstance(message, Want)]

    @property
    def is_indexed(self) -> bool:
        """True if somebody has looked into the trie."""
        return len(self.holdings._trie) > 0


def short(*publications: Publication) -> set[bytes]:
    return {each.id[:8] for each in publications}


def test_at_first_there_is_nothing_to_say() -> None:
    edges = Edges()
    assert not edges.announcing.has_something
    assert edges.flush() == []


def test_what_has_come_is_announced_once_to_those_who_may_lack_it() -> None:
    edges = Edges()
    edges.announcing.queue(SOME[:2], Announcement(3, frozenset({"a"})))
    assert edges.announcing.has_something
    ids = b"".join(each.id[:8] for each in SOME[:2])
    assert edges.flush() == [("b", IHave(ME, ids, bytes([3, 3])))]
    assert edges.flush() == []


def test_nobody_looks_up_what_was_kept_since_the_last_flush_or_just_before_it() -> None:
    edges = Edges()
    edges.keep(*SOME[:2])
    edges.flush()
    edges.keep(*SOME[2:4])
    edges.hear("a", *SOME[:4])
    assert edges.wanted() == []
    assert not edges.is_indexed


def test_what_was_kept_longer_ago_is_looked_up_and_found() -> None:
    edges = Edges()
    edges.keep(*SOME[:2])
    edges.flush()
    edges.flush()
    edges.hear("a", *SOME[:2])
    assert edges.is_indexed
    assert edges.wanted() == []


def test_what_is_lacking_among_what_was_kept_is_asked_for() -> None:
    edges = Edges()
    edges.keep(*SOME[:3])
    edges.hear("a", *SOME)
    assert edges.wanted() == [short(*SOME[3:])]


def test_of_much_that_is_kept_at_once_the_trie_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing_module, "RECENT_MAX", 2)
    edges = Edges()
    edges.keep(*SOME[:3])
    edges.hear("a", *SOME[:4])
    assert edges.is_indexed
    assert edges.wanted() == [short(SOME[3])]


def test_what_is_heard_of_before_all_is_kept_is_looked_at_when_it_is() -> None:
    edges = Edges()
    edges.hear("a", *SOME[:2], is_all_kept=False)
    assert edges.announcing.has_something
    edges.keep(SOME[0])
    assert edges.wanted() == [short(SOME[1])]


def test_of_what_is_heard_before_all_is_kept_a_bounded_part_is_remembered() -> None:
    edges = Edges(announced_max=3)
    for each in SOME:
        edges.hear("a", each, is_all_kept=False)
    assert edges.wanted() == [short(*SOME[:3])]


def test_who_announces_nothing_is_not_remembered() -> None:
    edges = Edges()
    for _ in range(1000):
        edges.hear("a", is_all_kept=False)
    assert not edges.announcing.has_something
    assert edges.announcing._heard == []


def test_what_comes_before_it_is_asked_for_is_not_looked_up() -> None:
    edges = Edges(want_flushes=2)
    edges.hear("a", SOME[0])
    assert edges.wanted() == []
    edges.keep(SOME[0])
    assert edges.wanted() == []
    assert not edges.is_indexed


def test_after_a_recovery_only_what_is_held_counts() -> None:
    edges = Edges()
    edges.keep(*SOME[:2], is_noted=False)
    edges.announcing.mark_stored(SOME)  # of what is not there any more, too
    edges.announcing.forget_kept()
    edges.hear("a", *SOME[:3])
    assert edges.wanted() == [short(SOME[2])]


def test_who_has_much_to_index_neither_looks_nor_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    edges = Edges()
    edges.keep(*SOME[:2])
    edges.hear("a", *SOME[2:4], is_all_kept=False)
    monkeypatch.setattr("skipring.core.replica.FAR_BEHIND", 1)
    assert edges.wanted() == []
    assert not edges.is_indexed


# -- corrupted memory --------------------------------------------------------------------------


def test_wrong_count_of_announcements_is_gone_after_a_flush() -> None:
    edges = Edges()
    edges.announcing._heard_of = 10**9
    edges.flush()
    edges.hear("a", SOME[0], is_all_kept=False)
    assert edges.wanted() == [short(SOME[0])]


def test_number_of_flushes_to_wait_for_is_not_believed_beyond_the_configured_one() -> None:
    edges = Edges(want_flushes=2)
    start = SOME[0].id[:8]
    edges.announcing.load(LazyPushState(missing={start: PendingWantState("a", 3, 10**9)}))
    assert [edges.wanted() for _ in range(3)] == [[], [{start}], []]
