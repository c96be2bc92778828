"""What the values in a message may be: one small check each, and the words that describe it.

The types are checked where bytes are read; here it is about sizes, ranges and names. A check
returns nothing or raises a MessageError of one sentence, which stays short whatever came.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sized
from functools import lru_cache
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from skipring.core.labels import CIRCLE, Label
from skipring.core.messages import HOPS_MAX
from skipring.core.peers import NodeId, Peer, TopicId
from skipring.core.publications import ID_BYTES, Publication
from skipring.core.state import SilenceState
from skipring.core.trie import DIGEST_BYTES, OFFSET_BYTES
from skipring.errors import MessageError
from skipring.wire.runtime_messages import Address, JournalEntry
from skipring.wire.watching import Arrival, TopicStatus

Check: TypeAlias = Callable[[Any], None]
Naming: TypeAlias = Callable[[Any], tuple[NodeId, ...]]

# All are limits of ours; the paper has none.
TOPIC_BYTES_MAX: Final = 255
PAYLOAD_BYTES_MAX: Final = 512 * 1024
KEY_BYTES_MAX: Final = 1024
HEADERS_MAX: Final = 64
HEADERS_BYTES_MAX: Final = 8 * 1024  # names and values together
NUMBER_MAX: Final = (1 << 63) - 1  # what SQLite and Spark can hold
SESSION_MAX: Final = (1 << 16) - 1
OFFSET_MAX: Final = (1 << 8 * OFFSET_BYTES) - 1
LOCATED_MAX: Final = 32  # members in one answer: with the longest addresses they fit in a frame
PUBLICATIONS_MAX: Final = 8192  # twice what a chunk (T14) can hold of the smallest
REASON_CHARACTERS_MAX: Final = 500
ENTRIES_MAX: Final = 256  # of a database, or of those who wait, in one page
LABEL_CHARACTERS_MAX: Final = 4096  # in a database, where also a corrupted label has an end
SHORTCUTS_MAX: Final = 128  # two for each of 64 levels; as many sums (R14) and watches (R9)
LISTED_MAX: Final = 1024  # publications in one page
JOURNAL_MAX: Final = 128
TOPICS_MAX: Final = 256  # of a supervisor, in one page
ARRIVALS_MAX: Final = 512  # in one page
SURVEY_BITS_MAX: Final = 8  # so a survey has 256 digests at most
STORED_MAX: Final = 16_384  # publications, ids or deliveries in one page
STORED_BYTES_MAX: Final = 960 * 1024  # of contents in one page
STORE_CHARACTERS_MAX: Final = 64
JOURNAL_CHARACTERS_MAX: Final = 200  # of each text in an entry
# Of what is damaged on purpose: twice as many as a supervisor has connections.
DAMAGED_MAX: Final = 8192
FORGED_BYTES_MAX: Final = 512 * 1024
SHOWN_CHARACTERS_MAX: Final = 40  # Our guess: enough to recognise a value in a sentence.

_NODE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ADDRESS: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):([0-9]{1,5})")
_STORE: Final = re.compile(rf"[0-9a-f]{{0,{STORE_CHARACTERS_MAX}}}")
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PORT_MAX: Final = (1 << 16) - 1


def shown(text: str) -> str:
    """A text from outside in few printable characters, on one line."""
    short = ascii(text[:SHOWN_CHARACTERS_MAX])
    return short if len(text) <= SHOWN_CHARACTERS_MAX else short + "..."


# -- names -----------------------------------------------------------------------------------


@lru_cache(maxsize=1024)  # the same few stand in every frame
def check_topic(topic: TopicId) -> None:
    """A topic has 1 to 255 bytes of UTF-8 without control characters."""
    size = len(topic.encode(errors="replace"))
    if not 1 <= size <= TOPIC_BYTES_MAX:
        raise MessageError(f"a topic has 1 to {TOPIC_BYTES_MAX} bytes, this one has {size}")
    if _CONTROL_CHARACTER.search(topic):
        raise MessageError(f"a topic has no control characters: {shown(topic)}")
    _check_text(topic)


@lru_cache(maxsize=4096)  # as above
def check_node(node: NodeId) -> None:
    """A node is named by 1 to 64 characters of [A-Za-z0-9._-]."""
    if not _NODE.fullmatch(node):
        raise MessageError(f"a node has 1 to 64 characters of A-Z a-z 0-9 . _ -: {shown(node)}")


def check_address(address: Address) -> None:
    """An address is a host or an IP in ASCII (IPv6 in brackets), a colon and a port."""
    match = _ADDRESS.fullmatch(address)
    if match is None or not 1 <= int(match[1]) <= _PORT_MAX:
        raise MessageError(f"an address is of the form host:port, not {shown(address)}")


def _check_text(text: str) -> None:
    """Bytes that are read are always whole characters; what the application gives may not be."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MessageError(f"half a character in a text: {shown(text)}") from None


# -- publications ----------------------------------------------------------------------------


def check_publication(publication: Publication) -> None:
    """What may travel: with a payload, and nothing in it longer than we allow.

    The application's publications can be checked with it too: the id does not matter.
    """
    payload, key = publication.payload, publication.key
    check_node(publication.publisher)
    if payload is None:
        raise MessageError("a publication without a payload")
    if len(payload) > PAYLOAD_BYTES_MAX:
        size = len(payload)
        raise MessageError(f"a payload of {size} bytes, and {PAYLOAD_BYTES_MAX} is the limit")
    if key is not None and len(key) > KEY_BYTES_MAX:
        raise MessageError(f"a key of {len(key)} bytes, and {KEY_BYTES_MAX} is the limit")
    if not (0 <= publication.seq <= NUMBER_MAX and 0 <= publication.time <= NUMBER_MAX):
        raise MessageError("a seq or time that is not from 0 to 2^63-1")
    if publication.headers:
        _check_headers(publication.headers)


def _check_headers(headers: dict[str, str]) -> None:
    if len(headers) > HEADERS_MAX:
        raise MessageError(f"{len(headers)} headers, and {HEADERS_MAX} is the limit")
    size = 0
    for item in headers.items():
        for text in item:
            _check_text(text)
            size += len(text.encode())
    if size > HEADERS_BYTES_MAX:
        raise MessageError(f"headers of {size} bytes, and {HEADERS_BYTES_MAX} is the limit")


def _check_nameless(publication: Publication) -> None:
    """As it travels: whoever receives it works out its id (T10)."""
    if publication.id:
        raise MessageError("a publication travels without its id")
    check_publication(publication)


def check_listed(publication: Publication) -> None:
    """As it is shown to whoever looks: under its id, perhaps without what it says."""
    _check_id(publication.id)
    if publication.payload is not None:
        check_publication(publication)
    elif publication.key is not None or publication.headers:
        raise MessageError("a publication without a payload, but with a key or headers")
    else:
        check_publication(replace(publication, payload=b""))


def _check_all_listed(publications: tuple[Publication, ...]) -> None:
    _check_count(publications, LISTED_MAX, "publications")
    for publication in publications:
        check_listed(publication)


def check_publications(publications: tuple[Publication, ...]) -> None:
    """Several, as they travel together."""
    if len(publications) > PUBLICATIONS_MAX:
        count = len(publications)
        raise MessageError(f"{count} publications, and {PUBLICATIONS_MAX} is the limit")
    believed = None
    for each in publications:
        payload = each.payload
        # Most come from the publisher of the one before, and have neither key nor headers: of them
        # little is to be looked at.
        if (
            payload is None
            or len(payload) > PAYLOAD_BYTES_MAX
            or each.key
            or each.headers
            or each.id
            or each.publisher != believed
            or each.seq > NUMBER_MAX
            or each.time > NUMBER_MAX
        ):
            _check_nameless(each)
            believed = each.publisher


# -- the other fields ------------------------------------------------------------------------


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


def _check_waiting(nodes: tuple[NodeId, ...]) -> None:
    _check_count(nodes, ENTRIES_MAX, "nodes that wait")
    for node in nodes:
        check_node(node)


def _check_shortcuts(shortcuts: tuple[tuple[Label, NodeId | None], ...]) -> None:
    _check_count(shortcuts, SHORTCUTS_MAX, "shortcuts")
    for _, node in shortcuts:
        if node is not None:
            check_node(node)


def _check_silence(silence: dict[NodeId, SilenceState]) -> None:
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


def _check_journal(entries: tuple[JournalEntry, ...]) -> None:
    _check_count(entries, JOURNAL_MAX, "changes")
    for entry in entries:
        if not (0 <= entry.tick <= NUMBER_MAX and 0 <= entry.time <= NUMBER_MAX):
            raise MessageError("a tick or time that is not from 0 to 2^63-1")
        if entry.sender is not None:
            check_node(entry.sender)
        for text in (entry.cause, entry.field, entry.before, entry.after, entry.why):
            if len(text) > JOURNAL_CHARACTERS_MAX or _CONTROL_CHARACTER.search(text):
                raise MessageError(f"a journal with the text {shown(text)}")
            _check_text(text)


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


def _check_store(store: str) -> None:
    if not _STORE.fullmatch(store):
        raise MessageError(f"a store is named by hexadecimal digits, not {shown(store)}")


def _check_survey(digests: tuple[bytes, ...]) -> None:
    _check_count(digests, 1 << SURVEY_BITS_MAX, "digests")
    if any(len(digest) not in (0, DIGEST_BYTES) for digest in digests):
        raise MessageError(f"a digest that has neither {DIGEST_BYTES} bytes nor none")


def _check_numbers(last: int) -> Check:
    def check(numbers: tuple[int, ...]) -> None:
        _check_count(numbers, STORED_MAX, "numbers")
        if numbers and not (min(numbers) >= 0 and max(numbers) <= last):
            raise MessageError(f"a number that is not from 0 to {last}")

    return check


def _check_bytes(limit: int) -> Check:
    return lambda data: _check_count(data, limit, "bytes")


def _check_id(key: bytes) -> None:
    if len(key) != ID_BYTES:
        raise MessageError(f"an id of {len(key)} bytes, and it has {ID_BYTES}")


def _check_reason(reason: str) -> None:
    if len(reason) > REASON_CHARACTERS_MAX:
        raise MessageError(f"a reason of {len(reason)} characters")
    if _CONTROL_CHARACTER.search(reason):
        raise MessageError(f"a reason with control characters: {shown(reason)}")
    _check_text(reason)


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


def _number(last: int, words: str, first: int = 0) -> FieldKind:
    def check(value: int) -> None:
        if not first <= value <= last:
            raise MessageError(f"{value} is not from {words}")

    return FieldKind(words, check)


def _some(nodes: Iterable[NodeId | None]) -> tuple[NodeId, ...]:
    return tuple(node for node in nodes if node is not None)


NODE: Final = FieldKind("node", check_node, lambda node: (node,))
PEER: Final = FieldKind("[[position], node]", _check_peer, lambda peer: (peer.node,))
LABEL: Final = FieldKind("[position]")
LINK: Final = FieldKind('"LIN" or "CYC"')
FLAG: Final = FieldKind("bool")
DIGEST: Final = _number(CIRCLE - 1, "0 to 2^64-1")
NUMBER: Final = _number(NUMBER_MAX, "0 to 2^63-1")
SESSION: Final = _number(SESSION_MAX, f"0 to {SESSION_MAX}")
HOPS: Final = FieldKind(f"0 to {HOPS_MAX}", check_hops)
OFFSET: Final = _number(OFFSET_MAX, "0 to 2^40-1")
COUNT: Final = _number(LOCATED_MAX, f"1 to {LOCATED_MAX}", first=1)
CLAIMS: Final = FieldKind("claims")
TRIE_DIGEST: Final = FieldKind("16 bytes")
SHORT_IDS: Final = FieldKind("8 bytes each")
HOPS_OF_EACH: Final = FieldKind("1 byte each")
ID: Final = FieldKind(f"{ID_BYTES} bytes", _check_id)
PUBLICATION: Final = FieldKind("publication", _check_nameless)
PUBLICATIONS: Final = FieldKind("publications", check_publications)
MEMBERS: Final = FieldKind("map of node to address", _check_members)
REASON: Final = FieldKind("text", _check_reason)
ENTRIES: Final = FieldKind(
    "[bits, node or nil] each",
    _check_entries,
    lambda entries: _some(node for _, node in entries),
)
WAITING: Final = FieldKind("nodes", _check_waiting, lambda nodes: nodes)
SHORTCUTS: Final = FieldKind(
    "[[position], node or nil] each",
    _check_shortcuts,
    lambda shortcuts: _some(node for _, node in shortcuts),
)
SILENCE: Final = FieldKind("map of node to [ticks, threshold, pending]", _check_silence, tuple)
DIGESTS: Final = FieldKind("map of node to 0 to 2^64-1", _check_digests, tuple)
ROOT: Final = FieldKind("16 bytes", _check_root)
LISTED: Final = FieldKind("publications, with ids", _check_all_listed)
JOURNAL: Final = FieldKind("changes", _check_journal)
TOPICS: Final = FieldKind("[topic, members, requests] each", _check_topics)
ARRIVALS: Final = FieldKind("arrivals", _check_arrivals)
DATABASE: Final = FieldKind(ENTRIES.words, _check_database, ENTRIES.nodes)
NAMES: Final = FieldKind("nodes", _check_names)
FORGED: Final = FieldKind("bytes", _check_forged)
BITS: Final = _number(SURVEY_BITS_MAX, f"0 to {SURVEY_BITS_MAX}")
PREFIX: Final = _number((1 << SURVEY_BITS_MAX) - 1, f"0 to {(1 << SURVEY_BITS_MAX) - 1}")
STORE: Final = FieldKind("hexadecimal digits, or none", _check_store)
SURVEY: Final = FieldKind("16 bytes or none, each", _check_survey)
OFFSETS: Final = FieldKind("0 to 2^40-1, each", _check_numbers(OFFSET_MAX))
TIMES: Final = FieldKind("0 to 2^63-1, each", _check_numbers(NUMBER_MAX))
BYTES_OF_EACH: Final = FieldKind("1 byte each", _check_bytes(STORED_MAX))
IDS: Final = FieldKind("32 bytes each", _check_bytes(ID_BYTES * STORED_MAX))
STORED: Final = FieldKind("publications as bytes", _check_bytes(STORED_BYTES_MAX))
