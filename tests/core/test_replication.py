"""Replication half of a subscriber: its messages, and storage before any answer."""

from __future__ import annotations

from random import Random

import pytest

from skipring.core.config import ProtocolConfig
from skipring.core.effects import Deliver, Outbox, Store
from skipring.core.events import HistoryRead, Overwritten, PublishRequested, Received, SyncRequested
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
    subscriber.handle(Overwritten(states["m"]))
    return subscriber


def news(seq: int) -> Publication:
    return Publication(publisher="z", seq=seq, payload=b"news")


def arrived(subscriber: Subscriber) -> None:
    """Deliver publications whose storage is deferred."""
    effects = subscriber.handle(Received(PublishMany((news(0), news(1))), "a"))
    assert any(isinstance(effect, Deliver) for effect in effects)
    assert not any(isinstance(effect, Store) for effect in effects)


def test_replication_handles_every_message_about_publications_and_no_other() -> None:
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
def test_event_that_reads_the_replica_stores_deferred_publications_first(event: Received) -> None:
    subscriber = machine()
    arrived(subscriber)
    effects = subscriber.handle(event)
    first = next(effect for effect in effects if isinstance(effect, Store))
    assert effects.index(first) == 0
    assert [each.seq for each in first.publications] == [0, 1]


@pytest.mark.parametrize("message", [IHave("a", bytes(8), bytes(1)), Digest("a", 1)])
def test_message_that_does_not_read_the_replica_leaves_storage_deferred(message: Message) -> None:
    subscriber = machine()
    arrived(subscriber)
    effects = subscriber.handle(Received(message, "a"))
    assert not any(isinstance(effect, Store) for effect in effects)


def test_replication_without_a_subscriber_delivers_and_stores_publications() -> None:
    ring = Ring("m", LATE.rules)
    circulation = Replication(ring, Shortcuts(ring), Replica(TOPIC, None), LATE)
    out = Outbox()
    circulation.on_message(PublishNew(news(0)), "a", out)
    assert [type(effect) for effect in out.effects] == [Deliver]
    assert circulation.has_to_flush
    circulation.persist_deferred(out)
    assert [type(effect) for effect in out.effects] == [Deliver, Store]
