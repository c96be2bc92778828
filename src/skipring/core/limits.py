"""Limits of names, publications and log pages that a node accepts.

Each check raises a MessageError with one short sentence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from skipring.core.peers import SUPERVISOR, NodeId
from skipring.errors import IdentityError, MessageError

NUMBER_MAX: Final = (1 << 63) - 1  # Limit: the integers of Spark.
# Chosen limits; the paper has none.
TOPIC_BYTES_MAX: Final = 255
LABEL_CHARACTERS_MAX: Final = 4096  # in a database, which may contain corrupted labels
PAYLOAD_BYTES_MAX: Final = 512 * 1024
KEY_BYTES_MAX: Final = 1024
HEADERS_MAX: Final = 64
HEADERS_BYTES_MAX: Final = 8 * 1024  # names and values together
PUBLICATIONS_MAX: Final = 8192  # twice the number of the smallest batches in a chunk (T14)
REASON_CHARACTERS_MAX: Final = 500
SURVEY_BITS_MAX: Final = 8  # of a prefix, so a survey has at most 256 digests
SURVEY_PREFIX_MAX: Final = (1 << SURVEY_BITS_MAX) - 1
STORED_MAX: Final = 16_384  # batches or deliveries in one page
STORE_CHARACTERS_MAX: Final = 64
FILTER_VALUES_MAX: Final = 64  # publishers or keys in the filter of a reader
TERMS_BYTES: Final = 8  # of a digest of charter and floors, and one flag
CHAIN_BYTES: Final = 12
EARLIER_CHAIN_BYTES: Final = 8  # of a position from before sessions were stored
# A chain value is the session in which a batch was stored, a random number of each opening of a
# log, then a part of the running digest. Both are known until the batch is dropped and its file is
# rewritten, then only the session, and nothing once the file is deleted (decision 0043).
SESSION_BYTES: Final = 4
UNKNOWN_DIGEST: Final = b"\xff" * (CHAIN_BYTES - SESSION_BYTES)
TRIMMED_CHAIN: Final = b"\xff" * CHAIN_BYTES
SHOWN_CHARACTERS_MAX: Final = 40  # Guess: enough to recognise a value in a sentence.

PRINTABLE: Final = r"\A[^\x00-\x1f\x7f-\x9f]*\Z"
NODE_PATTERN: Final = r"[A-Za-z0-9._-]{1,64}"
# A cached method of a compiled pattern: the same few names are in every frame.
match_node: Final = lru_cache(maxsize=4096)(re.compile(NODE_PATTERN).fullmatch)


def is_same_chain(one: bytes, other: bytes) -> bool:
    """Return True if two chain values at one offset show the same log before it (decision 0043)."""
    if TRIMMED_CHAIN in (one, other):
        return False
    digests = one[SESSION_BYTES:], other[SESSION_BYTES:]
    if UNKNOWN_DIGEST in digests:
        return one[:SESSION_BYTES] == other[:SESSION_BYTES]
    if EARLIER_CHAIN_BYTES in (len(one), len(other)):
        return one[:EARLIER_CHAIN_BYTES] == other[:EARLIER_CHAIN_BYTES]
    return digests[0] == digests[1]


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


def check_name(name: str, *, parameter: str) -> None:
    """Raise IdentityError for an invalid node name; ``parameter`` states its source."""
    if match_node(name) is None:
        raise IdentityError(
            f"{name[:80]!r} is not a valid node name; "
            "a name has 1 to 64 characters of A-Z, a-z, 0-9, '.', '_' and '-'",
            parameter=parameter,
        )
    if name == SUPERVISOR:
        raise IdentityError(
            f"{name!r} is the supervisor's own name; choose another", parameter=parameter
        )


def check_text(text: str) -> None:
    """Check that UTF-8 can encode a text of the application; decoded texts always pass."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MessageError(f"a lone surrogate in a text: {shown(text)}") from None
