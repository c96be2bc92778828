"""Batches of publish calls: the calls of one loop iteration share one event and one message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from skipring.core.events import PublishRequested
from skipring.core.peers import TopicId

Publish = Callable[[TopicId, Sequence[PublishRequested]], list[bytes]]


class _Batch:
    """Requests of one loop iteration in one topic."""

    def __init__(self) -> None:
        self.requests: list[PublishRequested] = []
        self.ids: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()


class PublishBatches:
    """Publish calls of one node that wait for the end of the loop iteration.

    Without a disk a call does not wait: it would cost more than it saves.
    """

    def __init__(self, publish: Publish, *, waits: bool) -> None:
        self._publish = publish
        self._waits = waits
        self._batches: dict[TopicId, _Batch] = {}

    async def publish(self, topic: TopicId, requests: Sequence[PublishRequested]) -> list[bytes]:
        """Publish with the other calls of this loop iteration; return the ids of ``requests``.

        Requests that name another publisher are published alone: a known one gets no id.
        """
        if not self._waits or any(request.publisher is not None for request in requests):
            return self._publish(topic, requests)
        batch = self._batches.get(topic)
        if batch is None:
            batch = self._batches[topic] = _Batch()
            asyncio.get_running_loop().call_soon(self._flush, topic)
        start = len(batch.requests)
        batch.requests += requests
        # A cancelled caller must not cancel the batch: others wait for it too.
        ids = await asyncio.shield(batch.ids)
        return ids[start : start + len(requests)]

    def _flush(self, topic: TopicId) -> None:
        batch = self._batches.pop(topic)
        try:
            ids = self._publish(topic, batch.requests)
        except Exception as error:  # noqa: BLE001  (each caller gets it)
            batch.ids.set_exception(error)
        else:
            batch.ids.set_result(ids)
