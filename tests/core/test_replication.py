"""The publication half of a subscriber: what it answers for, and that it keeps before it says."""

from __future__ import annotations

from random import Random

import pytest

from skipring.core.config import ProtocolConfig
from skipring.core.effects import Deliver, Outbox, Store
from skipring.core.events import HistoryRead, PublishRequested, Received, SyncRequested
from skipring.core.messages import (
    MESSAGE_TYPES,
    CheckHeld,
    CheckTrie,
    Digest,
    Draining,
    HandoverDone,
    Held,
    IHave,
    Message,
    Publications,
    PublishMany,
    PublishNew,
    RequestHandover,
    TrieEqual,
    Want,
)
from skipring.core.publications import Publication
from skipring.core.replica import Replica
from skipring.core.replication import Replication
from skipring.core.ring import Ring
from skipring.core.shortcuts import Shortcuts
from skipring.core.state import SubscriberState, legitimate_states
from skipring.core.subscriber import Subscriber
from skipring.core.summaries import DIGEST_BYTES
from skipring.world.snapshot import publications_in
from tests.wire.samples import SAMPLES

TOPIC = "news"
LATE = ProtocolConfig(defers_storage=True)
NODES = ["m", "a", "b", "c"]


def machine() -> Subscriber:
    subscriber = Subscriber("m", topic=TOPIC, rng=Random(0), config=LATE)
    states: dict[str, SubscriberState] = dict(legitimate_states(NODES))
    subscriber.load(states["m"])
    return subscriber


def news(seq: int) -> Publication:
    return Publication(publisher="z", seq=seq, payload=b"news")


def arrived(subscriber: Subscriber) -> None:
    """Something has come that is delivered, and not kept yet."""
    effects = subscriber.handle(Received(PublishMany((news(0), news(1))), "a"))
    assert any(isinstance(effect, Deliver) for effect in effects)
    assert not any(isinstance(effect, Store) for effect in effects)


def test_it_answers_for_every_message_about_publications_and_for_no_other() -> None:
    about = {type(each) for each in SAMPLES if type(each) in MESSAGE_TYPES and is_about(each)}
    handing_over = {CheckHeld, Held, Draining, RequestHandover, HandoverDone}
    assert set(Replication.HANDLERS) == about | {IHave, Want, TrieEqual} | handing_over


def is_about(message: object) -> bool:
    return bool(publications_in(message)) or hasattr(message, "claims")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "event",
    [
        Received(CheckTrie("a", ()), "a"),
        Received(Publications((news(2),)), "a"),
        Received(TrieEqual("a", bytes(DIGEST_BYTES)), "a"),
        Received(Want("a", bytes(8), bytes(1)), "a"),
        PublishRequested(payload=b"ours"),
        HistoryRead(()),
        SyncRequested(),
    ],
    ids=lambda event: type(getattr(event, "message", event)).__name__,
)
def test_whoever_looks_at_what_is_kept_finds_what_has_arrived(event: Received) -> None:
    subscriber = machine()
    arrived(subscriber)
    effects = subscriber.handle(event)
    first = next(effect for effect in effects if isinstance(effect, Store))
    assert effects.index(first) == 0
    assert [each.seq for each in first.publications] == [0, 1]


@pytest.mark.parametrize("message", [IHave("a", bytes(8), bytes(1)), Digest("a", 1)])
def test_what_does_not_look_at_it_leaves_it_for_later(message: Message) -> None:
    subscriber = machine()
    arrived(subscriber)
    effects = subscriber.handle(Received(message, "a"))
    assert not any(isinstance(effect, Store) for effect in effects)


def test_alone_it_keeps_and_delivers_what_it_is_handed() -> None:
    ring = Ring("m", LATE.rules)
    circulation = Replication(ring, Shortcuts(ring), Replica(TOPIC, None), LATE)
    out = Outbox()
    circulation.on_message(PublishNew(news(0)), "a", out)
    assert [type(effect) for effect in out.effects] == [Deliver]
    assert circulation.has_to_flush
    circulation.persist_deferred(out)
    assert [type(effect) for effect in out.effects] == [Deliver, Store]
