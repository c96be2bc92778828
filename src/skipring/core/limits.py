"""Limits of names, publications and log pages that a node accepts.

Each check raises a MessageError with one short sentence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from skipring.core.peers import NodeId
from skipring.core.publications import Publication
from skipring.errors import MessageError

NUMBER_MAX: Final = (1 << 63) - 1  # Limit: the integers of SQLite and Spark.
# Chosen limits; the paper has none.
PAYLOAD_BYTES_MAX: Final = 512 * 1024
KEY_BYTES_MAX: Final = 1024
HEADERS_MAX: Final = 64
HEADERS_BYTES_MAX: Final = 8 * 1024  # names and values together
PUBLICATIONS_MAX: Final = 8192  # twice the number of the smallest publications in a chunk (T14)
REASON_CHARACTERS_MAX: Final = 500
SURVEY_BITS_MAX: Final = 8  # of a prefix, so a survey has at most 256 digests
SURVEY_PREFIX_MAX: Final = (1 << SURVEY_BITS_MAX) - 1
STORED_MAX: Final = 16_384  # publications, ids or deliveries in one page
STORED_BYTES_MAX: Final = 960 * 1024  # of contents in one page
STORE_CHARACTERS_MAX: Final = 64
CHAIN_BYTES: Final = 8  # of a log's running digest: two of 2^32 logs of one store may collide
SHOWN_CHARACTERS_MAX: Final = 40  # Guess: enough to recognise a value in a sentence.

# A cached method of a compiled pattern: the same few names are in every frame.
match_node: Final = lru_cache(maxsize=4096)(re.compile(r"[A-Za-z0-9._-]{1,64}").fullmatch)


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first names and the number of the others, for a sentence.

    >>> listed(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def shown(text: str) -> str:
    """Return received text as one short line of printable characters."""
    short = ascii(text[:SHOWN_CHARACTERS_MAX])
    return short if len(text) <= SHOWN_CHARACTERS_MAX else short + "..."


def check_node(node: NodeId) -> None:
    """Check that a node has 1 to 64 characters of [A-Za-z0-9._-]."""
    if match_node(node) is None:
        raise MessageError(f"a node has 1 to 64 characters of A-Z a-z 0-9 . _ -: {shown(node)}")


def check_text(text: str) -> None:
    """Check that UTF-8 can encode a text of the application; decoded texts always pass."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MessageError(f"a lone surrogate in a text: {shown(text)}") from None


def check_publication(publication: Publication) -> None:
    """Check that a publication has a payload, and that no field exceeds its limit.

    The id is not checked, so this also accepts publications that have none yet.
    """
    payload, key = publication.payload, publication.key
    check_node(publication.publisher)
    if payload is None:
        raise MessageError("a publication without a payload")
    if len(payload) > PAYLOAD_BYTES_MAX:
        size = len(payload)
        raise MessageError(f"a payload of {size} bytes exceeds the limit of {PAYLOAD_BYTES_MAX}")
    if key is not None and len(key) > KEY_BYTES_MAX:
        raise MessageError(f"a key of {len(key)} bytes exceeds the limit of {KEY_BYTES_MAX}")
    if not (0 <= publication.seq <= NUMBER_MAX and 0 <= publication.time <= NUMBER_MAX):
        raise MessageError("a seq or time outside 0 to 2^63-1")
    if publication.headers:
        _check_headers(publication.headers)


def _check_headers(headers: dict[str, str]) -> None:
    if len(headers) > HEADERS_MAX:
        raise MessageError(f"{len(headers)} headers exceed the limit of {HEADERS_MAX}")
    size = 0
    for item in headers.items():
        for text in item:
            check_text(text)
            size += len(text.encode())
    if size > HEADERS_BYTES_MAX:
        raise MessageError(f"headers of {size} bytes exceed the limit of {HEADERS_BYTES_MAX}")


def check_publications(publications: Sequence[Publication]) -> None:
    """Check publications of one message: their number, their fields, and that they have no ids."""
    if len(publications) > PUBLICATIONS_MAX:
        count = len(publications)
        raise MessageError(f"{count} publications exceed the limit of {PUBLICATIONS_MAX}")
    checked = None
    for each in publications:
        payload = each.payload
        # Most publications have the publisher of the previous one, and neither key nor headers.
        if (
            payload is None
            or each.key
            or each.headers
            or each.id
            or len(payload) > PAYLOAD_BYTES_MAX
            or each.seq > NUMBER_MAX
            or each.time > NUMBER_MAX
            or (each.publisher != checked and match_node(each.publisher) is None)
        ):
            check_bare(each)
        checked = each.publisher


def check_bare(publication: Publication) -> None:
    """Check a publication of a message, which has no id."""
    if publication.id:
        raise MessageError("a publication in a message must not have an id")
    check_publication(publication)
