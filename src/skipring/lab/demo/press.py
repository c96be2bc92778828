"""Publishing in the demo: orders of a shop, through whichever members live."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from time import time_ns
from typing import Final

from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import Publication
from skipring.errors import UnreachableError
from skipring.rpc.client import RpcClient
from skipring.wire.rpc import Address, Publish, PublishAck

ANSWER_S: Final = 2.0  # Our guess: then another member is asked, with the same publication.
PAUSE_S: Final = 0.05  # Our guess: busy enough that something is always on its way.
SHOPS: Final = ("shop-hamburg", "shop-lisbon", "shop-oslo")
ITEMS: Final = (("tea", 450), ("coffee", 620), ("cocoa", 510), ("biscuits", 280), ("honey", 890))
CUSTOMERS: Final = 40


class Press:
    """Publishes through members in turn, and remembers what was acknowledged."""

    def __init__(
        self,
        outsider: RpcClient,
        topic: TopicId,
        members: Callable[[], Mapping[NodeId, Address]],
        rng: Random,
    ) -> None:
        self.acknowledged: list[bytes] = []  # ids
        self._outsider = outsider
        self._topic = topic
        self._members = members
        self._rng = rng
        self._made = 0

    async def publish(self, count: int) -> None:
        """Publish so many orders at once; returns when all are acknowledged."""
        await asyncio.gather(*(self._publish_one() for _ in range(count)))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Publish all the while, one order after the other."""
        is_over = asyncio.Event()
        task = asyncio.create_task(self._publish_until(is_over))
        try:
            yield
        except BaseException:
            task.cancel()
            raise
        finally:
            is_over.set()  # the last one is still acknowledged
            await asyncio.wait([task])
        task.result()  # raises why it has ended before

    async def _publish_until(self, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            await self._publish_one()
            await asyncio.sleep(PAUSE_S)

    async def _publish_one(self) -> None:
        """Publish through one member; if it does not take it, through the next."""
        order = self._order()
        members = self._members()
        names = sorted(members)
        first = order.seq % len(names)
        for name in (*names[first:], *names[:first]):
            self._outsider.book.learn({name: members[name]})
            question = partial(Publish, publication=order)
            answer = await self._outsider.request(self._topic, name, question, PublishAck, ANSWER_S)
            if isinstance(answer, PublishAck):
                self.acknowledged.append(answer.id)
                return
        raise UnreachableError(f"none of {len(names)} nodes has taken order {order.seq}")

    def _order(self) -> Publication:
        """The next order; the id follows from it, so that it can be published only once."""
        self._made += 1
        rng = self._rng
        item, cents = rng.choice(ITEMS)
        customer = f"customer-{rng.randrange(CUSTOMERS):02d}"
        order = {"order": self._made, "item": item, "cents": cents, "pieces": rng.randint(1, 5)}
        made = Publication(
            publisher=rng.choice(SHOPS),
            seq=self._made,
            payload=json.dumps({**order, "customer": customer}).encode(),
            key=customer.encode(),
            time=time_ns() // 1000,
        )
        return made.with_id(self._topic)
