"""Limits of names, publications and pages: every size, the constrained types, and their checks.

msgspec checks the constrained types when it decodes a message. The functions check
constraints that it cannot express or checks too slowly; each raises a MessageError with one short
sentence.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from skipring.core.labels import Label, Word
from skipring.core.limits import (
    LABEL_CHARACTERS_MAX,
    PRINTABLE,
    REASON_CHARACTERS_MAX,
    STORED_MAX,
    TOPIC_BYTES_MAX,
    check_node,
    check_text,
    shown,
)
from skipring.core.log_messages import Number
from skipring.core.peers import ADDRESS_PATTERN, Address, NodeId, Peer, TopicId
from skipring.core.publications import ID_BYTES
from skipring.core.state import LivenessState, SubscriberState
from skipring.errors import MessageError

# Chosen limits; the paper has none.
LOCATED_MAX: Final = 32  # members in one answer: with the longest addresses they fit in a frame
ENTRIES_MAX: Final = 256  # of a database, or of its queue, in one page
SHORTCUTS_MAX: Final = 128  # two for each of 64 levels; also of sums (R14) and watches (R9)
JOURNAL_MAX: Final = 128  # changes in one page
JOURNAL_CHARACTERS_MAX: Final = 200  # of each text in a change
TOPICS_MAX: Final = 256  # of a supervisor, in one page
ARRIVALS_MAX: Final = 512  # in one page
CONFLICTS_MAX: Final = 16  # names that two processes claim, in one page
CLONES_MAX: Final = 4  # processes with the name of one node, in its report
DAMAGED_MAX: Final = 8192  # twice the number of connections of a supervisor
FORGED_BYTES_MAX: Final = 512 * 1024

# -- constrained types -----------------------------------------------------------------------


MemberCount: TypeAlias = Annotated[
    int, Meta(ge=1, le=LOCATED_MAX, description=f"1 to {LOCATED_MAX}")
]
Members: TypeAlias = Annotated[
    dict[NodeId, Address], Meta(max_length=LOCATED_MAX, description="map of node to address")
]
ChangeText: TypeAlias = Annotated[str, Meta(max_length=JOURNAL_CHARACTERS_MAX, pattern=PRINTABLE)]
DatabaseEntry: TypeAlias = tuple[
    Annotated[str, Meta(max_length=LABEL_CHARACTERS_MAX, pattern=r"\A[01]*\Z")], NodeId | None
]
_ENTRIES: Final = "[bits, node or nil] each"
Entries: TypeAlias = Annotated[
    tuple[DatabaseEntry, ...], Meta(max_length=ENTRIES_MAX, description=_ENTRIES)
]
Queue: TypeAlias = Annotated[tuple[NodeId, ...], Meta(max_length=ENTRIES_MAX, description="nodes")]
DamagedEntries: TypeAlias = Annotated[
    tuple[DatabaseEntry, ...], Meta(max_length=DAMAGED_MAX, description=_ENTRIES)
]
DamagedNodes: TypeAlias = Annotated[
    tuple[NodeId, ...], Meta(max_length=DAMAGED_MAX, description="nodes")
]
Shortcuts: TypeAlias = Annotated[
    tuple[tuple[Label, NodeId | None], ...],
    Meta(max_length=SHORTCUTS_MAX, description="[[position], node or nil] each"),
]
Watches: TypeAlias = Annotated[
    dict[NodeId, LivenessState],
    Meta(max_length=SHORTCUTS_MAX, description="map of node to [ticks, threshold, pending]"),
]
Sums: TypeAlias = Annotated[
    dict[NodeId, Word], Meta(max_length=SHORTCUTS_MAX, description="map of node to 0 to 2^64-1")
]


class RingVariables(Struct, frozen=True, array_like=True, gc=False):
    """Variables of a subscriber in a message: its place in the ring."""

    request: Number
    label: Label | None
    left: Peer | None
    right: Peer | None
    ring: Peer | None
    shortcuts: Shortcuts
    silence: Watches
    digests: Sums

    def state(self, *, member: bool) -> SubscriberState:
        """Return the variables as the state of a subscriber without publications."""
        return SubscriberState(
            member=member,
            label=self.label,
            left=self.left,
            right=self.right,
            ring=self.ring,
            shortcuts=dict(self.shortcuts),
            silence=self.silence,
            digests=self.digests,
        )


ForgedFrames: TypeAlias = Annotated[bytes, Meta(max_length=FORGED_BYTES_MAX, description="bytes")]
Times: TypeAlias = Annotated[
    tuple[Number, ...], Meta(max_length=STORED_MAX, description="0 to 2^63-1, each")
]
RecordIds: TypeAlias = Annotated[
    bytes, Meta(max_length=ID_BYTES * STORED_MAX, description=f"{ID_BYTES} bytes each")
]
BytesOfEach: TypeAlias = Annotated[bytes, Meta(max_length=STORED_MAX, description="1 byte each")]


# -- checks ----------------------------------------------------------------------------------

_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ADDRESS: Final = re.compile(ADDRESS_PATTERN)


def one_line(text: str) -> str:
    """Return a text as the reason of a refusal: printable, on one line and of limited length."""
    plain = _CONTROL_CHARACTER.sub(" ", text).encode(errors="replace").decode()
    return plain[:REASON_CHARACTERS_MAX]


@lru_cache(maxsize=1024)  # the same few topics are in every frame
def check_topic(topic: TopicId) -> None:
    """Check that a topic has 1 to 255 bytes of UTF-8 without control characters."""
    size = len(topic.encode(errors="replace"))
    if not 1 <= size <= TOPIC_BYTES_MAX:
        raise MessageError(f"a topic has 1 to {TOPIC_BYTES_MAX} bytes, this one has {size}")
    if _CONTROL_CHARACTER.search(topic):
        raise MessageError(f"a topic has no control characters: {shown(topic)}")
    check_text(topic)


def check_address(address: str) -> None:
    """Check that an address is a host or an IP in ASCII (IPv6 in brackets), a colon and a port."""
    if _ADDRESS.search(address) is None:
        raise MessageError(f"an address is of the form host:port, not {shown(address)}")


def check_entry(label: str, node: NodeId | None) -> None:
    """Check that a database entry has a label of any 0 and 1 digits, and a node or None."""
    if len(label) > LABEL_CHARACTERS_MAX or label.strip("01"):
        raise MessageError(f"a label is a string of 0 and 1, not {shown(label)}")
    if node is not None:
        check_node(node)
