"""Inspector of a live topic: reads the database, then every referenced node.

It also finds a ring that the supervisor does not know if one reference leads there. The result is a
snapshot, the same value that a simulated world returns, without messages in flight. The nodes
answer one after the other while the ring works, so the snapshot may show part of a change.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from functools import partial
from time import time_ns
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from skipring.core.batches import RecordBatch
from skipring.core.log import MemoryLog
from skipring.core.log_messages import FetchLog, LogPage, Refused
from skipring.core.name_registry import Conflict
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.core.prefix import ALL, Prefix
from skipring.core.state import SubscriberState, SupervisorState
from skipring.core.summaries import EMPTY_ROOT
from skipring.core.trie import PublicationTrie
from skipring.errors import SkipringError, UnreachableError
from skipring.rpc.client import ATTEMPTS, RpcClient, open_client
from skipring.wire.rpc import (
    Address,
    ChangePage,
    DatabasePage,
    FetchChanges,
    FetchDatabase,
    GetNodeStatus,
    NodeStatus,
)
from skipring.world.snapshot import Snapshot

if TYPE_CHECKING:  # reads certificates, which few processes need
    from skipring.security.credentials import Credentials

# Guesses: a process on a busy machine answers within this time, and an operator waits no longer.
SUPERVISOR_S: Final = 3.0
NODE_S: Final = 2.5
READINGS: Final = 5  # attempts, if the database changes during a read; then the last is used
AT_ONCE: Final = 256  # nodes that are asked concurrently
LISTINGS_AT_ONCE: Final = 8
# Chosen limits: the result fits into memory, whatever the peers send.
NODES_MAX: Final = 100_000
LISTED_BYTES_MAX: Final = 1 << 30


class TopicContents(Enum):
    """Publications that an inspection collects."""

    NOTHING = "how many there are, and the root"
    DIFFERENCES = "ids, if the roots differ"
    IDS = "ids; once for all nodes that have the same root"
    PAYLOADS = "everything, from each node"


class Inspection(Struct, frozen=True, kw_only=True):
    """Result of the inspection of a topic."""

    snapshot: Snapshot
    statuses: dict[NodeId, NodeStatus]  # statuses of the nodes in the topic
    clock_offsets_us: dict[NodeId, int] = {}  # by member, relative to this clock
    clones: tuple[Conflict, ...] = ()  # names of members that two live processes have

    @property
    def is_known(self) -> bool:
        """Return True if the topic has nodes, database entries or a queue."""
        supervisor = self.snapshot.supervisor
        return bool(self.statuses or supervisor.database or supervisor.queue)


@asynccontextmanager
async def open_inspector(
    supervisors: Sequence[Address],
    topic: TopicId,
    credentials: Credentials | None = None,
    report: Callable[[str], None] | None = None,
    *,
    patience_s: float = NODE_S,
) -> AsyncIterator[Inspector]:
    """Open an inspector of a topic; raise InputError for an invalid address or topic.

    ``report`` receives the reason while a supervisor does not answer. A node that does not answer
    within ``patience_s`` counts as unreachable.
    """
    async with open_client(supervisors, topic, credentials=credentials, report=report) as client:
        yield Inspector(client, topic, patience_s=patience_s)


class _Stored(Struct, frozen=True, gc=False):
    """Batches of a node, opaque without contents, and hashes that do not follow from them."""

    publications: tuple[RecordBatch, ...] = ()
    hashes: dict[Prefix, bytes] = {}


NOTHING_STORED: Final = _Stored()


class Inspector:
    """Client that inspects one topic."""

    def __init__(
        self,
        client: RpcClient,
        topic: TopicId,
        *,
        patience_s: float = NODE_S,
        supervisor_patience_s: float = SUPERVISOR_S,
    ) -> None:
        self._patience_s = patience_s  # how long a node may take to answer
        self._supervisor_patience_s = supervisor_patience_s
        self.is_refused = False  # True once the supervisor has refused to serve the topic
        self._client = client
        self._topic = topic
        self._seen: dict[NodeId, NodeStatus | Refused | None] = {}  # None: has not answered
        self._unaddressed: set[NodeId] = set()  # nodes with an unknown address
        self._listed_bytes = 0
        self._clock_offsets_us: dict[NodeId, int] = {}
        self._clones: dict[NodeId, Conflict] = {}

    async def inspect(
        self, contents: TopicContents, before: Inspection | None = None
    ) -> Inspection:
        """Inspect the supervisor, then every node; raise UnreachableError without a supervisor.

        Nodes of the previous inspection are asked too: the supervisor may have lost its database.
        """
        nodes = before.statuses if before is not None else ()
        return await self._inspect(await self._database(), nodes, contents)

    async def inspect_again(self, before: Inspection, contents: TopicContents) -> Inspection:
        """Inspect the nodes of the previous inspection while no supervisor answers."""
        return await self._inspect(before.snapshot.supervisor, before.statuses, contents)

    async def _inspect(
        self, supervisor: SupervisorState, nodes: Iterable[NodeId], contents: TopicContents
    ) -> Inspection:
        self._seen, self._unaddressed, self._listed_bytes = {}, set(), 0
        self._clock_offsets_us = {}
        await self._visit_all(supervisor, nodes)
        statuses = {n: s for n, s in sorted(self._seen.items()) if isinstance(s, NodeStatus)}
        stored = await self._stored(statuses, contents)
        statuses = {node: status for node, status in statuses.items() if node in stored}
        subscribers = {
            node: ring_state(status, stored[node]) for node, status in statuses.items()
        } | {
            # A live node that is not in the topic does not want to be a member.
            node: SubscriberState(member=False)
            for node, answer in self._seen.items()
            if isinstance(answer, Refused)
        }
        return Inspection(
            snapshot=Snapshot(
                topic=self._topic,
                supervisor=supervisor,
                subscribers=dict(sorted(subscribers.items())),
                crashed=tuple(sorted(self._seen.keys() - subscribers.keys())),
            ),
            statuses=statuses,
            clock_offsets_us={
                node: self._clock_offsets_us[node]
                for node, status in statuses.items()
                if status.member and node in self._clock_offsets_us
            },
            clones=tuple(self._clones[name] for name in sorted(self._clones)),
        )

    async def journal(self, node: NodeId) -> ChangePage | None:
        """Return recent changes of a node; None if it does not answer or is not in the topic."""
        answer = await self._client.request(
            self._topic, node, FetchChanges, ChangePage, self._patience_s
        )
        return answer if isinstance(answer, ChangePage) else None

    # -- the supervisor ------------------------------------------------------------------------

    async def _database(self) -> SupervisorState:
        for last in (READINGS - 1) * [False] + [True]:
            pages = await self._pages(is_last=last)
            if pages is not None:
                break
        assert pages is not None, "the last read is used, even if the database changed during it"
        self._clones = {each.name: each for page in pages for each in page.conflicts}
        return SupervisorState(
            database=tuple(entry for page in pages for entry in page.entries),
            next=pages[-1].cursor,
            queue=tuple(node for page in pages for node in page.queue),
        )

    async def _pages(self, *, is_last: bool) -> list[DatabasePage] | None:
        """Return all pages of the database; None if it changed during the read."""
        pages = [await self._page(0)]
        while (start := pages[-1].next) is not None:
            page = await self._page(start)
            before = pages[-1]
            has_changed = (page.total, page.digest) != (before.total, before.digest)
            if has_changed and not is_last:
                return None
            if start > NODES_MAX or (page.next is not None and page.next <= start):
                raise SkipringError(
                    f"the supervisor's database has more than {NODES_MAX} entries, or no end; "
                    "is it a supervisor of another version?"
                )
            pages.append(page)
        return pages

    async def _page(self, start: int) -> DatabasePage:
        question = partial(FetchDatabase, start=start)
        patience_s = self._supervisor_patience_s
        page = await self._client.request(
            self._topic, SUPERVISOR, question, DatabasePage, patience_s, ATTEMPTS
        )
        if page is None:
            raise UnreachableError(self._client.no_supervisor_of(self._topic))
        if isinstance(page, Refused):
            self.is_refused = True
            address = self._client.supervisor_of(self._topic)
            raise UnreachableError(
                f"the supervisor at {address} does not serve {self._topic!r}; allow the topic "
                "where it is started, or choose another topic"
            )
        return page

    # -- nodes ---------------------------------------------------------------------------------

    async def _visit_all(self, supervisor: SupervisorState, nodes: Iterable[NodeId]) -> None:
        """Ask all recorded, queued and known nodes, the nodes they refer to, and so on."""
        waiting = {node for _, node in supervisor.database if node is not None}
        waiting.update(supervisor.queue, nodes)
        slots = asyncio.Semaphore(AT_ONCE)
        while waiting:
            async with asyncio.TaskGroup() as group:
                for node in sorted(waiting):
                    self._start_visit(node, group, slots)
            # A later answer may contain the address of a node that was skipped.
            waiting = {node for node in self._unaddressed if self._client.book.find(node)}
            self._unaddressed -= waiting
            for node in waiting:
                del self._seen[node]
        if len(self._seen) >= NODES_MAX:
            raise SkipringError(f"more than {NODES_MAX} nodes are referred to in {self._topic!r}")

    def _start_visit(
        self, node: NodeId, group: asyncio.TaskGroup, slots: asyncio.Semaphore
    ) -> None:
        if node != SUPERVISOR and node not in self._seen and len(self._seen) < NODES_MAX:
            self._seen[node] = None
            group.create_task(self._visit(node, group, slots))

    async def _visit(
        self, node: NodeId, group: asyncio.TaskGroup, slots: asyncio.Semaphore
    ) -> None:
        if self._client.book.find(node) is None:
            self._unaddressed.add(node)
            return
        async with slots:
            answer = self._seen[node] = await self._client.request(
                self._topic, node, GetNodeStatus, NodeStatus, self._patience_s, ATTEMPTS
            )
        if isinstance(answer, NodeStatus):
            self._clock_offsets_us[node] = answer.health.time - time_ns() // 1000
            for other in _referred_to_by(answer):
                self._start_visit(other, group, slots)

    # -- publications --------------------------------------------------------------------------

    async def _stored(
        self, statuses: dict[NodeId, NodeStatus], contents: TopicContents
    ) -> dict[NodeId, _Stored]:
        """Return the requested publications of the nodes; omit nodes that stop answering."""
        roots = {status.root for status in statuses.values() if status.member}
        is_enough = contents is TopicContents.NOTHING or (
            contents is TopicContents.DIFFERENCES and len(roots) <= 1
        )
        if is_enough:
            return dict.fromkeys(statuses, NOTHING_STORED)
        groups = _groups(statuses, is_apart=contents is TopicContents.PAYLOADS)
        slots = asyncio.Semaphore(LISTINGS_AT_ONCE)
        listings = await asyncio.gather(
            *(self._listing(group, statuses, contents, slots) for group in groups)
        )
        if self._listed_bytes > LISTED_BYTES_MAX:
            raise SkipringError(
                f"the publications of {self._topic!r} are too many to be collected: together they "
                f"have more than {LISTED_BYTES_MAX >> 30} GiB"
            )
        return {
            node: listing
            for group, listing in zip(groups, listings, strict=True)
            if listing is not None
            for node in group
        }

    async def _listing(
        self,
        group: list[NodeId],
        statuses: dict[NodeId, NodeStatus],
        contents: TopicContents,
        slots: asyncio.Semaphore,
    ) -> _Stored | None:
        """Return the publications of the first node of a group that answers; None if none does."""
        async with slots:
            for node in group:
                listed = await self._pages_of(node, statuses[node].end, contents)
                if listed is not None:
                    return _Stored(listed, _wrong_hashes(statuses[node].root, listed))
        return None

    async def _pages_of(
        self, node: NodeId, end: int, contents: TopicContents
    ) -> tuple[RecordBatch, ...] | None:
        """Return all stored batches of a node below an offset; None if it stops answering."""
        listed: list[RecordBatch] = []
        start: int | None = 0
        has_contents = contents is TopicContents.PAYLOADS
        while start is not None and start < end:
            question = fetch_log(start, end, contents=has_contents)
            page = await self._client.request(
                self._topic, node, question, LogPage, self._patience_s, ATTEMPTS
            )
            is_too_much = self._listed_bytes > LISTED_BYTES_MAX
            if not isinstance(page, LogPage) or is_too_much:
                return None
            if page.next is not None and page.next <= start:
                return None  # it would never end
            listed += page.batches
            self._listed_bytes += sum(each.size_bytes for each in page.batches)
            start = page.next
        return tuple(listed)


def fetch_log(start: int, end: int, *, contents: bool) -> Callable[[int], FetchLog]:
    """Return a request for the batches of a log between two offsets, in any store."""
    return partial(
        FetchLog, store="", epoch=0, start=start, end=end, bits=0, prefix=0, contents=contents
    )


def _referred_to_by(status: NodeStatus) -> Iterator[NodeId]:
    """Yield every node that a status names."""
    for peer in (status.left, status.right, status.ring):
        if peer is not None:
            yield peer.node
    for _, holder in status.shortcuts:
        if holder is not None:
            yield holder
    yield from status.silence
    yield from status.digests


def _groups(statuses: dict[NodeId, NodeStatus], *, is_apart: bool) -> list[list[NodeId]]:
    """Group nodes of equal root and count, hence equal ids; or return one group per node."""
    if is_apart:
        return [[node] for node in statuses]
    groups: dict[tuple[bytes, int], list[NodeId]] = {}
    for node, status in statuses.items():
        groups.setdefault((status.root, status.count), []).append(node)
    return list(groups.values())


def ring_state(status: NodeStatus, stored: _Stored = NOTHING_STORED) -> SubscriberState:
    """Return the variables of a subscriber as a value."""
    state = status.state(member=status.member)
    return replace(state, publications=stored.publications, hashes=stored.hashes)


def _wrong_hashes(root: bytes, batches: tuple[RecordBatch, ...]) -> dict[Prefix, bytes]:
    """Return the root that a node reports if it does not follow from its batches.

    A node reports the root of an empty trie during a backfill.
    """
    trie = PublicationTrie()
    trie.add_many(MemoryLog(batches).entries())
    return {} if root in (trie.root(), EMPTY_ROOT) else {ALL: root}
