"""Server for the delivery log: pages that show how publications reached a node."""

from __future__ import annotations

from typing import Final

from skipring.core.log import Log
from skipring.core.log_messages import NOT_A_MEMBER, Refused
from skipring.core.log_pages import ANY_BYTE, SCANNED_BYTES_MAX
from skipring.core.peers import TopicId
from skipring.core.subscriber import Subscriber
from skipring.net.work_budget import Spent, never_spent
from skipring.storage.delivery_log import DeliveryLog, DeliveryRows
from skipring.wire.rpc import DeliveryPage, FetchDeliveries

DELIVERIES_MAX: Final = 4096  # Measured: four times as many took 35 ms of the loop.


def handle_deliveries_request(
    trace: DeliveryLog,
    topic: TopicId,
    machine: Subscriber | None,
    question: FetchDeliveries,
    is_spent: Spent = never_spent,
) -> DeliveryPage | Refused:
    """Return a page of the delivery log; a node outside the topic refuses."""
    if machine is None:
        return Refused(question.request, NOT_A_MEMBER)
    return delivery_page(trace, topic, machine.replica.archive, question, is_spent)


def delivery_page(
    trace: DeliveryLog,
    topic: TopicId,
    archive: Log,
    question: FetchDeliveries,
    is_spent: Spent = never_spent,
) -> DeliveryPage:
    """Return the recorded deliveries between two offsets, up to the size of a page.

    With a disk, only durable offsets are returned: a crash never revokes a returned offset.
    """
    kept_end = archive.durable_end if archive.is_durable else archive.end
    end = min(question.end, kept_end, trace.end(topic))
    page = _DeliveryColumns()
    scanned = inspected = 0
    for known in trace.read(topic, question.start, end, DELIVERIES_MAX):
        for segment in archive.stored(known.start, known.end, ANY_BYTE):
            for offset, key in zip(segment.rows.offsets, segment.rows.ids, strict=True):
                page.add(known, offset, key)
            scanned += segment.size_bytes
            if scanned >= SCANNED_BYTES_MAX or is_spent():
                return page.finished(question, min(segment.end, known.end), end)
        inspected += len(known.times)
        if inspected >= DELIVERIES_MAX:
            return page.finished(question, known.end, end)
    return page.finished(question, end, end)


class _DeliveryColumns:
    """Columns of a page of deliveries."""

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._times: list[int] = []
        self._hops, self._origins = bytearray(), bytearray()
        self._ids: list[bytes] = []

    def add(self, known: DeliveryRows, offset: int, key: bytes) -> None:
        """Add the delivery of the publication that is stored at an offset."""
        place = offset - known.start
        self._offsets.append(offset)
        self._times.append(known.times[place])
        self._hops.append(known.hops[place])
        self._origins.append(known.origins[place])
        self._ids.append(key)

    def finished(self, question: FetchDeliveries, reached: int, end: int) -> DeliveryPage:
        """Return the page; the next one starts at ``reached``."""
        return DeliveryPage(
            request=question.request,
            next=reached if reached < end else None,
            offsets=tuple(self._offsets),
            times=tuple(self._times),
            hops=bytes(self._hops),
            origins=bytes(self._origins),
            ids=b"".join(self._ids),
        )
