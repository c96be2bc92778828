"""Server for status requests about the machines of a node or supervisor.

Each response costs a bounded amount of work and fits into its frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from msgspec.structs import replace

from skipring.core.labels import Label
from skipring.core.limits import NUMBER_MAX
from skipring.core.log import Log
from skipring.core.log_messages import NOT_A_MEMBER, Refused
from skipring.core.name_registry import Conflict
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import Publication
from skipring.core.roster import Roster
from skipring.core.state import LivenessState
from skipring.core.subscriber import Subscriber
from skipring.core.summaries import EMPTY_ROOT
from skipring.core.supervisor import Supervisor
from skipring.errors import MessageError
from skipring.net.work_budget import Spent, never_spent
from skipring.node.change_log import ChangeLog
from skipring.wire.limits import (
    CONFLICTS_MAX,
    ENTRIES_MAX,
    LISTED_MAX,
    SHORTCUTS_MAX,
    check_entry,
    check_listed,
)
from skipring.wire.rpc import (
    ChangePage,
    DatabasePage,
    FetchChanges,
    FetchDatabase,
    FetchPublications,
    NodeHealth,
    NodeStatus,
    PublicationPage,
)

# Limits: pages stay below the size of their frames, address hints included.
LABELS_BYTES_MAX: Final = 128 * 1024
PUBLICATIONS_BYTES_MAX: Final = 128 * 1024  # and one more publication, of any size
READ_BYTES_MAX: Final = 4 << 20  # Guess: bytes to read for one response.


Question = FetchPublications | FetchChanges


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
    """Yield the entries of one page in the paper's form; only these are created."""
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
    """Return False for entries that only a damaged file contains; a world file may not."""
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


def handle_status_request(
    topic: TopicId,
    machine: Subscriber | None,
    journals: ChangeLog,
    question: Question,
    is_spent: Spent = never_spent,
) -> PublicationPage | ChangePage | Refused:
    """Return the response to a status request; a node outside the topic refuses."""
    if machine is None:
        return Refused(question.request, NOT_A_MEMBER)
    match question:
        case FetchPublications():
            return publication_page(machine.replica.archive, question, is_spent)
        case FetchChanges(request=request):
            return ChangePage(request, journals.ticks, journals.entries(topic))


def node_status(machine: Subscriber, request: int, health: NodeHealth | None = None) -> NodeStatus:
    """Return the variables of a subscriber; collections (corrupt memory) are cut to the limits.

    During a backfill the index is behind, so the root is that of an empty trie.
    """
    silence, heard = machine.silence, machine.digests
    is_known = not machine.replica.is_behind or not machine.replication.is_backfilling
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
        count=machine.count,
        end=machine.replica.archive.end,
        root=machine.index().root() if is_known else EMPTY_ROOT,
        health=health or NodeHealth(),
    )


def _clamped(state: LivenessState) -> LivenessState:
    """Return the counters, limited to the range of the wire; corrupt ones may have any value."""
    ticks, threshold = (
        min(max(number, -NUMBER_MAX), NUMBER_MAX) for number in (state.ticks, state.threshold)
    )
    return LivenessState(ticks, threshold, state.pending)


def publication_page(
    archive: Log, question: FetchPublications, is_spent: Spent = never_spent
) -> PublicationPage:
    """Return the publications from an offset on, limited in offsets and in bytes.

    A scan ends early once its time is spent; ``next`` of the page is the offset to continue from.
    """
    end = min(question.end, archive.end)
    stop = min(question.start + LISTED_MAX, end)
    chosen: list[Publication] = []
    size = read = 0
    for offset, stored in archive.read_range(question.start, stop):
        shown = stored if question.payloads else _without_content(stored)
        if _can_be_listed(shown):
            chosen.append(shown)
        size += shown.size_bytes
        read += stored.size_bytes
        if size > PUBLICATIONS_BYTES_MAX or read > READ_BYTES_MAX or is_spent():
            stop = offset + 1
            break
    return PublicationPage(question.request, stop if stop < end else None, tuple(chosen))


def _without_content(publication: Publication) -> Publication:
    return replace(publication, payload=None, key=None, headers={})


def _can_be_listed(publication: Publication) -> bool:
    """Return False for a publication that no message may carry; the page omits it."""
    try:
        check_listed(publication)
    except MessageError:
        return False
    return True
