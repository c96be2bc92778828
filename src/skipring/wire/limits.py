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

from skipring.core.messages import NUMBER_MAX
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import ID_BYTES, Publication
from skipring.errors import MessageError

# All are limits of ours; the paper has none.
TOPIC_BYTES_MAX: Final = 255
PAYLOAD_BYTES_MAX: Final = 512 * 1024
KEY_BYTES_MAX: Final = 1024
HEADERS_MAX: Final = 64
HEADERS_BYTES_MAX: Final = 8 * 1024  # names and values together
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
REMAINING_MAX: Final = 8  # nodes in one Draining, as in the core
ASKED_MAX: Final = 512  # ids in one CheckHeld, as in the core's ``IDS_ASKED``
SURVEY_BITS_MAX: Final = 8  # so a survey has 256 digests at most
STORED_MAX: Final = 16_384  # publications, ids or deliveries in one page
STORED_BYTES_MAX: Final = 960 * 1024  # of contents in one page
# Of one stored publication. The largest that is accepted takes less: payload, key and headers as
# above, with a name, two numbers and the sizes of 133 fields.
RECORD_BYTES_MAX: Final = PAYLOAD_BYTES_MAX + 16 * 1024
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
SurveyBits: TypeAlias = Annotated[
    int, Meta(ge=0, le=SURVEY_BITS_MAX, description=f"0 to {SURVEY_BITS_MAX}")
]
SURVEY_PREFIX_MAX: Final = (1 << SURVEY_BITS_MAX) - 1
SurveyPrefix: TypeAlias = Annotated[
    int, Meta(ge=0, le=SURVEY_PREFIX_MAX, description=f"0 to {SURVEY_PREFIX_MAX}")
]

SHOWN_CHARACTERS_MAX: Final = 40  # Our guess: enough to recognise a value in a sentence.

_NODE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ADDRESS: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):([0-9]{1,5})")
CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
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
    if CONTROL_CHARACTER.search(topic):
        raise MessageError(f"a topic has no control characters: {shown(topic)}")
    check_text(topic)


@lru_cache(maxsize=4096)  # as above
def check_node(node: NodeId) -> None:
    """A node is named by 1 to 64 characters of [A-Za-z0-9._-]."""
    if not _NODE.fullmatch(node):
        raise MessageError(f"a node has 1 to 64 characters of A-Z a-z 0-9 . _ -: {shown(node)}")


def check_address(address: str) -> None:
    """An address is a host or an IP in ASCII (IPv6 in brackets), a colon and a port."""
    match = _ADDRESS.fullmatch(address)
    if match is None or not 1 <= int(match[1]) <= _PORT_MAX:
        raise MessageError(f"an address is of the form host:port, not {shown(address)}")


def check_text(text: str) -> None:
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
            check_text(text)
            size += len(text.encode())
    if size > HEADERS_BYTES_MAX:
        raise MessageError(f"headers of {size} bytes, and {HEADERS_BYTES_MAX} is the limit")


def check_nameless(publication: Publication) -> None:
    """As it travels: whoever receives it works out its id (T10)."""
    if publication.id:
        raise MessageError("a publication travels without its id")
    check_publication(publication)


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
            check_nameless(each)
            believed = each.publisher
