"""Reading, without joining a topic, how its publications came to a member."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

from skipring.core.peers import NodeId, TopicId
from skipring.errors import UnreachableError
from skipring.runtime.outsider import Outsider
from skipring.runtime.surveying import ATTEMPTS, PAGE_S
from skipring.wire.runtime_messages import Address, DeliveryPage, ReadDeliveries, Refused


async def delivery_pages(
    outsider: Outsider, topic: TopicId, node: NodeId, address: Address, wanted: range
) -> AsyncGenerator[DeliveryPage, None]:
    """Read how what is at these offsets came to a member, page by page.

    While one page is looked at, the next is on its way. UnreachableError if the member does not
    answer, or is no member any more.
    """
    outsider.book.hear({node: address})
    start: int | None = wanted.start
    coming = asyncio.ensure_future(_page(outsider, topic, node, wanted))
    try:
        while start is not None:
            page = await coming
            start = page.next
            if start is not None:
                rest = range(start, wanted.stop)
                coming = asyncio.ensure_future(_page(outsider, topic, node, rest))
            yield page
    finally:
        coming.cancel()


async def _page(outsider: Outsider, topic: TopicId, node: NodeId, wanted: range) -> DeliveryPage:
    question = partial(ReadDeliveries, start=wanted.start, end=wanted.stop)
    why = "no answer"
    for _ in range(ATTEMPTS):
        answer = await outsider.ask(topic, node, question, DeliveryPage, PAGE_S)
        if isinstance(answer, DeliveryPage) and (answer.next is None or answer.next > wanted.start):
            return answer
        if isinstance(answer, Refused):
            why = answer.reason
            break
    raise UnreachableError(
        f"{node} stopped telling how {topic!r} came to it at offset {wanted.start} ({why})"
    )
