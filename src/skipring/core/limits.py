"""Limits of names and publications that a node accepts; a check raises a MessageError."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from skipring.core.peers import NodeId
from skipring.core.publications import Publication
from skipring.errors import MessageError

NUMBER_MAX: Final = (1 << 63) - 1  # Limit: the integers of SQLite and Spark.
# All are limits of ours; the paper has none.
PAYLOAD_BYTES_MAX: Final = 512 * 1024
KEY_BYTES_MAX: Final = 1024
HEADERS_MAX: Final = 64
HEADERS_BYTES_MAX: Final = 8 * 1024  # names and values together
PUBLICATIONS_MAX: Final = 8192  # twice what a chunk (T14) can hold of the smallest
SHOWN_CHARACTERS_MAX: Final = 40  # Our guess: enough to recognise a value in a sentence.
# Of one stored publication. The largest that is accepted takes less: payload, key and headers as
# above, with a name, two numbers and the sizes of 133 fields.
RECORD_BYTES_MAX: Final = PAYLOAD_BYTES_MAX + 16 * 1024

_NODE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


def shown(text: str) -> str:
    """A text from outside in few printable characters, on one line."""
    short = ascii(text[:SHOWN_CHARACTERS_MAX])
    return short if len(text) <= SHOWN_CHARACTERS_MAX else short + "..."


@lru_cache(maxsize=4096)  # as above
def check_node(node: NodeId) -> None:
    """A node is named by 1 to 64 characters of [A-Za-z0-9._-]."""
    if not _NODE.fullmatch(node):
        raise MessageError(f"a node has 1 to 64 characters of A-Z a-z 0-9 . _ -: {shown(node)}")


def check_text(text: str) -> None:
    """Bytes that are read are always whole characters; what the application gives may not be."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MessageError(f"half a character in a text: {shown(text)}") from None


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
