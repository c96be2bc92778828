"""Status answers: pages that fit their frames, in bounded steps, for any state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from skipring.core.config import ProtocolConfig
from skipring.core.events import (
    IndexRequested,
    Overwritten,
    PublishManyRequested,
    PublishRequested,
    Received,
    Tick,
)
from skipring.core.labels import Label
from skipring.core.log import Log, MemoryLog
from skipring.core.log_messages import Refused
from skipring.core.messages import GetConfiguration
from skipring.core.peers import Peer
from skipring.core.publications import Publication
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
from skipring.core.topics import SubscriberTopics
from skipring.node.change_log import ChangeLog
from skipring.node.status_server import (
    INDEX_SLICE_IDS,
    database_page,
    handle_status_request,
    node_status,
    publication_page,
    slices_of,
)
from skipring.storage.store import PublicationStore
from skipring.wire.codec import decode, encode, named_nodes
from skipring.wire.rpc import (
    DatabasePage,
    FetchChanges,
    FetchDatabase,
    FetchPublications,
    GetNodeStatus,
    PublicationPage,
)
from skipring.world.adversaries.builders import database_of
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


def test_page_beyond_the_end_is_empty() -> None:
    machine = supervisor(SupervisorState(database=database_of("ab")), is_repaired=True)
    page = database_page(machine, FetchDatabase(1, 2**63 - 1))
    assert (page.total, page.next, page.entries, page.queue) == (2, None, (), ())


def test_unknown_topic_has_an_empty_page() -> None:
    assert database_page(None, FetchDatabase(7, 0)) == DatabasePage(7, 0, 0, 0, None, (), ())


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


def subscriber(archive: Log | None = None) -> Subscriber:
    return Subscriber("a", topic=TOPIC, rng=Random(0), config=ProtocolConfig(), log=archive)


def journals() -> ChangeLog:
    return ChangeLog(SubscriberTopics("a", rng=Random(0), config=ProtocolConfig()))


@pytest.mark.parametrize(
    "question",
    [GetNodeStatus(5), FetchPublications(5, 0, 10, payloads=False), FetchChanges(5)],
    ids=["status", "publications", "journal"],
)
def test_non_member_refuses_a_status_request(
    question: GetNodeStatus | FetchPublications | FetchChanges,
) -> None:
    assert handle_status_request(TOPIC, None, journals(), question) == Refused(
        5, "not a member of the topic"
    )


def test_status_equals_the_state_of_the_machine() -> None:
    archive = MemoryLog(publications(3))
    machine = subscriber(archive)
    machine.handle(Overwritten(legitimate_state(0, "abcdefgh")))
    machine.handle(Tick())
    state, status = machine.state(), node_status(machine, 4)
    assert (status.member, status.label) == (state.member, state.label)
    assert (status.left, status.right, status.ring) == (state.left, state.right, state.ring)
    assert dict(status.shortcuts) == state.shortcuts
    assert (status.silence, status.digests) == (state.silence, state.digests)
    assert status.silence
    assert (status.count, status.end, status.root) == (3, 3, machine.index().root())


def test_status_during_a_backfill_neither_indexes_nor_hashes() -> None:
    machine = subscriber(MemoryLog())
    run = BackfillRunState(sources={"b": BackfillSourceState(request=1)})
    memory = SubscriberMemory(backfill=BackfillState(run=run))
    machine.handle(Overwritten(replace(legitimate_state(0, "abcdefgh"), memory=memory)))
    machine.handle(PublishManyRequested((PublishRequested(payload=b"a"),)))
    assert machine.replication.is_backfilling
    assert machine.replica.is_behind
    status = node_status(machine, 4)
    assert (status.count, status.root) == (1, EMPTY_ROOT)
    assert machine.replica.is_behind


def test_status_of_100_000_publications_is_indexed_in_slices() -> None:
    count = 100_000
    machine = subscriber(MemoryLog())
    requests = tuple(PublishRequested(payload=b"%d" % number) for number in range(count))
    machine.handle(PublishManyRequested(requests))
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


# -- publications ----------------------------------------------------------------------------


def publications(count: int, payload: bytes = b"hello") -> list[Publication]:
    return [
        Publication(
            publisher="p", seq=seq, payload=payload, time=1, key=b"k", headers={"a": "b"}
        ).with_id(TOPIC)
        for seq in range(count)
    ]


def listed(archive: Log, *, payloads: bool, end: int = 2**40 - 1) -> list[PublicationPage]:
    pages = []
    start: int | None = 0
    while start is not None:
        page = publication_page(archive, FetchPublications(1, start, end, payloads))
        received = decode(the_frame(encode("x" * 255, page))).message
        assert received == page
        assert page.next is None or page.next > start
        pages.append(page)
        start = page.next
    return pages


def ids(pages: list[PublicationPage]) -> list[bytes]:
    return [publication.id for page in pages for publication in page.publications]


@pytest.mark.parametrize("count", [0, 1, 1024, 1025, 3000])
def test_pages_together_contain_the_log(count: int) -> None:
    stored = publications(count)
    archive = MemoryLog(stored)
    whole = listed(archive, payloads=True)
    assert [each for page in whole for each in page.publications] == stored
    bare = listed(archive, payloads=False)
    assert ids(bare) == ids(whole)
    assert len(bare) == max(1, -(-count // 1024))


def test_payload_key_and_headers_are_shown_only_on_request() -> None:
    archive = MemoryLog(publications(1))
    ((bare,),) = (page.publications for page in listed(archive, payloads=False))
    assert (bare.payload, bare.key, bare.headers) == (None, None, {})
    assert (bare.publisher, bare.seq, bare.time) == ("p", 0, 1)


def test_gaps_are_skipped_even_over_a_whole_page() -> None:
    stored = publications(3000)
    archive = MemoryLog(stored)
    for offset in range(2500):
        archive.discard(offset)
    pages = listed(archive, payloads=False)
    assert ids(pages) == [publication.id for publication in stored[2500:]]
    assert [len(page.publications) for page in pages][:2] == [0, 0]


def test_nothing_at_or_after_the_requested_end_is_listed() -> None:
    stored = publications(3000)
    pages = listed(MemoryLog(stored), payloads=False, end=2000)
    assert ids(pages) == [publication.id for publication in stored[:2000]]


def test_page_fits_the_largest_publications() -> None:
    largest = [
        Publication(
            publisher="x" * 64,
            seq=2**63 - 1 - number,
            time=2**63 - 1,
            payload=bytes(512 * 1024 if number % 2 else 1000),
            key=bytes(1024),
            headers={f"{name:064}": "x" * 64 for name in range(64)},
        ).with_id(TOPIC)
        for number in range(20)
    ]
    assert ids(listed(MemoryLog(largest), payloads=True)) == [each.id for each in largest]


def test_page_fits_small_publications_with_many_headers() -> None:
    crowded = [
        Publication(
            publisher="x" * 64,
            seq=2**63 - 1 - number,
            payload=bytes(512 * 1024) if number == 900 else b"",
            headers={f"{name:02}": "" for name in range(64)},
        ).with_id(TOPIC)
        for number in range(1000)
    ]
    assert ids(listed(MemoryLog(crowded), payloads=True)) == [each.id for each in crowded]


def test_unencodable_publications_are_omitted() -> None:
    good, bad = publications(2), Publication(publisher="no name", seq=0, payload=b"", id=bytes(32))
    archive = MemoryLog([good[0], bad, good[1]])
    for payloads in (False, True):
        assert ids(listed(archive, payloads=payloads)) == [each.id for each in good]


def test_publications_on_disk_are_listed(tmp_path: Path) -> None:
    stored = publications(1500, payload=bytes(1000))
    with PublicationStore.open(tmp_path) as store:
        archive = store.archive(TOPIC)
        for offset, publication in enumerate(stored):
            archive.write(offset, publication)
        store.commit()
        archive.discard(3)
        expected = [each.id for each in stored if each is not stored[3]]
        for payloads in (False, True):
            assert ids(listed(archive, payloads=payloads)) == expected


def test_one_answer_does_not_read_the_whole_disk(tmp_path: Path) -> None:
    with PublicationStore.open(tmp_path) as store:
        archive = store.archive(TOPIC)
        for offset, publication in enumerate(publications(20, payload=bytes(500_000))):
            archive.write(offset, publication)
        page = publication_page(archive, FetchPublications(1, 0, 20, payloads=False))
    assert page.next is not None
    assert len(page.publications) < 20
