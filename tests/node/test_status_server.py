"""Status answers: pages that fit their frames, in bounded steps, for any state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import pytest
from msgspec.structs import replace

from skipring.core import log_pages
from skipring.core import replica as replica_module
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.config import ProtocolConfig
from skipring.core.events import (
    IndexRequested,
    Overwritten,
    PublishRequested,
    Received,
    SubmitRequested,
    Tick,
)
from skipring.core.labels import Label
from skipring.core.log import Log, MemoryLog
from skipring.core.log_messages import (
    FetchLog,
    FetchRecords,
    GetLogInfo,
    LogInfo,
    LogPage,
    RecordFilter,
    Refused,
)
from skipring.core.messages import GetConfiguration
from skipring.core.peers import Peer
from skipring.core.state import (
    BackfillRunState,
    BackfillSourceState,
    BackfillState,
    LivenessState,
    SubscriberMemory,
    SubscriberState,
    SupervisorState,
    legitimate_state,
)
from skipring.core.subscriber import Subscriber
from skipring.core.summaries import EMPTY_ROOT
from skipring.core.supervisor import Supervisor
from skipring.node import status_server
from skipring.node.host import NodeHost
from skipring.node.settings import NodeSettings
from skipring.node.status_server import (
    INDEX_SLICE_IDS,
    SPARE_SLICES,
    database_page,
    node_status,
    slices_of,
)
from skipring.rpc.client import RpcClient
from skipring.wire.codec import decode, encode, named_nodes
from skipring.wire.rpc import (
    BUSY,
    DatabasePage,
    FetchArrivals,
    FetchChanges,
    FetchDatabase,
    FetchDeliveries,
    GetNodeStatus,
    NodeStatus,
    Request,
)
from skipring.world.adversaries.builders import database_of
from tests.support.batches import batch_of, opaque_batch
from tests.support.fake_host import FakeHost
from tests.support.rings import LOOPBACK
from tests.wire.samples import the_frame

TOPIC = "news"
LONGEST_ADDRESS = f"{'x' * 253}:65535"


# -- a supervisor ----------------------------------------------------------------------------


def supervisor(state: SupervisorState, *, is_repaired: bool = False) -> Supervisor:
    machine = Supervisor(config=ProtocolConfig())
    machine.handle(Overwritten(state))
    if is_repaired:
        machine.roster.repair()
    return machine


def pages_of(machine: Supervisor) -> Iterator[DatabasePage]:
    start: int | None = 0
    while start is not None:
        page = database_page(machine, FetchDatabase(1, start))
        hints = dict.fromkeys(named_nodes(page), LONGEST_ADDRESS)
        received = decode(the_frame(encode("x" * 255, page, hints))).message
        assert received == page
        assert page.next is None or page.next > start
        yield page
        start = page.next


def read_from(machine: Supervisor) -> SupervisorState:
    pages = list(pages_of(machine))
    return SupervisorState(
        database=tuple(entry for page in pages for entry in page.entries),
        next=pages[-1].cursor,
        queue=tuple(node for page in pages for node in page.queue),
    )


@pytest.mark.parametrize("is_repaired", [False, True])
@pytest.mark.parametrize("n", [0, 1, 255, 256, 257, 1000])
def test_pages_together_contain_the_database(n: int, is_repaired: bool) -> None:
    nodes = [f"{number:064}" for number in range(n)]
    state = SupervisorState(database=database_of(nodes), next=3, queue=tuple(nodes[::2]))
    machine = supervisor(state, is_repaired=is_repaired)
    assert read_from(machine) == state
    assert {(page.total, page.digest) for page in pages_of(machine)} == {
        (n, machine.roster.digest())
    }


def test_pages_with_the_longest_labels_and_names_fit_their_frames() -> None:
    nodes = [f"{number:064}" for number in range(300)]
    state = SupervisorState(database=tuple(("1" * 4096, node) for node in nodes), queue=(*nodes,))
    machine = supervisor(state)
    assert read_from(machine) == state
    assert len(list(pages_of(machine))) > 10


def test_invalid_entries_are_omitted_and_an_invalid_cursor_is_reset() -> None:
    entries = (("0", "a"), ("x", "b"), ("1" * 5000, "c"), ("1", "no name"), ("01", None))
    state = SupervisorState(database=entries, next=-(10**30), queue=("d", ""))
    read = read_from(supervisor(state))
    assert read == SupervisorState(database=(("0", "a"), ("01", None)), next=0, queue=("d",))


def test_changed_database_has_another_digest() -> None:
    machine = supervisor(SupervisorState(database=database_of("abc")), is_repaired=True)
    before = database_page(machine, FetchDatabase(1, 0))
    machine.roster.remove("c")
    machine.roster.add("d")
    after = database_page(machine, FetchDatabase(1, 0))
    assert after.total == before.total
    assert after.digest != before.digest


def test_inspection_changes_nothing_at_a_supervisor() -> None:
    machine = supervisor(SupervisorState(database=database_of("abc")), is_repaired=True)
    machine.handle(Received(GetConfiguration("a"), "a"))
    before = machine.state()
    list(pages_of(machine))
    assert machine.state() == before


# -- a node ----------------------------------------------------------------------------------


def subscriber(log: Log | None = None) -> Subscriber:
    return Subscriber("a", topic=TOPIC, rng=Random(0), config=ProtocolConfig(), log=log)


def test_status_equals_the_state_of_the_machine() -> None:
    log = MemoryLog(batch_of(b"x", b"y", first=2 * n, topic=TOPIC) for n in range(3))
    machine = subscriber(log)
    machine.handle(Overwritten(legitimate_state(0, "abcdefgh")))
    machine.handle(Tick())
    state, status = machine.state(), node_status(machine, 4)
    assert (status.member, status.label) == (state.member, state.label)
    assert (status.left, status.right, status.ring) == (state.left, state.right, state.ring)
    assert dict(status.shortcuts) == state.shortcuts
    assert (status.silence, status.digests) == (state.silence, state.digests)
    assert status.silence
    # Users count records.
    assert (status.count, status.end, status.root) == (6, 6, machine.trie().root())


def test_status_counts_no_quarantined_records() -> None:
    log = MemoryLog(batch_of(b"x", b"y", first=2 * n, topic=TOPIC) for n in range(3))
    log.discard(3)
    status = node_status(subscriber(log), 4)
    assert (status.count, status.end) == (4, 6)


def test_status_during_a_backfill_neither_indexes_nor_hashes() -> None:
    machine = subscriber(MemoryLog())
    run = BackfillRunState(sources={"b": BackfillSourceState(request=1)})
    memory = SubscriberMemory(backfill=BackfillState(run=run))
    machine.handle(Overwritten(replace(legitimate_state(0, "abcdefgh"), memory=memory)))
    FakeHost(machine).handle(PublishRequested((BatchRecord(b"a"),)))
    assert machine.replication.is_backfilling
    assert machine.replica.is_behind
    status = node_status(machine, 4)
    assert (status.count, status.root) == (1, EMPTY_ROOT)
    assert machine.replica.is_behind


def opaque_batches(count: int) -> tuple[RecordBatch, ...]:
    rng = Random(count)
    return tuple(opaque_batch(rng.randbytes(32), first=first) for first in range(count))


def test_status_of_100_000_publications_is_indexed_in_slices() -> None:
    count = 100_000
    machine = subscriber(MemoryLog())
    FakeHost(machine).handle(SubmitRequested(opaque_batches(count)))
    replica = machine.replica
    assert node_status(machine, 4).root == EMPTY_ROOT
    for number in range(1, 4):
        machine.handle(IndexRequested(INDEX_SLICE_IDS))
        assert len(replica.indexed_trie) == number * INDEX_SLICE_IDS, "no slice is larger"
    for _ in range(slices_of(count)):
        machine.handle(IndexRequested(INDEX_SLICE_IDS))
    status = node_status(machine, 4)
    assert not replica.is_behind
    assert (status.count, status.root) == (count, replica.indexed_trie.root())


def test_status_of_any_corrupted_machine_fits_its_frame() -> None:
    names = [f"{number:064}" for number in range(1000)]
    machine = subscriber()
    machine.handle(
        Overwritten(
            SubscriberState(
                label=Label(2**64 - 1),
                left=Peer(Label(1), names[0]),
                right=Peer(Label(2), names[1]),
                ring=Peer(Label(3), names[2]),
                shortcuts={Label(number): name for number, name in enumerate(names)},
                silence=dict.fromkeys(names, LivenessState(10**30, -(10**30), True)),
                digests=dict.fromkeys(names[::-1], 2**64 - 1),
            )
        )
    )
    status = node_status(machine, 2**63 - 1)
    hints = dict.fromkeys(named_nodes(status), LONGEST_ADDRESS)
    assert decode(the_frame(encode("x" * 255, status, hints))).message == status
    assert len(status.shortcuts) == len(status.silence) == len(status.digests) == 128


# -- requests over the wire --------------------------------------------------------------------


@asynccontextmanager
async def started() -> AsyncIterator[tuple[NodeHost, RpcClient]]:
    """Yield a node whose timers stand still, and a client of it."""
    node = NodeHost("a", NodeSettings(tick_s=3600.0, flush_s=3600.0), rng=Random(0))
    await node.start(LOOPBACK, 0)
    try:
        async with RpcClient(["127.0.0.1:1"], rng=Random(1)) as client:
            client.book.learn({node.name: node.address})
            yield node, client
    finally:
        await node.close()


@pytest.mark.parametrize(
    "question",
    [
        GetNodeStatus,
        FetchChanges,
        partial(FetchArrivals, since=0),
        partial(FetchDeliveries, start=0, end=10),
        partial(GetLogInfo, bits=0, offset=None),
        lambda number: FetchLog(number, "", 0, 0, 10, 0, 0, contents=False),
    ],
    ids=["status", "changes", "arrivals", "deliveries", "log info", "log"],
)
async def test_non_member_refuses_a_request(question: Callable[[int], Request]) -> None:
    async with started() as (_, client):
        answer = await client.request(TOPIC, "a", question, NodeStatus)
        assert isinstance(answer, Refused)
        assert answer.reason == "not a member of the topic"


async def test_page_of_records_ends_when_the_time_of_a_scan_is_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = log_pages.READ_PAGE._replace(scanned_entries_max=1)
    monkeypatch.setattr(log_pages, "READ_PAGE", one)
    monkeypatch.setattr(status_server, "time_limit", lambda: lambda: True)
    none = RecordFilter(keys=(b"none",))
    async with started() as (node, client):
        node.subscribe(TOPIC)
        await node.submit(TOPIC, *opaque_batches(50))
        search = partial(
            FetchRecords, store="", epoch=0, start=0, end=50, bits=0, prefix=0, payloads=True
        )
        page = await client.request(TOPIC, "a", partial(search, where=none), LogPage)
        assert isinstance(page, LogPage)
        assert (page.next, page.batches) == (1, ())


async def test_node_with_an_index_backlog_answers_without_indexing_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_module, "FAR_BEHIND", 100)
    monkeypatch.setattr(status_server, "INDEX_SLICE_IDS", 10)
    monkeypatch.setattr(status_server, "slices_of", lambda _: 5)
    async with started() as (node, client):
        node.subscribe(TOPIC)
        await node.submit(TOPIC, *opaque_batches(500))
        status = await client.request(TOPIC, "a", GetNodeStatus, NodeStatus)
        assert isinstance(status, NodeStatus)
        assert (status.count, status.root) == (500, EMPTY_ROOT)
        survey = partial(GetLogInfo, bits=1, offset=None)
        refused = await client.request(TOPIC, "a", survey, LogInfo)
        assert isinstance(refused, Refused)
        assert refused.reason == BUSY
        extent = await client.request(
            TOPIC, "a", partial(GetLogInfo, bits=None, offset=None), LogInfo
        )
        assert isinstance(extent, LogInfo)
        assert (extent.count, extent.end) == (500, 500)
        machine = node.machine(TOPIC)
        assert machine is not None
        slices = 2 * (1 + 5 + SPARE_SLICES)
        assert len(machine.replica.indexed_trie) == 10 * slices, "each request indexes slices"
        for _ in range(3):
            answer = await client.request(TOPIC, "a", survey, LogInfo)
        assert isinstance(answer, LogInfo)
        assert len(answer.digests) == 2
