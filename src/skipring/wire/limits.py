"""Limits of names and publications in a message: one check each.

The decoder checks types; these checks cover sizes, ranges and names. A check raises a MessageError
of one short sentence.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Final, TypeAlias

from msgspec import Meta
from msgspec.structs import replace

from skipring.core.limits import (
    HEADERS_BYTES_MAX as HEADERS_BYTES_MAX,
)
from skipring.core.limits import (
    HEADERS_MAX as HEADERS_MAX,
)
from skipring.core.limits import (
    KEY_BYTES_MAX as KEY_BYTES_MAX,
)
from skipring.core.limits import (
    PAYLOAD_BYTES_MAX as PAYLOAD_BYTES_MAX,
)
from skipring.core.limits import (
    PUBLICATIONS_MAX as PUBLICATIONS_MAX,
)
from skipring.core.limits import (
    RECORD_BYTES_MAX as RECORD_BYTES_MAX,
)
from skipring.core.limits import (
    SHOWN_CHARACTERS_MAX as SHOWN_CHARACTERS_MAX,
)
from skipring.core.limits import (
    check_nameless as check_nameless,
)
from skipring.core.limits import (
    check_node as check_node,
)
from skipring.core.limits import (
    check_publication as check_publication,
)
from skipring.core.limits import (
    check_publications as check_publications,
)
from skipring.core.limits import (
    check_text as check_text,
)
from skipring.core.limits import (
    shown as shown,
)
from skipring.core.messages import (
    STORED_BYTES_MAX as STORED_BYTES_MAX,
)
from skipring.core.messages import (
    STORED_MAX as STORED_MAX,
)
from skipring.core.messages import (
    SURVEY_BITS_MAX as SURVEY_BITS_MAX,
)
from skipring.core.peers import TopicId
from skipring.core.publications import ID_BYTES, Publication
from skipring.errors import MessageError

# All are limits of ours; the paper has none.
TOPIC_BYTES_MAX: Final = 255
LOCATED_MAX: Final = 32  # members in one answer: with the longest addresses they fit in a frame
REASON_CHARACTERS_MAX: Final = 500
ENTRIES_MAX: Final = 256  # of a database, or of those who wait, in one page
LABEL_CHARACTERS_MAX: Final = 4096  # in a database, where also a corrupted label has an end
SHORTCUTS_MAX: Final = 128  # two for each of 64 levels; as many sums (R14) and watches (R9)
LISTED_MAX: Final = 1024  # publications in one page
JOURNAL_MAX: Final = 128
TOPICS_MAX: Final = 256  # of a supervisor, in one page
ARRIVALS_MAX: Final = 512  # in one page
REMAINING_MAX: Final = 8  # nodes in one Draining, as in the core
ASKED_MAX: Final = 512  # ids in one CheckHeld, as in the core's ``IDS_ASKED``
STORE_CHARACTERS_MAX: Final = 64
INCARNATION_MAX: Final = (1 << 40) - 1
CONFLICTS_MAX: Final = 16  # of names that two processes have, in one page
CLONES_MAX: Final = 4  # processes with the name of one node, in its report
CHAIN_BYTES: Final = 8  # of a log's running digest: 2^32 logs of one store until two are alike
JOURNAL_CHARACTERS_MAX: Final = 200  # of each text in an entry
# Of what is damaged on purpose: twice as many as a supervisor has connections.
DAMAGED_MAX: Final = 8192
FORGED_BYTES_MAX: Final = 512 * 1024

MemberCount: TypeAlias = Annotated[
    int, Meta(ge=1, le=LOCATED_MAX, description=f"1 to {LOCATED_MAX}")
]
Incarnation: TypeAlias = Annotated[int, Meta(ge=0, le=INCARNATION_MAX, description="0 to 2^40-1")]

_ADDRESS: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):([0-9]{1,5})")
CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PORT_MAX: Final = (1 << 16) - 1


# -- names -----------------------------------------------------------------------------------


@lru_cache(maxsize=1024)  # the same few stand in every frame
def check_topic(topic: TopicId) -> None:
    """A topic has 1 to 255 bytes of UTF-8 without control characters."""
    size = len(topic.encode(errors="replace"))
    if not 1 <= size <= TOPIC_BYTES_MAX:
        raise MessageError(f"a topic has 1 to {TOPIC_BYTES_MAX} bytes, this one has {size}")
    if CONTROL_CHARACTER.search(topic):
        raise MessageError(f"a topic has no control characters: {shown(topic)}")
    check_text(topic)


def check_address(address: str) -> None:
    """An address is a host or an IP in ASCII (IPv6 in brackets), a colon and a port."""
    match = _ADDRESS.fullmatch(address)
    if match is None or not 1 <= int(match[1]) <= _PORT_MAX:
        raise MessageError(f"an address is of the form host:port, not {shown(address)}")


# -- publications ----------------------------------------------------------------------------


def check_id(key: bytes) -> None:
    """An id has 32 bytes."""
    if len(key) != ID_BYTES:
        raise MessageError(f"an id of {len(key)} bytes, and it has {ID_BYTES}")


def check_listed(publication: Publication) -> None:
    """As it is shown to whoever looks: under its id, perhaps without what it says."""
    check_id(publication.id)
    if publication.payload is not None:
        check_publication(publication)
    elif publication.key is not None or publication.headers:
        raise MessageError("a publication without a payload, but with a key or headers")
    else:
        check_publication(replace(publication, payload=b""))
