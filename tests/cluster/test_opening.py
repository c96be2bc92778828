"""Start with a large store: the node joins and serves while its log is indexed in slices."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from skipring.core.config import ProtocolConfig
from skipring.core.effects import Effect
from skipring.core.events import Event, Flush, Received, Tick
from skipring.core.log_messages import FetchLog, GetLogInfo, LogPage
from skipring.core.messages import (
    MESSAGE_TYPES,
    CheckTrie,
    Held,
    IHave,
    RemoveConnections,
    RequestHandover,
    SetConfiguration,
)
from skipring.core.peers import NodeId, TopicId
from skipring.core.prefix import ALL
from skipring.core.replica import FAR_BEHIND, UNREAD_FACTOR
from skipring.core.subscriber import Subscriber
from skipring.core.summaries import SHORT_BYTES, RangeSummary
from skipring.core.trie import PublicationTrie
from skipring.node.group_commit import opened
from skipring.node.host import NodeHost
from skipring.observability.clock import BEATS, LoopPause
from skipring.rpc.client import RpcClient
from skipring.storage.store import LogStore
from skipring.wire.codec import encode
from skipring.wire.rpc import GetNodeStatus, NodeStatus
from tests.support.batches import batch
from tests.support.rings import TOPIC, LiveRing, live_ring, until
from tests.wire.samples import SAMPLES

TURNS_PER_MESSAGE = 16
BEAT_S = 0.005
ANSWER_S = 60.0  # the other member stores the history in the same loop
FLUSH_S = 3600.0  # the test requests each slice


class Slices:
    """Ids that were indexed or hashed in each event of one node."""

    def __init__(self, name: NodeId, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by_event: list[int] = []
        self._ids = 0
        add_many, hash_some = PublicationTrie.add_many, PublicationTrie.hash_some
        dispatch = NodeHost.dispatch

        def counted_add(trie: PublicationTrie, entries: Iterable[tuple[bytes, int]]) -> object:
            found = list(entries)
            self._ids += len(found)
            return add_many(trie, found)

        def counted_hash(trie: PublicationTrie, ids: int) -> bool:
            self._ids += 0 if trie.is_fresh else ids
            return hash_some(trie, ids)

        def recorded(node: NodeHost, topic: TopicId, event: Event) -> list[Effect]:
            self._ids = 0
            effects = dispatch(node, topic, event)
            if node.name == name and self._ids:
                self.by_event.append(self._ids)
            return effects

        monkeypatch.setattr(PublicationTrie, "add_many", counted_add)
        monkeypatch.setattr(PublicationTrie, "hash_some", counted_hash)
        monkeypatch.setattr(NodeHost, "dispatch", recorded)


def fill(directory: Path, count: int) -> None:
    with LogStore.open(directory) as store:
        log = store.log(TOPIC)
        for first in range(count):
            log.append(batch(b"history", publisher="p", first=first, topic=TOPIC))
        store.commit()


def machine_of(node: NodeHost) -> Subscriber:
    machine = node.machine(TOPIC)
    assert machine is not None
    return machine


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(200_000, marks=pytest.mark.heavy),
        pytest.param(1_000_000, marks=pytest.mark.slow),
    ],
)
async def test_node_joins_and_serves_while_its_log_is_indexed_in_slices(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node joins and serves first, then indexes while another member sends messages."""
    fill(tmp_path, count)
    config = ProtocolConfig.live()
    async with live_ring("other") as ring:
        ring.settings = replace(ring.settings, config=config, flush_s=FLUSH_S)
        slices = Slices("large", monkeypatch)
        with await opened(LogStore.open, tmp_path) as store:
            node = await ring.join("large", store)
            replica = machine_of(node).replica
            await until(lambda: machine_of(node).ring_neighbours() == ["other"])
            node.ticker.stop()  # a tick indexes a slice, too
            await ring.publish("large", b"fresh")
            await until(lambda: b"fresh" in ring.delivered["other"])
            await serves(node, count)
            forge(node)
            pause, before = LoopPause(BEAT_S * BEATS), node.links.traffic["frames_received"]
            pause.start()
            for turn in range(8 * count // config.hashed_ids):
                if turn % TURNS_PER_MESSAGE == 0:
                    await send_all(ring)
                node.dispatch(TOPIC, Tick())
                node.dispatch(TOPIC, Flush())
                await asyncio.sleep(0)
                if not replica.is_behind:
                    break
            pause.stop()
            sys.stdout.write(f"longest pause of the loop: {1000 * pause.longest_s:.0f} ms\n")
            assert node.links.traffic["frames_received"] - before > 10, "of the other member"
            assert not replica.is_behind
            assert len(replica.indexed_trie) == replica.count > count
            assert sum(slices.by_event) >= count
            await ring.kill("large")
    first, *others = slices.by_event
    assert first == FAR_BEHIND, "the log is opened with one larger slice"
    # A tick indexes a slice, and hashes for a question and for a confirmation.
    assert max(others) <= (UNREAD_FACTOR + 2) * config.hashed_ids <= FAR_BEHIND


def forge(node: NodeHost) -> None:
    """Send every message of the protocol, and a forged difference in each handover."""
    replica, claims = machine_of(node).replica, (RangeSummary.make(ALL),)
    forged = [Held("forger", session, False, claims) for session in range(8)]
    asked = [each for each in SAMPLES if type(each) in (*MESSAGE_TYPES, GetLogInfo, FetchLog)]
    # These would change the ring of the test.
    asked = [each for each in asked if not isinstance(each, SetConfiguration | RemoveConnections)]
    for message in (RequestHandover("forger", 1), *asked, *forged):
        node.dispatch(TOPIC, Received(message, "forger"))
    assert replica.is_starting, "no message indexes the log"


async def send_all(ring: LiveRing) -> None:
    """Let the other member publish, and send announcements, claims and requests for the log."""
    other = ring.nodes["other"]
    await ring.publish("other", b"news")
    for message in (
        IHave("other", b"\x01" * SHORT_BYTES, b"\x01"),
        CheckTrie("other", (RangeSummary.make(ALL),)),
        FetchLog(1, "", 0, 0, 1000, 0, 0, contents=True),
    ):
        other.links.send("large", encode(TOPIC, message))


async def serves(node: NodeHost, count: int) -> None:
    """Request a status, and the end of the log with contents."""
    async with RpcClient(["127.0.0.1:1"], rng=Random(1)) as client:
        client.book.learn({node.name: node.address})
        end = machine_of(node).replica.log.end
        question = partial(
            FetchLog, store="", epoch=0, start=end - 3, end=end, bits=0, prefix=0, contents=True
        )
        page = await client.request(TOPIC, node.name, question, LogPage, ANSWER_S)
        assert isinstance(page, LogPage)
        payloads = [each.payload for found in page.batches for each in found.records()]
        assert payloads == [b"history", b"history", b"fresh"]
        assert machine_of(node).replica.is_starting, "all this happened while the log was read"
        status = await client.request(TOPIC, node.name, GetNodeStatus, NodeStatus, ANSWER_S)
        assert isinstance(status, NodeStatus)
        assert (status.count, status.end) == (count + 1, count + 1)
