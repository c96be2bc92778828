"""Types of message fields: the values that each may have, and their description."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sized
from typing import Any, Final, TypeAlias

from msgspec import Struct

from skipring.core.labels import CIRCLE, Label
from skipring.core.limits import NUMBER_MAX
from skipring.core.messages import HOPS_MAX, SESSION_MAX
from skipring.core.name_registry import Conflict
from skipring.core.peers import NodeId, Peer
from skipring.core.publications import ID_BYTES, Publication
from skipring.core.state import LivenessState
from skipring.core.summaries import DIGEST_BYTES
from skipring.core.trie import OFFSET_MAX
from skipring.errors import MessageError
from skipring.wire.limits import (
    ARRIVALS_MAX,
    ASKED_MAX,
    CHAIN_BYTES,
    CLONES_MAX,
    CONFLICTS_MAX,
    CONTROL_CHARACTER,
    DAMAGED_MAX,
    ENTRIES_MAX,
    FORGED_BYTES_MAX,
    INCARNATION_MAX,
    JOURNAL_CHARACTERS_MAX,
    JOURNAL_MAX,
    LABEL_CHARACTERS_MAX,
    LISTED_MAX,
    LOCATED_MAX,
    REASON_CHARACTERS_MAX,
    REMAINING_MAX,
    SHORTCUTS_MAX,
    STORE_CHARACTERS_MAX,
    STORED_BYTES_MAX,
    STORED_MAX,
    SURVEY_BITS_MAX,
    TOPICS_MAX,
    check_address,
    check_id,
    check_listed,
    check_nameless,
    check_node,
    check_publications,
    check_text,
    check_topic,
    shown,
)
from skipring.wire.monitor_rpc import Arrival, TopicStatus
from skipring.wire.rpc import Address, ChangeEntry, NodeHealth

Check: TypeAlias = Callable[[Any], None]
Naming: TypeAlias = Callable[[Any], tuple[NodeId, ...]]

_STORE: Final = re.compile(rf"[0-9a-f]{{0,{STORE_CHARACTERS_MAX}}}")


def _check_peer(peer: Peer) -> None:
    check_node(peer.node)


def _check_members(members: dict[NodeId, Address]) -> None:
    if len(members) > LOCATED_MAX:
        raise MessageError(f"{len(members)} members, and {LOCATED_MAX} is the limit")
    for node, address in members.items():
        check_node(node)
        check_address(address)


def _check_count(values: Sized, limit: int, what: str) -> None:
    if len(values) > limit:
        raise MessageError(f"{len(values)} {what}, and {limit} is the limit")


def _check_all_listed(publications: tuple[Publication, ...]) -> None:
    _check_count(publications, LISTED_MAX, "publications")
    for publication in publications:
        check_listed(publication)


def check_entry(label: str, node: NodeId | None) -> None:
    """An entry of a database has any string of 0 and 1, and perhaps a node."""
    if len(label) > LABEL_CHARACTERS_MAX or label.strip("01"):
        raise MessageError(f"a label is a string of 0 and 1, not {shown(label)}")
    if node is not None:
        check_node(node)


def _check_entries(entries: tuple[tuple[str, NodeId | None], ...]) -> None:
    _check_count(entries, ENTRIES_MAX, "entries")
    for label, node in entries:
        check_entry(label, node)


def _check_database(entries: tuple[tuple[str, NodeId | None], ...]) -> None:
    _check_count(entries, DAMAGED_MAX, "entries")
    for label, node in entries:
        check_entry(label, node)


def _check_names(nodes: tuple[NodeId, ...]) -> None:
    _check_count(nodes, DAMAGED_MAX, "nodes")
    for node in nodes:
        check_node(node)


def _check_forged(frames: bytes) -> None:
    _check_count(frames, FORGED_BYTES_MAX, "bytes")


def _check_remaining(nodes: tuple[NodeId, ...]) -> None:
    _check_count(nodes, REMAINING_MAX, "nodes that remain")
    for node in nodes:
        check_node(node)


def _check_waiting(nodes: tuple[NodeId, ...]) -> None:
    _check_count(nodes, ENTRIES_MAX, "nodes that wait")
    for node in nodes:
        check_node(node)


def _check_shortcuts(shortcuts: tuple[tuple[Label, NodeId | None], ...]) -> None:
    _check_count(shortcuts, SHORTCUTS_MAX, "shortcuts")
    for _, node in shortcuts:
        if node is not None:
            check_node(node)


def _check_silence(silence: dict[NodeId, LivenessState]) -> None:
    _check_count(silence, SHORTCUTS_MAX, "watches")
    for node, state in silence.items():
        check_node(node)
        if max(abs(state.ticks), abs(state.threshold)) > NUMBER_MAX:
            raise MessageError("a watch that counts beyond 2^63-1")


def _check_digests(digests: dict[NodeId, int]) -> None:
    _check_count(digests, SHORTCUTS_MAX, "sums")
    for node, total in digests.items():
        check_node(node)
        if not 0 <= total < CIRCLE:
            raise MessageError("a sum that is not from 0 to 2^64-1")


def _check_root(root: bytes) -> None:
    if len(root) != DIGEST_BYTES:
        raise MessageError(f"a root of {len(root)} bytes, and it has {DIGEST_BYTES}")


def _check_journal(entries: tuple[ChangeEntry, ...]) -> None:
    _check_count(entries, JOURNAL_MAX, "changes")
    for entry in entries:
        if not (0 <= entry.tick <= NUMBER_MAX and 0 <= entry.time <= NUMBER_MAX):
            raise MessageError("a tick or time that is not from 0 to 2^63-1")
        if entry.sender is not None:
            check_node(entry.sender)
        for text in (entry.cause, entry.field, entry.before, entry.after, entry.why):
            if len(text) > JOURNAL_CHARACTERS_MAX or CONTROL_CHARACTER.search(text):
                raise MessageError(f"a journal with the text {shown(text)}")
            check_text(text)


def _check_topics(topics: tuple[TopicStatus, ...]) -> None:
    _check_count(topics, TOPICS_MAX, "topics")
    for each in topics:
        check_topic(each.topic)
        if not (0 <= each.members <= NUMBER_MAX and 0 <= each.requests <= NUMBER_MAX):
            raise MessageError("members or requests that are not from 0 to 2^63-1")


def _check_arrivals(arrivals: tuple[Arrival, ...]) -> None:
    _check_count(arrivals, ARRIVALS_MAX, "arrivals")
    for each in arrivals:
        check_node(each.publisher)
        if each.sender is not None:
            check_node(each.sender)
        check_hops(each.hops)
        numbers = (each.time, each.origin, each.count, each.fresh, each.seq, each.published)
        if min(numbers) < 0 or max(numbers) > NUMBER_MAX:
            raise MessageError("an arrival with a number that is not from 0 to 2^63-1")


def _check_conflicts(conflicts: tuple[Conflict, ...]) -> None:
    _check_count(conflicts, CONFLICTS_MAX, "conflicts")
    for each in conflicts:
        check_node(each.name)
        for process in (each.holder, each.refused):
            if not 0 <= process.incarnation <= INCARNATION_MAX:
                raise MessageError("an incarnation that is not from 0 to 2^40-1")
            check_address(process.address)


def _check_store(store: str) -> None:
    if not _STORE.fullmatch(store):
        raise MessageError(f"a store is named by hexadecimal digits, not {shown(store)}")


def _check_survey(digests: tuple[bytes, ...]) -> None:
    _check_count(digests, 1 << SURVEY_BITS_MAX, "digests")
    if any(len(digest) not in (0, DIGEST_BYTES) for digest in digests):
        raise MessageError(f"a digest that has neither {DIGEST_BYTES} bytes nor none")


def _check_chain(chain: bytes) -> None:
    if len(chain) not in (0, CHAIN_BYTES):
        raise MessageError(f"a chain value that has neither {CHAIN_BYTES} bytes nor none")


def _check_numbers(last: int) -> Check:
    def check(numbers: tuple[int, ...]) -> None:
        _check_count(numbers, STORED_MAX, "numbers")
        if numbers and not (min(numbers) >= 0 and max(numbers) <= last):
            raise MessageError(f"a number that is not from 0 to {last}")

    return check


def _check_bytes(limit: int) -> Check:
    return lambda data: _check_count(data, limit, "bytes")


def _check_reason(reason: str) -> None:
    if len(reason) > REASON_CHARACTERS_MAX:
        raise MessageError(f"a reason of {len(reason)} characters")
    if CONTROL_CHARACTER.search(reason):
        raise MessageError(f"a reason with control characters: {shown(reason)}")
    check_text(reason)


def _check_health(health: NodeHealth) -> None:
    for nodes in (health.silent, health.unlinked):
        _check_count(nodes, SHORTCUTS_MAX, "ring neighbours")
        for node in nodes:
            check_node(node)
    for number in (health.time, health.ahead, health.quarantined, *health.silent.values()):
        if not 0 <= number <= NUMBER_MAX:
            raise MessageError(f"{number} is not from 0 to 2^63-1")
    _check_reason(health.not_ready)
    _check_reason(health.disk_error)
    _check_count(health.clones, CLONES_MAX, "clones")
    for address in health.clones:
        check_address(address)


class FieldKind(Struct, frozen=True):
    """What a field holds: how to say it, how to check it, which nodes it names as peers.

    Without a check, all that there is to be checked the type does.
    """

    words: str
    check: Check | None = None
    nodes: Naming | None = None

    def or_none(self) -> FieldKind:
        """The same, or nothing."""
        check, nodes = self.check, self.nodes
        return FieldKind(
            f"{self.words} or nil",
            check and (lambda value: None if value is None else check(value)),
            nodes and (lambda value: () if value is None else nodes(value)),
        )


def check_hops(hops: int) -> None:
    """Hops are counted up to 255."""
    if not 0 <= hops <= HOPS_MAX:
        raise MessageError(f"{hops} hops, and they are counted from 0 to {HOPS_MAX}")


def _number(words: str) -> FieldKind:
    """Return the kind of a number; its type in the message has the bounds."""
    return FieldKind(words)


def _some(nodes: Iterable[NodeId | None]) -> tuple[NodeId, ...]:
    return tuple(node for node in nodes if node is not None)


NODE: Final = FieldKind("node", check_node, lambda node: (node,))
PEER: Final = FieldKind("[[position], node]", _check_peer, lambda peer: (peer.node,))
LABEL: Final = FieldKind("[position]")
LINK: Final = FieldKind('"LIN" or "CYC"')
FLAG: Final = FieldKind("bool")
DIGEST: Final = _number("0 to 2^64-1")
NUMBER: Final = _number("0 to 2^63-1")
SESSION: Final = _number(f"0 to {SESSION_MAX}")
HOPS: Final = _number(f"0 to {HOPS_MAX}")
OFFSET: Final = _number("0 to 2^40-1")
COUNT: Final = _number(f"1 to {LOCATED_MAX}")
INCARNATION: Final = _number("0 to 2^40-1")
ADDRESS: Final = FieldKind("address", check_address)
CONFLICTS: Final = FieldKind("maps of name, holder and refused", _check_conflicts)
CLAIMS: Final = FieldKind("claims")
TRIE_DIGEST: Final = FieldKind("16 bytes")
SHORT_IDS: Final = FieldKind("8 bytes each")
HOPS_OF_EACH: Final = FieldKind("1 byte each")
ID: Final = FieldKind(f"{ID_BYTES} bytes", check_id)
PUBLICATION: Final = FieldKind("publication", check_nameless)
PUBLICATIONS: Final = FieldKind("publications", check_publications)
MEMBERS: Final = FieldKind("map of node to address", _check_members)
REASON: Final = FieldKind("text", _check_reason)
ENTRIES: Final = FieldKind(
    "[bits, node or nil] each",
    _check_entries,
    lambda entries: _some(node for _, node in entries),
)
WAITING: Final = FieldKind("nodes", _check_waiting, lambda nodes: nodes)
REMAINING: Final = FieldKind("nodes", _check_remaining, lambda nodes: nodes)
SHORTCUTS: Final = FieldKind(
    "[[position], node or nil] each",
    _check_shortcuts,
    lambda shortcuts: _some(node for _, node in shortcuts),
)
SILENCE: Final = FieldKind("map of node to [ticks, threshold, pending]", _check_silence, tuple)
DIGESTS: Final = FieldKind("map of node to 0 to 2^64-1", _check_digests, tuple)
ROOT: Final = FieldKind("16 bytes", _check_root)
HEALTH: Final = FieldKind("condition of the process", _check_health)
LISTED: Final = FieldKind("publications, with ids", _check_all_listed)
JOURNAL: Final = FieldKind("changes", _check_journal)
TOPICS: Final = FieldKind("[topic, members, requests] each", _check_topics)
ARRIVALS: Final = FieldKind("arrivals", _check_arrivals)
DATABASE: Final = FieldKind(ENTRIES.words, _check_database, ENTRIES.nodes)
NAMES: Final = FieldKind("nodes", _check_names)
FORGED: Final = FieldKind("bytes", _check_forged)
BITS: Final = _number(f"0 to {SURVEY_BITS_MAX}")
PREFIX: Final = _number(f"0 to {(1 << SURVEY_BITS_MAX) - 1}")
STORE: Final = FieldKind("hexadecimal digits, or none", _check_store)
SURVEY: Final = FieldKind("16 bytes or none, each", _check_survey)
CHAIN: Final = FieldKind(f"{CHAIN_BYTES} bytes or none", _check_chain)
OFFSETS: Final = FieldKind("0 to 2^40-1, each", _check_numbers(OFFSET_MAX))
TIMES: Final = FieldKind("0 to 2^63-1, each", _check_numbers(NUMBER_MAX))
BYTES_OF_EACH: Final = FieldKind("1 byte each", _check_bytes(STORED_MAX))
IDS: Final = FieldKind("32 bytes each", _check_bytes(ID_BYTES * STORED_MAX))
ASKED_IDS: Final = FieldKind("32 bytes each", _check_bytes(ID_BYTES * ASKED_MAX))
STORED: Final = FieldKind("publications as bytes", _check_bytes(STORED_BYTES_MAX))
