"""Backfill of a new member from the logs of live neighbours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from skipring.core import log_pages
from skipring.core.effects import Effect
from skipring.core.events import Event, Received
from skipring.core.log_messages import FetchLog, LogPage
from skipring.core.messages import Message
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import Publication
from skipring.core.subscriber import Subscriber
from skipring.node.host import NodeHost
from skipring.node.settings import NodeSettings
from skipring.storage.store import PublicationStore
from tests.support.rings import DEADLINE_S, TOPIC, LiveRing, live_ring, until


def history(count: int) -> list[Publication]:
    return [
        Publication(publisher="p", seq=seq, payload=b"%d" % seq, time=1).with_id(TOPIC)
        for seq in range(count)
    ]


HOLDERS = ("b", "c", "d")
LONG = 4000
PAGE_ROWS_LIVE = 128


class Wire:
    """Recorder of requests and answers between nodes; a deaf node receives nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard: list[tuple[NodeId, NodeId, Message]] = []  # receiver, sender, message
        self.progress: list[int] = []  # publications of the new member when a page arrived
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
    def rows(self) -> int:
        """Return the number of rows received in pages."""
        return sum(
            len(message.offsets) for *_, message in self.heard if isinstance(message, LogPage)
        )


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    monkeypatch.setattr(log_pages, "PAGE_ROWS_MAX", PAGE_ROWS_LIVE)
    return Wire(monkeypatch)


def fill(directory: Path, rows: list[Publication]) -> PublicationStore:
    """Return the open store of a node with this history."""
    store = PublicationStore.open(directory)
    store.archive(TOPIC).write(0, *rows)
    store.commit()
    return store


def machine_of(node: NodeHost) -> Subscriber:
    machine = node.machine(TOPIC)
    assert machine is not None
    return machine


def ids_of(node: NodeHost) -> set[bytes]:
    return set(machine_of(node).index().keys())


class Late:
    """Ring of members with a history, and one member that joins later; all have disks."""

    def __init__(self, ring: LiveRing, wire: Wire, tmp_path: Path, stores: ExitStack) -> None:
        self.ring, self.wire = ring, wire
        self._path, self._stores = tmp_path, stores
        self.rows = history(LONG)
        self.ids = {row.id for row in self.rows}

    async def hold(self, spoilt: Mapping[NodeId, list[Publication]]) -> None:
        """Start the members, some with other rows than the history."""
        for name in HOLDERS:
            rows = spoilt.get(name, self.rows)
            await self.ring.join(name, self._stores.enter_context(fill(self._path / name, rows)))
        nodes = [self.ring.nodes[name] for name in HOLDERS]
        await until(lambda: all(len(machine_of(node).ring_neighbours()) == 2 for node in nodes))

    async def come(self) -> NodeHost:
        """Start the new member."""
        store = self._stores.enter_context(PublicationStore.open(self._path / "new"))
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
        assert len(given) == len(set(given)) == len(ids)

    async def stored(self) -> set[bytes]:
        """Stop all nodes; return the ids on the disk of the new member."""
        await self.ring.stop()
        self.ring.nodes.clear()
        self._stores.close()
        with PublicationStore.open(self._path / "new") as store:
            assert store.recovery.damage is None
            rows = list(store.archive(TOPIC).publications())
        assert all(row.is_genuine(TOPIC) for row in rows)
        assert len({row.id for row in rows}) == len(rows)
        return {row.id for row in rows}


@asynccontextmanager
async def late(
    wire: Wire,
    tmp_path: Path,
    spoilt: Mapping[NodeId, list[Publication]] | None = None,
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
        assert any(0 < given < LONG for given in wire.progress)
        assert wire.rows == LONG  # each row once, and nothing was left to anti-entropy
        assert await here.stored() == here.ids


async def test_new_member_gets_history_while_others_publish(wire: Wire, tmp_path: Path) -> None:
    async with late(wire, tmp_path, repairs=True) as here:
        newcomer = await here.come()
        fresh = set()
        for number in range(60):
            publisher = HOLDERS[number % len(HOLDERS)]
            fresh.add(await here.ring.publish(publisher, b"fresh %d" % number))
        await here.has_all(newcomer, here.ids | fresh)
        await until(lambda: all(ids_of(node) == here.ids | fresh for node in here.nodes))
        assert await here.stored() == here.ids | fresh


async def test_new_member_that_publishes_meanwhile_loses_nothing(
    wire: Wire, tmp_path: Path
) -> None:
    async with late(wire, tmp_path, repairs=True) as here:
        newcomer = await here.come()
        fresh = {await here.ring.publish("new", b"fresh %d" % number) for number in range(30)}
        await here.has_all(newcomer, here.ids | fresh)
        await until(lambda: all(ids_of(node) == here.ids | fresh for node in here.nodes))


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


def with_spoilt(rows: list[Publication]) -> list[Publication]:
    """Return a history in which every seventh row is corrupt."""
    return [
        replace(row, payload=b"spoilt %d" % row.seq) if row.seq % 7 == 0 else row for row in rows
    ]


async def test_corrupt_rows_of_neighbours_are_refused(wire: Wire, tmp_path: Path) -> None:
    rows = with_spoilt(history(LONG))
    async with late(wire, tmp_path, dict.fromkeys(HOLDERS, rows), repairs=False) as here:
        newcomer = await here.come()
        machine = machine_of(newcomer)
        await until(lambda: wire.rows >= LONG and not machine.replication.is_backfilling)
        sound = {row.id for row in rows if row.is_genuine(TOPIC)}
        assert ids_of(newcomer) == sound
        assert not any(each.startswith(b"spoilt") for each in here.ring.delivered["new"])
        assert await here.stored() == sound


async def test_rows_corrupt_at_the_sources_come_from_others_by_anti_entropy(
    wire: Wire, tmp_path: Path
) -> None:
    rows = with_spoilt(history(LONG))
    async with late(wire, tmp_path, {"b": rows, "c": rows}, repairs=True) as here:
        newcomer = await here.come()
        await here.has_all(newcomer, here.ids)
        assert not any(each.startswith(b"spoilt") for each in here.ring.delivered["new"])
        assert await here.stored() == here.ids
