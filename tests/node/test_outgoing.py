"""Outbound own publications: in order, once durable, and batched."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypeAlias

import pytest

from skipring.core.effects import Effect, Send
from skipring.core.messages import IHave, Message, PublishMany, PublishNew
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import Publication
from skipring.node import outgoing as outgoing_module
from skipring.node.outgoing import TOGETHER_BYTES_MAX, TOGETHER_MAX, Outgoing
from skipring.storage.store import PublicationStore
from skipring.wire.codec import decode
from tests.support.rings import TOPIC, live_ring
from tests.wire.samples import the_frame

NODES = ("x", "y")

Performed: TypeAlias = list[tuple[TopicId, list[Effect]]]


class Desk:
    """Outgoing publications and a record of what was sent."""

    def __init__(self) -> None:
        self.performed: Performed = []
        self.commits = 0
        self.outgoing = Outgoing(lambda topic, effects: self.performed.append((topic, effects)))

    def add(
        self, *messages: Message, topic: TopicId = TOPIC, nodes: tuple[NodeId, ...] = NODES
    ) -> int:
        """Add messages for all nodes, as the core returns them."""
        self.commits += 1
        sends = [Send(to, each) for each in messages for to in nodes]
        return self.outgoing.add(topic, sends, self.commits)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def made(seq: int, size_bytes: int = 0) -> Publication:
    return Publication(publisher="m", seq=seq, payload=bytes(size_bytes))


def new(seq: int, size_bytes: int = 0) -> PublishNew:
    return PublishNew(made(seq, size_bytes))


def many(*seqs: int) -> PublishMany:
    return PublishMany(tuple(made(seq) for seq in seqs))


def sends(message: Message, *nodes: NodeId) -> list[Effect]:
    return [Send(node, message) for node in nodes or NODES]


def seqs(performed: Performed) -> list[list[int]]:
    """Return the sequence numbers of each message."""
    found = []
    for _, effects in performed:
        (message,) = {id(each.message): each.message for each in effects}.values()  # type: ignore[union-attr]
        match message:
            case PublishNew(publication=one):
                found.append([one.seq])
            case PublishMany(publications=several):
                found.append([each.seq for each in several])
    return found


# -- order -----------------------------------------------------------------------------------


def test_nothing_is_sent_before_it_is_released(desk: Desk) -> None:
    desk.add(new(0))
    assert desk.performed == []


def test_single_message_is_sent_unchanged(desk: Desk) -> None:
    message = new(0)
    desk.outgoing.release(desk.add(message))
    assert desk.performed == [(TOPIC, sends(message))]


def test_release_sends_all_earlier_messages_once(desk: Desk) -> None:
    desk.add(new(0))
    second = desk.add(new(1))
    third = desk.add(new(2))
    desk.outgoing.release(second)
    assert seqs(desk.performed) == [[0, 1]]
    desk.outgoing.release(second - 1)
    assert seqs(desk.performed) == [[0, 1]]
    desk.outgoing.release(third)
    desk.outgoing.release(third)
    assert seqs(desk.performed) == [[0, 1], [2]]


def test_messages_that_cannot_be_merged_keep_their_order(desk: Desk) -> None:
    desk.add(new(0), topic="one")
    desk.add(new(1), topic="two")
    desk.add(new(2), topic="one")
    desk.outgoing.release(desk.add(new(3), topic="one"))
    assert [topic for topic, _ in desk.performed] == ["one", "two", "one"]
    assert seqs(desk.performed) == [[0], [1], [2, 3]]


def test_adding_no_effects_sends_nothing(desk: Desk) -> None:
    desk.outgoing.release(desk.outgoing.add(TOPIC, [], 1))
    assert desk.performed == []


def test_message_waits_for_its_commit(desk: Desk) -> None:
    for seq, commit in enumerate((4, 4, 5)):
        desk.outgoing.add(TOPIC, [Send("x", new(seq))], commit)
    desk.outgoing.release(3)
    assert desk.performed == []
    desk.outgoing.release(4)
    assert seqs(desk.performed) == [[0, 1]]
    desk.outgoing.release(5)
    assert seqs(desk.performed) == [[0, 1], [2]]


# -- batches ---------------------------------------------------------------------------------


def test_messages_of_one_commit_are_merged_for_all_nodes(desk: Desk) -> None:
    desk.add(new(0))
    desk.add(many(1, 2))
    desk.outgoing.release(desk.add(new(3)))
    [(topic, effects)] = desk.performed
    assert (topic, effects) == (TOPIC, sends(many(0, 1, 2, 3)))
    assert len({id(effect.message) for effect in effects if isinstance(effect, Send)}) == 1


def test_messages_of_one_call_are_merged(desk: Desk) -> None:
    desk.outgoing.release(desk.add(many(0, 1), many(2, 3)))
    assert seqs(desk.performed) == [[0, 1, 2, 3]]


def test_added_message_is_not_changed(desk: Desk) -> None:
    first = many(0, 1)
    desk.add(first)
    desk.outgoing.release(desk.add(new(2)))
    assert first == many(0, 1)


@pytest.mark.parametrize("nodes", [("x",), ("y", "x"), ("x", "y", "z"), ("x", "z")])
def test_messages_for_other_nodes_are_not_merged(desk: Desk, nodes: tuple[NodeId, ...]) -> None:
    desk.add(new(0))
    desk.outgoing.release(desk.add(new(1), nodes=nodes))
    assert desk.performed == [(TOPIC, sends(new(0))), (TOPIC, sends(new(1), *nodes))]


@pytest.mark.parametrize("other", [IHave("m", b"", b""), PublishNew(made(9), 1)])
def test_other_message_is_not_merged_and_keeps_its_place(desk: Desk, other: Message) -> None:
    """Add a message of another kind or with hops, which counts as less new than an own one."""
    desk.add(new(0))
    desk.add(other)
    desk.add(other)
    desk.outgoing.release(desk.add(new(1)))
    assert [effects for _, effects in desk.performed] == [
        sends(new(0)),
        sends(other),
        sends(other),
        sends(new(1)),
    ]


def test_forwarded_pack_is_not_merged(desk: Desk) -> None:
    travelled = PublishMany((made(1), made(2)), 3)
    desk.add(new(0))
    desk.outgoing.release(desk.add(travelled))
    assert [effects for _, effects in desk.performed] == [sends(new(0)), sends(travelled)]


def test_number_of_merged_publications_is_limited(desk: Desk) -> None:
    number = 0
    for seq in range(2 * TOGETHER_MAX + 1):
        number = desk.add(new(seq))
    desk.outgoing.release(number)
    sent = seqs(desk.performed)
    assert [len(each) for each in sent] == [TOGETHER_MAX, TOGETHER_MAX, 1]
    assert [seq for each in sent for seq in each] == list(range(2 * TOGETHER_MAX + 1))


def test_pack_is_not_split_to_fill_another(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing_module, "TOGETHER_MAX", 4)
    desk.outgoing.release(desk.add(many(0, 1, 2), many(3, 4), many(5, 6)))
    assert seqs(desk.performed) == [[0, 1, 2], [3, 4, 5, 6]]


def test_bytes_of_merged_publications_are_limited(desk: Desk) -> None:
    half = TOGETHER_BYTES_MAX // 2 - made(0).size_bytes
    desk.outgoing.release(desk.add(new(0, half), new(1, half), new(2), new(3, half + 1), new(4)))
    assert seqs(desk.performed) == [[0, 1], [2, 3, 4]]


def test_oversized_publication_is_sent_alone(desk: Desk) -> None:
    desk.outgoing.release(desk.add(new(0), new(1, TOGETHER_BYTES_MAX), new(2)))
    assert seqs(desk.performed) == [[0], [1], [2]]


# -- dropped messages ------------------------------------------------------------------------


def test_dropped_message_is_not_sent(desk: Desk) -> None:
    desk.add(new(0))
    dropped = desk.add(new(1))
    last = desk.add(new(2))
    desk.outgoing.drop(dropped)
    desk.outgoing.release(last)
    assert seqs(desk.performed) == [[0, 2]]


def test_messages_of_one_commit_can_be_dropped_separately(desk: Desk) -> None:
    numbers = [desk.outgoing.add(TOPIC, [Send("x", new(seq))], 1) for seq in range(3)]
    desk.outgoing.drop(numbers[1])
    desk.outgoing.release(1)
    assert seqs(desk.performed) == [[0, 2]]


def test_dropping_a_sent_message_does_nothing(desk: Desk) -> None:
    first = desk.add(new(0))
    desk.outgoing.release(desk.add(new(1)))
    desk.outgoing.drop(first)
    desk.outgoing.release(desk.add(new(2)))
    assert seqs(desk.performed) == [[0, 1], [2]]


# -- a node ----------------------------------------------------------------------------------


def test_simultaneous_publications_are_sent_in_order_once_written(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        with PublicationStore.open(tmp_path) as store:
            async with live_ring("b") as ring:
                node = await ring.join("a", store)
                await ring.settle()
                archive, sent = store.archive(TOPIC), list[int]()
                send = node.links.send

                def noting(to: NodeId, frame: bytes) -> None:
                    for publication in _new_in(frame):
                        sent.append(publication.seq)
                        assert len(sent) <= archive.written_end
                    send(to, frame)

                node.links.send = noting  # type: ignore[method-assign]
                await asyncio.gather(*(ring.publish("a", b"%d" % number) for number in range(20)))
                assert sent == list(range(sent[0], sent[0] + 20))
                await ring.settle()
                await ring.kill("a")

    asyncio.run(scene())


def test_simultaneous_publications_share_messages(tmp_path: Path) -> None:
    async def scene() -> None:
        with PublicationStore.open(tmp_path) as store:
            async with live_ring("b") as ring:
                node = await ring.join("a", store)
                await ring.settle()
                sent: list[list[int]] = []
                send = node.links.send

                def noting(to: NodeId, frame: bytes) -> None:
                    if several := _new_in(frame):
                        sent.append([publication.seq for publication in several])
                    send(to, frame)

                node.links.send = noting  # type: ignore[method-assign]
                await asyncio.gather(*(ring.publish("a", b"%d" % number) for number in range(20)))
                # Some may be too late for the first commit and share the next one.
                assert len(sent) <= 3
                first = sent[0][0]
                assert [seq for each in sent for seq in each] == list(range(first, first + 20))
                await ring.settle()
                await ring.kill("a")

    asyncio.run(scene())


def _new_in(frame: bytes) -> tuple[Publication, ...]:
    match decode(the_frame(frame)).message:
        case PublishNew(publication=one):
            return (one,)
        case PublishMany(publications=several):
            return several
        case _:
            return ()
