"""Backfill of a new member from the logs of live neighbours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from skipring.core import log_pages
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.effects import Effect
from skipring.core.events import Event, Received
from skipring.core.log_messages import FetchLog, LogPage
from skipring.core.messages import Message
from skipring.core.peers import NodeId, TopicId
from skipring.core.subscriber import Subscriber
from skipring.node.host import NodeHost
from skipring.node.settings import NodeSettings
from skipring.storage.store import LogStore
from tests.support.rings import DEADLINE_S, TOPIC, LiveRing, live_ring, until


def history(count: int) -> list[RecordBatch]:
    """Return batches of 1, 2 or 3 records; their payloads differ."""
    return [
        RecordBatch.of(
            [BatchRecord(b"%d.%d" % (n, place), 1) for place in range(1 + n % 3)],
            publisher="p",
            first=3 * n,
            topic=TOPIC,
        )
        for n in range(count)
    ]


HOLDERS = ("b", "c", "d")
LONG = 4000  # batches
PAGE_BATCHES_LIVE = 128
END = 2**40 - 1


class Wire:
    """Recorder of requests and answers between nodes; a deaf node receives nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard: list[tuple[NodeId, NodeId, Message]] = []  # receiver, sender, message
        self.progress: list[int] = []  # records of the new member when a page arrived
        self.deaf: set[NodeId] = set()
        self.given: list[bytes] = []
        self.hook: Callable[[NodeId, Message], None] = lambda node, message: None
        handle = NodeHost.dispatch

        def recording(node: NodeHost, topic: TopicId, event: Event) -> list[Effect]:
            if isinstance(event, Received) and isinstance(event.message, FetchLog | LogPage):
                self.hook(node.name, event.message)
                if node.name in self.deaf:
                    return []
                self.heard.append((node.name, event.sender or "", event.message))
                if isinstance(event.message, LogPage):
                    self.progress.append(len(self.given))
            return handle(node, topic, event)

        monkeypatch.setattr(NodeHost, "dispatch", recording)

    @property
    def sources(self) -> set[NodeId]:
        """Return the nodes that were read from."""
        return {node for node, _, message in self.heard if isinstance(message, FetchLog)}

    @property
    def batches(self) -> int:
        """Return the number of batches received in pages."""
        return sum(
            len(message.offsets) for *_, message in self.heard if isinstance(message, LogPage)
        )


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    small = log_pages.CONTENT_PAGE._replace(entries_max=PAGE_BATCHES_LIVE)
    monkeypatch.setattr(log_pages, "CONTENT_PAGE", small)
    return Wire(monkeypatch)


def fill(directory: Path, batches: list[RecordBatch]) -> LogStore:
    """Return the open store of a node with this history."""
    store = LogStore.open(directory)
    for batch in batches:
        store.log(TOPIC).append(batch)
    store.commit()
    return store


def machine_of(node: NodeHost) -> Subscriber:
    machine = node.machine(TOPIC)
    assert machine is not None
    return machine


def ids_of(node: NodeHost) -> set[bytes]:
    return set(machine_of(node).trie().keys())


def published_by(nodes: list[NodeHost]) -> set[bytes]:
    """Return the ids of the batches that these nodes have published."""
    return {
        batch.id
        for node in nodes
        for batch in machine_of(node).batches()
        if batch.publisher == node.name
    }


class Late:
    """Ring of members with a history, and one member that joins later; all have disks."""

    def __init__(self, ring: LiveRing, wire: Wire, tmp_path: Path, stores: ExitStack) -> None:
        self.ring, self.wire = ring, wire
        self._path, self._stores = tmp_path, stores
        self.history = history(LONG)
        self.ids = {batch.id for batch in self.history}
        self.records = sum(batch.count for batch in self.history)

    async def hold(self, spoilt: Mapping[NodeId, list[RecordBatch]]) -> None:
        """Start the members, some with other batches than the history."""
        for name in HOLDERS:
            batches = spoilt.get(name, self.history)
            store = self._stores.enter_context(fill(self._path / name, batches))
            await self.ring.join(name, store)
        nodes = [self.ring.nodes[name] for name in HOLDERS]
        await until(lambda: all(len(machine_of(node).ring_neighbours()) == 2 for node in nodes))

    async def come(self) -> NodeHost:
        """Start the new member."""
        store = self._stores.enter_context(LogStore.open(self._path / "new"))
        self.wire.given = self.ring.delivered.setdefault("new", [])
        return await self.ring.join("new", store)

    @property
    def nodes(self) -> list[NodeHost]:
        return list(self.ring.nodes.values())

    async def has_all(self, newcomer: NodeHost, ids: set[bytes]) -> None:
        """Wait until a node has everything on its disk."""
        await until(
            lambda: machine_of(newcomer).count >= len(ids) and ids_of(newcomer) == ids,
            lambda: f"{machine_of(newcomer).count} of {len(ids)}",
        )
        await until(lambda: newcomer.durability.unwritten == 0)
        given = self.ring.delivered["new"]
        assert len(given) == len(set(given)) == self.records + len(ids - self.ids)

    async def stored(self) -> set[bytes]:
        """Stop all nodes; return the ids on the disk of the new member."""
        await self.ring.stop()
        self.ring.nodes.clear()
        self._stores.close()
        with LogStore.open(self._path / "new") as store:
            assert store.damage is None
            batches = [entry.batch for entry in store.log(TOPIC).read_range(0, END)]
        assert all(batch.is_genuine(TOPIC) for batch in batches)
        assert len({batch.id for batch in batches}) == len(batches)
        return {batch.id for batch in batches}


@asynccontextmanager
async def late(
    wire: Wire,
    tmp_path: Path,
    spoilt: Mapping[NodeId, list[RecordBatch]] | None = None,
    *,
    repairs: bool,
) -> AsyncIterator[Late]:
    """Yield a ring with a history; without anti-entropy all publications arrive by backfill."""
    with ExitStack() as stores:
        async with live_ring() as ring:
            ring.settings = replace(
                ring.settings,
                config=replace(NodeSettings().config, repairs=repairs, backfill_min=LONG // 4),
            )
            scene = Late(ring, wire, tmp_path, stores)
            await scene.hold(spoilt or {})
            yield scene


async def test_new_member_reads_history_from_several_neighbours_once_and_in_pages(
    wire: Wire, tmp_path: Path
) -> None:
    async with late(wire, tmp_path, repairs=False) as here:
        await here.has_all(await here.come(), here.ids)
        assert len(wire.sources) >= 2
        assert any(0 < given < here.records for given in wire.progress)
        assert wire.batches == LONG  # each batch once, and nothing was left to anti-entropy
        assert await here.stored() == here.ids


async def test_new_member_gets_history_while_others_publish(wire: Wire, tmp_path: Path) -> None:
    async with late(wire, tmp_path, repairs=True) as here:
        newcomer = await here.come()
        for number in range(60):
            await here.ring.publish(HOLDERS[number % len(HOLDERS)], b"fresh %d" % number)
        fresh = published_by(here.nodes)
        assert len(fresh) == 60
        await here.has_all(newcomer, here.ids | fresh)
        await until(lambda: all(ids_of(node) == here.ids | fresh for node in here.nodes))
        assert await here.stored() == here.ids | fresh


async def test_neighbour_that_dies_during_a_backfill_is_replaced(
    wire: Wire, tmp_path: Path
) -> None:
    async with late(wire, tmp_path, repairs=False) as here:
        dying = asyncio.get_running_loop().create_future()

        def hook(node: NodeId, message: Message) -> None:
            """Silence the first node that is asked for its third page."""
            asked = sum(by == node and isinstance(m, FetchLog) for by, _, m in wire.heard)
            if isinstance(message, FetchLog) and asked == 2 and not dying.done():
                wire.deaf.add(node)
                dying.set_result((node, machine_of(here.ring.nodes["new"]).count))

        wire.hook = hook
        newcomer = await here.come()
        async with asyncio.timeout(DEADLINE_S):
            victim, count = await dying
        assert count < LONG
        await here.ring.kill(victim)
        await here.has_all(newcomer, here.ids)
        assert await here.stored() == here.ids


def with_spoilt(batches: list[RecordBatch]) -> list[RecordBatch]:
    """Return a history in which every seventh batch is corrupt."""
    return [
        replace(batch, body=batch.body.replace(b".", b"!")) if number % 7 == 0 else batch
        for number, batch in enumerate(batches)
    ]


async def test_corrupt_batches_of_neighbours_are_refused(wire: Wire, tmp_path: Path) -> None:
    batches = with_spoilt(history(LONG))
    async with late(wire, tmp_path, dict.fromkeys(HOLDERS, batches), repairs=False) as here:
        newcomer = await here.come()
        machine = machine_of(newcomer)
        await until(lambda: wire.batches >= LONG and not machine.replication.is_backfilling)
        sound = {batch.id for batch in batches if batch.is_genuine(TOPIC)}
        assert ids_of(newcomer) == sound
        assert not any(b"!" in each for each in here.ring.delivered["new"])
        assert await here.stored() == sound


async def test_batches_corrupt_at_the_sources_come_from_others_by_anti_entropy(
    wire: Wire, tmp_path: Path
) -> None:
    batches = with_spoilt(history(LONG))
    async with late(wire, tmp_path, {"b": batches, "c": batches}, repairs=True) as here:
        newcomer = await here.come()
        await here.has_all(newcomer, here.ids)
        assert not any(b"!" in each for each in here.ring.delivered["new"])
        assert await here.stored() == here.ids
