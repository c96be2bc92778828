"""Pages of stored publications: only rows that match their ids are used."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from skipring.core.log_messages import LogPage
from skipring.core.publications import Publication
from skipring.errors import MessageError
from skipring.spark.arrow import ArrowRows
from tests.spark.rings import TOPIC, made

MADE = made(50)
WITH_ALL = replace(MADE[7], key=b"k", headers={"a": "b"}, time=0).with_id(TOPIC)


def page(publications: Sequence[Publication], ids: Sequence[bytes]) -> LogPage:
    bare = [replace(publication, id=b"") for publication in publications]
    return LogPage(
        request=1,
        next=None,
        offsets=tuple(range(len(publications))),
        ids=b"".join(ids),
        publications=msgspec.msgpack.encode(bare),
    )


def test_publications_that_match_their_ids_are_used() -> None:
    given = [*MADE, WITH_ALL]
    rows = ArrowRows.of(TOPIC, page(given, [each.id for each in given]))
    assert list(rows.ids) == [each.id_in(TOPIC) for each in given]
    assert [each.payload for each in rows.publications] == [each.payload for each in given]


@pytest.mark.parametrize("field", ["publisher", "seq", "payload", "time", "key", "headers"])
def test_publication_that_does_not_match_its_id_is_omitted(field: str) -> None:
    other = {"headers": {"x": "y"}, "publisher": "other", "key": b"x", "payload": b"x"}
    spoilt = replace(MADE[3], **{field: other.get(field, 99_999)})
    rows = ArrowRows.of(TOPIC, page([*MADE[:3], spoilt, *MADE[4:]], [each.id for each in MADE]))
    assert list(rows.ids) == [each.id for each in MADE if each is not MADE[3]]
    assert 3 not in rows.offsets


def test_publication_without_contents_is_omitted_and_a_page_with_too_few_ids_refused() -> None:
    opaque = replace(MADE[0], payload=None)
    rows = ArrowRows.of(TOPIC, page([opaque, MADE[1]], [MADE[0].id, MADE[1].id]))
    assert list(rows.ids) == [MADE[1].id]
    with pytest.raises(MessageError, match="another number of offsets or ids"):
        ArrowRows.of(TOPIC, page([opaque, MADE[1]], [MADE[1].id]))
