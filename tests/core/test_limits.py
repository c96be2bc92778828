"""Limits of names and publications: the largest values are accepted, larger ones refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from skipring.core.limits import (
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    NUMBER_MAX,
    PAYLOAD_BYTES_MAX,
    PUBLICATIONS_MAX,
    check_node,
    check_publication,
    check_publications,
)
from skipring.core.publications import Publication
from skipring.errors import MessageError

ONE = Publication(publisher="p", seq=0, payload=b"x")
LARGEST = Publication(
    publisher="p" * 64,
    seq=NUMBER_MAX,
    time=NUMBER_MAX,
    payload=bytes(PAYLOAD_BYTES_MAX),
    key=bytes(KEY_BYTES_MAX),
    headers={"h": "x" * (HEADERS_BYTES_MAX - 1)},
)
REFUSED = {
    "no payload": {"payload": None},
    "long payload": {"payload": bytes(PAYLOAD_BYTES_MAX + 1)},
    "long key": {"key": bytes(KEY_BYTES_MAX + 1)},
    "long headers": {"headers": {"h": "x" * HEADERS_BYTES_MAX}},
    "many headers": {"headers": {str(n): "" for n in range(HEADERS_MAX + 1)}},
    "large seq": {"seq": NUMBER_MAX + 1},
    "large time": {"time": NUMBER_MAX + 1},
    "wrong name": {"publisher": "no name"},
}


def test_largest_publication_is_accepted() -> None:
    check_publication(LARGEST)
    check_publications([LARGEST, ONE])


@pytest.mark.parametrize("fields", REFUSED.values(), ids=REFUSED)
def test_publication_beyond_a_limit_is_refused_alone_and_among_others(
    fields: dict[str, object],
) -> None:
    with pytest.raises(MessageError):
        check_publication(replace(ONE, **fields))
    with pytest.raises(MessageError):
        check_publications([ONE, replace(ONE, **fields)])


def test_publications_with_ids_or_in_too_large_a_number_are_refused() -> None:
    with pytest.raises(MessageError, match="must not have an id"):
        check_publications([ONE.with_id("t")])
    with pytest.raises(MessageError, match="the limit of"):
        check_publications([ONE] * (PUBLICATIONS_MAX + 1))


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "ä", "a/b"])
def test_node_name_has_1_to_64_plain_characters(name: str) -> None:
    with pytest.raises(MessageError):
        check_node(name)
