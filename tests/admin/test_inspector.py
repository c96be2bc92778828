"""Inspection of a live topic: complete despite dead nodes and nodes with false answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from skipring.admin import inspector as inspector_module
from skipring.admin.inspector import Inspection, Inspector, TopicContents, open_inspector
from skipring.core import log_pages
from skipring.core.batches import RecordBatch
from skipring.core.events import Overwritten
from skipring.core.labels import Label
from skipring.core.log import MemoryLog, PageLimits
from skipring.core.log_messages import FetchLog, LogPage, Refused
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.prefix import ALL
from skipring.core.state import SubscriberState, SupervisorState, legitimate_state
from skipring.core.subscriber import Subscriber
from skipring.core.trie import PublicationTrie
from skipring.errors import SkipringError, UnreachableError
from skipring.net.addresses import AddressBook
from skipring.rpc.client import RpcClient
from skipring.testing import Cluster
from skipring.wire.rpc import DatabasePage, FetchDatabase, GetNodeStatus, NodeStatus, RuntimeMessage
from skipring.world.adversaries.builders import database_of
from skipring.world.format import parse_world, render_world
from skipring.world.legitimacy import explicit_state, publication_violations, violations
from tests.support.machines import peer
from tests.support.rings import LiveRing, live_ring, until
from tests.support.scenes import in_loop

TOPIC = "news"
STILL_S = 36_000.0  # no tick happens, so the loaded state stays


@asynccontextmanager
async def inspecting(address: str, patience_s: float = 5.0) -> AsyncIterator[Inspector]:
    async with open_inspector([address], TOPIC, patience_s=patience_s) as inspector:
        yield inspector


def address_of(cluster: Cluster) -> str:
    return cluster.url.removeprefix("skipring://")


@asynccontextmanager
async def standing_still(
    states: Mapping[NodeId, SubscriberState], database: SupervisorState
) -> AsyncIterator[tuple[LiveRing, Inspector]]:
    """Yield a ring in the given state without ticks; all nodes know all addresses."""
    async with live_ring(*states, tick_s=STILL_S) as ring:
        book = ring.supervisor.links.book
        await until(lambda: len(book.hints(states)) == len(states))
        await until(lambda: nothing_is_on_its_way(ring))
        for name, state in states.items():
            node = ring.nodes[name]
            node.links.book.learn({other: each.address for other, each in ring.nodes.items()})
            machine_of(ring, name).handle(Overwritten(state))
        ring.supervisor.dispatch(TOPIC, Overwritten(database))
        async with inspecting(ring.supervisor.address) as inspector:
            yield ring, inspector


def nothing_is_on_its_way(ring: LiveRing) -> bool:
    """Return True if no message is in flight or waits for a dial."""
    links = [ring.supervisor.links, *(node.links for node in ring.nodes.values())]
    if any(peer.waiting_bytes for each in links for peer in each.peers.values()):
        return False
    traffic = [each.traffic for each in links]
    return sum(each["frames_sent"] for each in traffic) == sum(
        each["frames_received"] for each in traffic
    )


def machine_of(ring: LiveRing, name: NodeId) -> Subscriber:
    machine = ring.nodes[name].machine(TOPIC)
    assert machine is not None
    return machine


def legitimate(nodes: Sequence[NodeId]) -> dict[NodeId, SubscriberState]:
    return {node: legitimate_state(index, nodes) for index, node in enumerate(nodes)}


def faults(inspection: Inspection) -> list[str]:
    seen = inspection.snapshot
    return [str(fault) for judge in (violations, publication_violations) for fault in judge(seen)]


# -- a real ring -----------------------------------------------------------------------------


@in_loop
async def test_inspection_of_healthy_ring_equals_its_state_without_violations() -> None:
    async with Cluster(n=8) as cluster, inspecting(address_of(cluster)) as inspector:
        for number in range(20):
            await cluster.publish("n00", str(number).encode())
        await cluster.wait_healthy()
        seen = await inspector.inspect(TopicContents.PAYLOADS)
        is_same = explicit_state(seen.snapshot) == explicit_state(cluster.snapshot())
        assert is_same
        read = parse_world(render_world(seen.snapshot))
        assert list(violations(read)) == []
        assert list(publication_violations(read)) == []
        for name, state in read.subscribers.items():
            records = [each for batch in state.publications for each in batch.records()]
            assert [record.payload for record in records] == cluster.payloads(name)


@in_loop
async def test_killed_member_is_seen_as_crashed() -> None:
    async with (
        Cluster(n=4, tick_s=0.5) as cluster,
        inspecting(address_of(cluster), 0.5) as inspector,
    ):
        await cluster.wait_healthy()
        cluster.kill("n02")
        seen = await inspector.inspect(TopicContents.DIFFERENCES)
        assert seen.snapshot.crashed == ("n02",)
        assert list(seen.statuses) == ["n00", "n01", "n03"]
        assert any(
            "n02 under label" in fault and "not a live subscriber" in fault
            for fault in faults(seen)
        )
        parse_world(render_world(seen.snapshot))


@in_loop
async def test_corrupted_node_is_seen_unchanged() -> None:
    states = legitimate("abcd")
    states["b"] = SubscriberState(
        label=Label.parse("0111"),
        left=peer("0", "d"),
        right=peer("1", SUPERVISOR),
        shortcuts={Label.parse("001"): "b", Label.parse("1"): None},
    )
    database = SupervisorState(database=database_of("abcd"))
    async with standing_still(states, database) as (_, inspector):
        seen = await inspector.inspect(TopicContents.IDS)
    assert seen.snapshot.subscribers == states
    assert {text.split()[1].partition(".")[0] for text in faults(seen)} == {"b"}
    assert parse_world(render_world(seen.snapshot)) == seen.snapshot


@in_loop
async def test_second_ring_is_found_through_one_entry_and_unrecorded_node_by_reference() -> None:
    states = legitimate("abcd") | legitimate("efgh") | {"alone": SubscriberState()}
    states["g"] = replace(states["g"], left=peer("001", "alone"))
    entries = (*database_of("abcd"), ("111", "e"))
    database = SupervisorState(database=entries, next=2)
    async with standing_still(states, database) as (_, inspector):
        seen = await inspector.inspect(TopicContents.NOTHING)
    assert seen.snapshot.subscribers == states
    assert seen.snapshot.crashed == ()
    assert "L0: database: alone is not recorded" in faults(seen)


@in_loop
async def test_queued_and_unreachable_nodes_are_in_the_world_file() -> None:
    states = legitimate("ab")
    states["a"] = replace(states["a"], shortcuts={Label.parse("01"): "missing"})
    entries = (*database_of("ab"), ("10", None))
    database = SupervisorState(database=entries, next=1, queue=("b", "gone"))
    async with standing_still(states, database) as (_, inspector):
        seen = await inspector.inspect(TopicContents.NOTHING)
    assert seen.snapshot.supervisor == database
    assert seen.snapshot.crashed == ("gone", "missing")
    assert parse_world(render_world(seen.snapshot)) == seen.snapshot


@pytest.mark.heavy
@in_loop
async def test_three_thousand_publications_are_read_in_pages_and_once_for_equal_roots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_pages, "LISTING_PAGE", PageLimits(1 << 20, 1000, 1 << 20, 1 << 14))
    async with Cluster(n=4) as cluster, inspecting(address_of(cluster)) as inspector:
        await cluster.wait_healthy()
        for number in range(3000):
            await cluster.publish("n00", str(number).encode())
        await cluster.wait_healthy()
        asked = counted_questions(monkeypatch)
        seen = await inspector.inspect(TopicContents.IDS)
        assert asked["FetchLog"] == 3
        ids = {batch.id for batch in cluster.snapshot().subscribers["n03"].publications}
        for state in seen.snapshot.subscribers.values():
            assert {batch.id for batch in state.publications} == ids
            assert not any(batch.body for batch in state.publications)
            assert sum(batch.count for batch in state.publications) == 3000
        assert faults(seen) == []
        asked.clear()
        assert faults(await inspector.inspect(TopicContents.DIFFERENCES)) == []
        assert asked["FetchLog"] == 0


def counted_questions(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the requests of each kind."""
    ask, asked = RpcClient.request, Counter[str]()

    async def count(
        client: RpcClient,
        topic: str,
        to: NodeId,
        question: Callable[[int], RuntimeMessage],
        *rest: object,
    ) -> object:
        asked[type(question(0)).__name__] += 1
        return await ask(client, topic, to, question, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(RpcClient, "request", count)
    return asked


@in_loop
async def test_node_that_lacks_publications_is_found_by_its_root() -> None:
    database = SupervisorState(database=database_of("abc"))
    async with standing_still(legitimate("abc"), database) as (ring, inspector):
        for number in range(5):
            await ring.publish("a", str(number).encode())
        await until(lambda: all(len(machine_of(ring, name).trie()) == 5 for name in "abc"))
        await until(lambda: nothing_is_on_its_way(ring))  # such as a second copy
        machine = machine_of(ring, "c")
        lost = machine.batches()[3]
        ring.nodes["c"].logs.by_topic[TOPIC].discard(3)
        machine.replica.index().remove(lost.id)
        seen = await inspector.inspect(TopicContents.DIFFERENCES)
    assert faults(seen) == ["PUB: c lacks 1 of 5 publications"]


@in_loop
async def test_root_that_contradicts_stored_publications_is_a_wrong_digest() -> None:
    database = SupervisorState(database=database_of("ab"))
    async with standing_still(legitimate("ab"), database) as (ring, inspector):
        await ring.publish("a", b"hello")
        await until(lambda: len(machine_of(ring, "b").trie()) == 1)
        machine_of(ring, "b").replica.index().corrupt({ALL: bytes(16)})
        seen = await inspector.inspect(TopicContents.DIFFERENCES)
    assert seen.snapshot.subscribers["b"].hashes == {ALL: bytes(16)}
    assert [fault for fault in faults(seen) if fault.startswith("PUB: b")]


@in_loop
async def test_change_log_of_known_node_is_read_and_of_unknown_node_is_none() -> None:
    async with Cluster(n=2) as cluster, inspecting(address_of(cluster), 0.5) as inspector:
        await cluster.wait_healthy()
        await inspector.inspect(TopicContents.NOTHING)
        page = await inspector.journal("n01")
        assert page is not None
        assert {entry.field for entry in page.entries} >= {"member", "label"}
        assert await inspector.journal("missing") is None


@in_loop
async def test_topic_without_members_is_unknown() -> None:
    async with Cluster(n=1) as cluster:
        async with open_inspector([address_of(cluster)], "unheard of") as inspector:
            seen = await inspector.inspect(TopicContents.IDS)
        assert not seen.is_known
        assert seen.snapshot.subscribers == {}
        parse_world(render_world(seen.snapshot))


@in_loop
async def test_missing_supervisor_raises_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector_module, "SUPERVISOR_S", 0.1)
    async with open_inspector(["127.0.0.1:1"], TOPIC) as inspector:
        with pytest.raises(UnreachableError, match=r"nothing listens on 127\.0\.0\.1:1;"):
            await inspector.inspect(TopicContents.NOTHING)


# -- nodes that lie, change or vanish --------------------------------------------------------


class Script:
    """Client whose requests are answered by functions."""

    def __init__(
        self,
        page: Callable[[FetchDatabase], DatabasePage | Refused | None],
        status: Callable[[NodeId], NodeStatus | Refused | None] = lambda _: None,
        listing: Callable[[NodeId, FetchLog], LogPage | None] = lambda *_: None,
    ) -> None:
        self._page, self._status, self._listing = page, status, listing
        self.book = AddressBook()
        self.asked: Counter[str] = Counter()

    def supervisor_of(self, topic: str) -> str:
        return "127.0.0.1:1"

    async def request(
        self,
        topic: str,
        to: NodeId,
        question: Callable[[int], RuntimeMessage],
        kind: type[RuntimeMessage],
        timeout_s: float,
        attempts: int = 1,
    ) -> RuntimeMessage | None:
        message = question(1)
        answer = self._answer(to, message)
        name = f"{type(message).__name__} {to}"
        self.asked[name] += attempts if answer is None else 1
        return answer

    def _answer(self, to: NodeId, message: RuntimeMessage) -> RuntimeMessage | None:
        match message:
            case FetchDatabase():
                return self._page(message)
            case GetNodeStatus():
                return self._status(to)
            case FetchLog():
                return self._listing(to, message)
            case _:
                return None

    async def inspect(self, contents: TopicContents = TopicContents.NOTHING) -> Inspection:
        return await Inspector(self, TOPIC).inspect(contents)  # type: ignore[arg-type]


def one_page(*nodes: NodeId) -> Callable[[FetchDatabase], DatabasePage]:
    entries = database_of(nodes)
    return lambda question: DatabasePage(1, len(entries), 0, 0, None, entries, ())


def status(
    right: NodeId | None = None, stored: Sequence[RecordBatch] = (), root: bytes | None = None
) -> NodeStatus:
    trie, log = PublicationTrie(), MemoryLog(stored)
    trie.add_many(log.entries())
    return NodeStatus(
        request=1,
        member=True,
        label=Label(0),
        left=None,
        right=peer("1", right) if right is not None else None,
        ring=None,
        shortcuts=(),
        silence={},
        digests={},
        count=log.records,
        end=log.end,
        root=trie.root() if root is None else root,
    )


@in_loop
async def test_database_that_changes_during_reading_is_read_again() -> None:
    digests = iter([1, 2, 3, 4, 4, 4])

    def page(question: FetchDatabase) -> DatabasePage:
        entries = (("0", "a"),) if question.start == 0 else (("1", "b"),)
        return DatabasePage(1, 2, next(digests), 0, None if question.start else 1, entries, ())

    script = Script(page)
    seen = await script.inspect()
    assert script.asked["FetchDatabase supervisor"] == 6
    assert seen.snapshot.supervisor.database == (("0", "a"), ("1", "b"))


@in_loop
async def test_database_that_keeps_changing_is_used_as_read() -> None:
    digests = iter(range(1000))

    def page(question: FetchDatabase) -> DatabasePage:
        after = question.start + 1 if question.start < 3 else None
        return DatabasePage(1, 4, next(digests), 0, after, ((str(question.start % 2), "a"),), ())

    seen = await Script(page).inspect()
    assert len(seen.snapshot.supervisor.database) == 4


@pytest.mark.parametrize("step", [0, 1])
@in_loop
async def test_endless_database_is_abandoned(step: int) -> None:
    def page(question: FetchDatabase) -> DatabasePage:
        entries = (("0", "a"),) * 256
        after = question.start + 256 * step if step else 0
        return DatabasePage(1, 1, 1, 0, after, entries, ())

    with pytest.raises(SkipringError, match="or no end"):
        await Script(page).inspect()


@in_loop
async def test_supervisor_that_refuses_the_topic_is_reported() -> None:
    with pytest.raises(UnreachableError, match="does not serve 'news'"):
        await Script(lambda _: Refused(1, "no")).inspect()


@in_loop
async def test_endless_invented_nodes_are_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector_module, "NODES_MAX", 100)
    script = Script(one_page("x0"), lambda node: status(f"x{int(node[1:]) + 1}"))
    script.book.learn({f"x{number}": "127.0.0.1:1" for number in range(1000)})
    with pytest.raises(SkipringError, match="more than 100 nodes"):
        await script.inspect()
    assert sum(script.asked.values()) < 110


@in_loop
async def test_unresponsive_node_is_asked_twice_and_node_without_address_never() -> None:
    script = Script(one_page("a", "b"))
    script.book.learn({"b": "127.0.0.1:1"})
    seen = await script.inspect()
    assert seen.snapshot.crashed == ("a", "b")
    assert (script.asked["GetNodeStatus a"], script.asked["GetNodeStatus b"]) == (0, 2)


STORED = [RecordBatch("p", 3 * place, 3, b"", id=bytes([place]) * 32) for place in range(10)]
OFFSETS = [3 * place for place in range(10)]


def with_addresses(script: Script, *nodes: NodeId) -> Script:
    script.book.learn(dict.fromkeys(nodes, "127.0.0.1:1"))
    return script


@in_loop
async def test_another_node_with_equal_root_is_asked_if_a_listing_stops() -> None:
    def listing(node: NodeId, question: FetchLog) -> LogPage | None:
        if node == "a":
            return None
        assert (question.store, question.epoch, question.bits, question.contents) == (
            "",
            0,
            0,
            False,
        )
        first = question.start // 3
        following = OFFSETS[first + 4] if first + 4 < len(STORED) else None
        here = slice(first, first + 4)
        return LogPage(1, following, tuple(OFFSETS[here]), tuple(STORED[here]))

    script = Script(one_page("a", "b"), lambda _: status(None, STORED), listing)
    seen = await with_addresses(script, "a", "b").inspect(TopicContents.IDS)
    assert seen.snapshot.crashed == ()
    for state in seen.snapshot.subscribers.values():
        assert state.publications == tuple(STORED)
    assert script.asked["FetchLog b"] == 3


@pytest.mark.parametrize("contents", [TopicContents.IDS, TopicContents.PAYLOADS])
@in_loop
async def test_node_with_endless_list_counts_as_crashed(contents: TopicContents) -> None:
    script = Script(
        one_page("a"),
        lambda _: status(None, STORED),
        lambda _, question: LogPage(1, question.start, (0,), (STORED[0],)),
    )
    seen = await with_addresses(script, "a").inspect(contents)
    assert seen.snapshot.crashed == ("a",)
    assert not seen.statuses


@in_loop
async def test_listing_beyond_the_memory_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector_module, "LISTED_BYTES_MAX", 1000)
    endless = replace(status(None, STORED), end=2**40 - 1)
    script = Script(
        one_page("a"),
        lambda _: endless,
        lambda _, question: LogPage(1, question.start + 30, tuple(OFFSETS), tuple(STORED)),
    )
    with pytest.raises(SkipringError, match="too many to be collected"):
        await with_addresses(script, "a").inspect(TopicContents.IDS)
    assert script.asked["FetchLog a"] < 10
