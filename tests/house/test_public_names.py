"""Public names of the classes that an application uses: exactly the documented ones."""

from __future__ import annotations

import asyncio
import pickle
import re
from inspect import signature

import pytest

import skipring
from skipring import blocking
from tests.house.test_house import ROOT

REFERENCE = ROOT / "docs" / "reference.md"
UNUSED_URL = "skipring://127.0.0.1:9"  # no supervisor listens here

BOTH_TWINS = {
    *(
        "topic",
        "publish",
        "publish_many",
        "retry",
        "read",
        "read_many",
        "read_available",
        "expired",
    ),
    *("lag", "cursor", "synced", "health", "gaps", "with_gaps"),
}
PUBLIC: dict[str, set[str]] = {
    "skipring.Connection": {"name", "subscribe", "charter", "keyvalue", "close"},
    "skipring.Subscription": BOTH_TWINS | {"leave"},
    "skipring.blocking.Connection": {"name", "open", "subscribe", "charter", "keyvalue", "close"},
    "skipring.blocking.Subscription": BOTH_TWINS | {"open", "close"},
    "skipring.Publication": {
        *("id", "publisher", "seq", "time", "key", "headers", "payload", "replayed", "hops"),
        *("offset", "late"),
    },
}


def publication() -> skipring.Publication:
    return skipring.Publication("a", 0, 0, None, {}, b"x", False, 0, 0, "t", b"")


def objects() -> dict[str, object]:
    """Return an object of each class."""
    connection, twin = skipring.connect(UNUSED_URL), blocking.connect(UNUSED_URL)
    return {
        "skipring.Connection": connection,
        "skipring.Subscription": connection.subscribe("t"),
        "skipring.blocking.Connection": twin,
        "skipring.blocking.Subscription": twin.subscribe("t"),
        "skipring.Publication": publication(),
    }


@pytest.mark.parametrize("name", PUBLIC)
def test_class_and_objects_have_exactly_the_public_names(name: str) -> None:
    shown = objects()[name]
    for each in (shown, type(shown)):
        assert {attribute for attribute in dir(each) if attribute[0] != "_"} == PUBLIC[name]


@pytest.mark.parametrize("name", PUBLIC)
def test_reference_lists_every_public_name(name: str) -> None:
    entry = re.search(
        rf"^\.\. autoclass:: {re.escape(name)}\n   :members: (?P<names>.+)$",
        REFERENCE.read_text("utf-8"),
        re.MULTILINE,
    )
    assert entry is not None
    assert set(entry["names"].split(", ")) == PUBLIC[name]


@pytest.mark.parametrize("name", sorted(BOTH_TWINS - {"topic", "lag", "gaps", "expired"}))
def test_methods_of_both_twins_have_the_same_parameters(name: str) -> None:
    own = signature(getattr(skipring.Subscription, name)).parameters
    assert own == signature(getattr(blocking.Subscription, name)).parameters


def test_publication_has_its_public_name_in_texts_and_pickles() -> None:
    made = publication()
    assert repr(made).startswith("Publication(publisher='a'")
    assert pickle.loads(pickle.dumps(made)) == made


def test_connection_closes_without_a_block() -> None:
    async def scene() -> int:
        node = skipring.connect(UNUSED_URL)
        await node.__aenter__()
        return await node.close()

    assert asyncio.run(scene()) == 0
