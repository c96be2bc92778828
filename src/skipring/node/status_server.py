"""Server for requests of clients, monitors and members about the machines of a process.

Each response costs a bounded amount of work and fits into its frame. A request for digests needs
the whole index. After a backfill thousands of publications are not indexed yet: the node indexes
them in slices of about 10 ms, frees the event loop between two slices, and answers afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, TypeAlias

from skipring.core.events import IndexRequested, Received
from skipring.core.labels import Label
from skipring.core.limits import NUMBER_MAX, shown
from skipring.core.log_messages import NOT_A_MEMBER, FetchRecords, GetLogInfo, Refused
from skipring.core.log_pages import departed_of, hidden_of, record_page
from skipring.core.name_registry import Conflict
from skipring.core.peers import NodeId, TopicId
from skipring.core.retention.charter import Charter, CharterRow
from skipring.core.retention.floors import FloorStamps
from skipring.core.roster import Roster
from skipring.core.state import LivenessState
from skipring.core.subscriber import Subscriber
from skipring.core.summaries import EMPTY_ROOT
from skipring.core.supervisor import Supervisor
from skipring.core.topics import Dispatch, SubscriberTopics
from skipring.errors import MessageError
from skipring.net.transport import Transport
from skipring.net.work_budget import time_limit
from skipring.node.arrival_tap import ArrivalTap, delivery_page
from skipring.node.change_log import ChangeLog
from skipring.node.chaos_server import DAMAGES, NodeChaos
from skipring.node.group_commit import GroupCommit
from skipring.node.publisher import PublishProxy
from skipring.node.sender import Sender
from skipring.observability.clock import time_us
from skipring.storage.delivery_log import DeliveryLog
from skipring.storage.topic_log import SegmentLog
from skipring.wire.limits import (
    CONFLICTS_MAX,
    ENTRIES_MAX,
    SHORTCUTS_MAX,
    check_entry,
)
from skipring.wire.rpc import (
    BUSY,
    ChangePage,
    DatabasePage,
    FetchArrivals,
    FetchChanges,
    FetchDatabase,
    FetchDeliveries,
    GetNodeStatus,
    NodeHealth,
    NodeStatus,
    Publish,
    RuntimeMessage,
    TopicTerms,
    WireMessage,
)

# Limits: pages stay below the size of their frames, address hints included.
LABELS_BYTES_MAX: Final = 128 * 1024
WAITING_MAX: Final = 256  # Limit: requests that wait for the index of one topic.
# Guess: few publications arrive meanwhile. If the index is behind even so, the root is unknown.
SPARE_SLICES: Final = 8
INDEX_SLICE_IDS: Final = 1024  # Measured: a slice of 100,000 ids takes 0.9 ms of CPU, at most 6 ms.

IndexQuestion: TypeAlias = GetNodeStatus | GetLogInfo
PageQuestion: TypeAlias = FetchRecords | FetchChanges | FetchDeliveries | FetchArrivals
HealthOf: TypeAlias = Callable[[Subscriber], NodeHealth]


# -- a supervisor ----------------------------------------------------------------------------


def database_page(
    machine: Supervisor | None, question: FetchDatabase, conflicts: Iterable[Conflict] = ()
) -> DatabasePage:
    """Return a page of a topic's database and then its queue; empty for an unknown topic."""
    if machine is None:
        return DatabasePage(question.request, 0, 0, 0, None, (), ())
    roster = machine.roster
    queue = machine.queue
    total = len(roster.database()) if roster.is_loaded else len(roster)
    start = min(question.start, total + len(queue))
    entries = list(_within_bytes(_entries(roster, start)))
    after = start + len(entries)
    waiting: list[NodeId] = []
    if after >= total:
        waiting = list(islice(queue, after - total, after - total + ENTRIES_MAX - len(entries)))
        after += len(waiting)
    return DatabasePage(
        request=question.request,
        total=total,
        digest=roster.digest(),
        cursor=_believable_cursor(roster),
        next=after if after < total + len(queue) else None,
        entries=tuple(entry for entry in entries if _is_valid_entry(*entry)),
        queue=tuple(node for node in waiting if _is_valid_entry("", node)),
        conflicts=tuple(each for each in conflicts if each.name in roster)[:CONFLICTS_MAX],
    )


def _entries(roster: Roster, start: int) -> Iterator[tuple[str, NodeId | None]]:
    """Yield the entries of one page in the paper's form, without creating other entries."""
    if roster.is_loaded:
        yield from roster.database()[start : start + ENTRIES_MAX]
        return
    for index, node in enumerate(roster.nodes[start : start + ENTRIES_MAX], start):
        yield Label.nth(index).bits, node


def _within_bytes(
    entries: Iterable[tuple[str, NodeId | None]],
) -> Iterator[tuple[str, NodeId | None]]:
    """Yield the first entries, up to LABELS_BYTES_MAX characters, but at least one."""
    size = 0
    for label, node in entries:
        if size and size + len(label) > LABELS_BYTES_MAX:
            return
        size += len(label)
        yield label, node


def _is_valid_entry(label: str, node: NodeId | None) -> bool:
    """Return False for entries that only a damaged file contains; world files exclude them."""
    try:
        check_entry(label, node)
    except MessageError:
        return False
    return True


def _believable_cursor(roster: Roster) -> int:
    """Return the cursor of the round robin; modulo n if it is out of range (S6)."""
    if 0 <= roster.cursor <= NUMBER_MAX:
        return roster.cursor
    return roster.cursor % max(1, len(roster))


# -- a node ----------------------------------------------------------------------------------


def node_status(machine: Subscriber, request: int, health: NodeHealth | None = None) -> NodeStatus:
    """Return the variables of a subscriber; truncate collections that corruption made too long.

    While the index is behind, as during a backfill, the root is that of an empty trie: a status
    neither indexes nor hashes (``test_status_of_100_000_publications_is_indexed_in_slices``).
    """
    silence, heard = machine.silence, machine.digests
    replica = machine.replica
    return NodeStatus(
        request=request,
        member=machine.member,
        label=machine.label,
        left=machine.left,
        right=machine.right,
        ring=machine.ring,
        shortcuts=tuple(islice(machine.shortcuts.items(), SHORTCUTS_MAX)),
        silence={node: _clamped(silence[node]) for node in islice(silence, SHORTCUTS_MAX)},
        digests={node: heard[node] for node in islice(heard, SHORTCUTS_MAX)},
        count=replica.log.records,
        end=replica.log.end,
        root=EMPTY_ROOT if replica.is_behind else replica.indexed_trie.root(),
        health=health or NodeHealth(),
    )


def node_health(
    machine: Subscriber, links: Transport, durability: GroupCommit, quarantined: int
) -> NodeHealth:
    """Return the conditions of a node that the diagnosis of its ring uses."""
    neighbours, error = machine.ring_neighbours(), durability.error
    return NodeHealth(
        time=time_us(),
        silent={node: ticks for node, ticks in machine.unheard.items() if ticks > 0},
        unlinked=tuple(node for node in neighbours if not links.is_linked(node)),
        not_ready=incompleteness(machine) or "",
        ahead=machine.replica.own.ahead,
        quarantined=quarantined,
        disk_error=shown(str(error)) if error is not None else "",
        clones=links.clones,
    )


def topic_terms(machine: Subscriber, dropped: int, policy_delay_us: int) -> TopicTerms:
    """Return charter, floors and quarantine of a topic; memory may be corrupted."""
    retention, log = machine.replica.retention, machine.replica.log
    disk_bytes = log.disk_bytes if isinstance(log, SegmentLog) else 0
    if retention is None:
        return TopicTerms(low=log.low, disk_bytes=disk_bytes, policy_delay_us=policy_delay_us)
    stamps, clock = retention.floors.stamps, retention.clock
    floors = (stamps.age, stamps.full, stamps.tombstones)
    return TopicTerms(
        acting=_charter(retention.acting),
        newest=_charter(retention.newest_charter),
        floors=FloorStamps(*[min(max(each, 0), NUMBER_MAX) for each in floors]),
        dropped=dropped,
        low=log.low,
        disk_bytes=disk_bytes,
        future=len(retention.quarantine.early),
        returned=retention.quarantine.returned,
        stale=retention.is_stale,
        ahead_us=clock.deviation if clock.is_off else 0,
        policy_delay_us=policy_delay_us,
        confirmed=min(max(retention.last_confirmed, 0), NUMBER_MAX),
        charters=len(retention.charters),
    )


def _charter(row: CharterRow | None) -> Charter | None:
    return row[0] if row is not None else None


def incompleteness(machine: Subscriber) -> str | None:
    """Return why a member may lack publications that others have, or None."""
    if machine.replication.is_complete:
        return None
    if machine.replication.is_backfilling:
        return "the backfill is in progress"
    return "no neighbour has confirmed yet that this node has everything"


def _clamped(state: LivenessState) -> LivenessState:
    """Return the counters, clamped to the range of the wire; corrupt memory may exceed it."""
    ticks, threshold = (
        min(max(number, -NUMBER_MAX), NUMBER_MAX) for number in (state.ticks, state.threshold)
    )
    return LivenessState(ticks, threshold, state.pending)


# -- requests to a node ----------------------------------------------------------------------


class RequestServer:
    """Answers to requests about the machines and logs of one node."""

    def __init__(  # noqa: PLR0913  (collaborators)
        self,
        topics: SubscriberTopics,
        trace: DeliveryLog,
        changes: ChangeLog,
        arrivals: ArrivalTap,
        sender: Sender,
        *,
        dispatch: Dispatch,
        health_of: HealthOf,
        publish_proxy: PublishProxy,
        chaos: NodeChaos,
    ) -> None:
        self._topics = topics
        self._trace = trace
        self._changes = changes
        self._arrivals = arrivals
        self._sender = sender
        self._dispatch = dispatch
        self._health_of = health_of
        self._publish_proxy = publish_proxy
        self._chaos = chaos
        self._waiting: dict[TopicId, list[tuple[NodeId, IndexQuestion]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Cancel all waiting requests."""
        for task in self._tasks:
            task.cancel()

    def handle(self, sender: NodeId, topic: TopicId, message: RuntimeMessage) -> None:
        """Answer a request, now or later; ignore a response without a request."""
        match message:
            case Publish():
                self._publish_proxy.begin(sender, topic, message)
            case GetNodeStatus() | GetLogInfo():
                self.send_status(sender, topic, message)
            case FetchRecords() | FetchChanges() | FetchDeliveries() | FetchArrivals():
                self._sender.send_message(topic, sender, self._page(topic, message))
            case _ if isinstance(message, DAMAGES):
                self._sender.send_message(topic, sender, self._chaos.handle(topic, message))
            case _:
                pass

    def _page(self, topic: TopicId, question: PageQuestion) -> WireMessage:
        """Return a page; a scan stops at its time limit, and ``next`` is where to continue."""
        machine = self._topics.machine(topic)
        if machine is None:
            return Refused(question.request, NOT_A_MEMBER)
        replica = machine.replica
        match question:
            case FetchRecords():
                hidden = hidden_of(replica, question)
                return record_page(
                    replica.log, question, time_limit(), departed_of(replica), hidden
                )
            case FetchDeliveries():
                return delivery_page(self._trace, topic, replica.log, question, time_limit())
            case FetchArrivals():
                return self._arrivals.answer(topic, question)
            case FetchChanges(request=request):
                return ChangePage(request, self._changes.ticks, self._changes.entries(topic))

    def send_status(self, to: NodeId, topic: TopicId, question: IndexQuestion) -> None:
        """Send a status, at once if few publications are not indexed."""
        machine = self._topics.machine(topic)
        if machine is None or not _needs_index(question, machine):
            self._answer(to, topic, machine, question)
        elif topic in self._waiting:
            self._wait(to, topic, question)
        elif self._is_indexed(topic, machine):
            self._answer(to, topic, machine, question)
        else:
            self._waiting[topic] = [(to, question)]
            task = asyncio.get_running_loop().create_task(self._index(topic, machine))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _wait(self, sender: NodeId, topic: TopicId, question: IndexQuestion) -> None:
        waiting = self._waiting[topic]
        if len(waiting) < WAITING_MAX:
            waiting.append((sender, question))
        else:
            self._sender.send_message(topic, sender, Refused(question.request, BUSY))

    def _is_indexed(self, topic: TopicId, machine: Subscriber) -> bool:
        """Index one slice if something waits; return True if nothing is left."""
        if machine.replica.is_behind:
            self._dispatch(topic, IndexRequested(INDEX_SLICE_IDS))
        return not machine.replica.is_behind

    async def _index(self, topic: TopicId, machine: Subscriber) -> None:
        for _ in range(slices_of(machine.replica.count) + SPARE_SLICES):
            await asyncio.sleep(0)
            if self._topics.machine(topic) is not machine or self._is_indexed(topic, machine):
                break
        current = self._topics.machine(topic)
        for sender, question in self._waiting.pop(topic):
            if current is not None and _is_far_behind(question, current):
                self._sender.send_message(topic, sender, Refused(question.request, BUSY))
            else:
                self._answer(sender, topic, current, question)

    def _answer(
        self, to: NodeId, topic: TopicId, machine: Subscriber | None, question: IndexQuestion
    ) -> None:
        answer: WireMessage
        if isinstance(question, GetLogInfo):
            self._dispatch(topic, Received(question, to))
            return
        if machine is None:
            answer = Refused(question.request, NOT_A_MEMBER)
        else:
            answer = node_status(machine, question.request, self._health_of(machine))
        self._sender.send_message(topic, to, answer)


def slices_of(count: int) -> int:
    """Return an upper bound of the slices that index and then hash all publications.

    Buckets count as full when they are hashed, so hashing may take three times as many.
    """
    return 4 * (count // INDEX_SLICE_IDS + 1)


def _is_far_behind(question: IndexQuestion, machine: Subscriber) -> bool:
    """Return True if an answer would index too many publications at once, or be out of date."""
    replica = machine.replica
    if replica.is_behind and machine.replication.is_backfilling:
        return True
    return isinstance(question, GetLogInfo) and replica.has_index_backlog


def _needs_index(question: IndexQuestion, machine: Subscriber) -> bool:
    """Return True if the answer contains digests; a status during a backfill has none."""
    if isinstance(question, GetNodeStatus):
        return not machine.replication.is_backfilling
    return question.bits is not None
