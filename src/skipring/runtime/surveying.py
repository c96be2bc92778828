"""Reading a topic without joining it: what its members have stored, and pages of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from functools import partial
from typing import Final

from msgspec import Struct

from skipring.core.peers import NodeId, TopicId
from skipring.errors import DataLossError, UnreachableError
from skipring.runtime.offering import ANOTHER_STORE
from skipring.runtime.outsider import Outsider, nobody_in
from skipring.wire.runtime_messages import (
    Address,
    ReadStored,
    Refused,
    StoredPage,
    Survey,
    Surveyed,
)
from skipring.wire.values import LOCATED_MAX

SURVEY_S: Final = 2.5  # Our guess: a member on a busy machine answers within.
PAGE_S: Final = 10.0  # Our guess: a page may be read from a slow disk.
ATTEMPTS: Final = 2  # an answer may be lost


class Holder(Struct, frozen=True, kw_only=True):
    """A member of a topic, and how far it has stored it."""

    node: NodeId
    address: Address
    survey: Surveyed


class Stretch(Struct, frozen=True, kw_only=True):
    """What is wanted of a member: offsets from ``start`` to before ``end``, under a prefix."""

    store: str
    epoch: int
    start: int
    end: int
    bits: int = 0
    prefix: int = 0
    has_contents: bool = True


async def survey(
    outsider: Outsider, topic: TopicId, bits: int | None, count: int = LOCATED_MAX
) -> list[Holder]:
    """Ask some members how far they have stored a topic; those who answer, by name.

    UnreachableError if there is no supervisor, no member, or none that answers.
    """
    members = await outsider.locate(topic, count)
    if not members:
        raise UnreachableError(nobody_in(topic))
    holders = await survey_of(outsider, topic, members.items(), bits)
    if not holders:
        names = ", ".join(sorted(members)[:4])
        raise UnreachableError(
            f"no member of {topic!r} answers ({names}); can they be reached from here?"
        )
    return holders


async def survey_of(
    outsider: Outsider,
    topic: TopicId,
    members: Iterable[tuple[NodeId, Address]],
    bits: int | None,
) -> list[Holder]:
    """The same, of members that are known; without those who do not answer."""
    asked = (_ask(outsider, topic, node, address, bits) for node, address in sorted(members))
    return [holder for holder in await asyncio.gather(*asked) if holder is not None]


async def _ask(
    outsider: Outsider, topic: TopicId, node: NodeId, address: Address, bits: int | None
) -> Holder | None:
    outsider.book.hear({node: address})
    question = partial(Survey, bits=bits)
    answer = await outsider.ask(topic, node, question, Surveyed, SURVEY_S)
    if not isinstance(answer, Surveyed):
        return None
    return Holder(node=node, address=address, survey=answer)


async def pages(
    outsider: Outsider, topic: TopicId, node: NodeId, address: Address, wanted: Stretch
) -> AsyncGenerator[StoredPage, None]:
    """Read from a member page by page; while one is looked at, the next is on its way.

    UnreachableError if the member does not answer, or is no member any more; DataLossError if it
    has another store by now.
    """
    outsider.book.hear({node: address})
    start: int | None = wanted.start
    coming = asyncio.ensure_future(_page(outsider, topic, node, wanted, wanted.start))
    try:
        while start is not None:
            page = await coming
            start = page.next
            if start is not None:
                coming = asyncio.ensure_future(_page(outsider, topic, node, wanted, start))
            yield page
    finally:
        coming.cancel()


async def _page(
    outsider: Outsider, topic: TopicId, node: NodeId, wanted: Stretch, start: int
) -> StoredPage:
    question = partial(
        ReadStored,
        store=wanted.store,
        epoch=wanted.epoch,
        start=start,
        end=wanted.end,
        bits=wanted.bits,
        prefix=wanted.prefix,
        contents=wanted.has_contents,
    )
    why = "no answer"
    for _ in range(ATTEMPTS):
        answer = await outsider.ask(topic, node, question, StoredPage, PAGE_S)
        if isinstance(answer, StoredPage) and (answer.next is None or answer.next > start):
            return answer
        if isinstance(answer, Refused):
            if answer.reason == ANOTHER_STORE:
                raise DataLossError(
                    f"{node} has lost what it had stored of {topic!r} while it was read; run the "
                    "query again"
                )
            why = answer.reason
            break
    raise UnreachableError(f"{node} stopped serving {topic!r} at offset {start} ({why})")
