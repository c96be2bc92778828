"""Memory of nodes while large records pass through them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from skipring.core.effects import Deliver
from skipring.core.limits import PAYLOAD_BYTES_MAX
from skipring.storage.store import LogStore
from tests.support.rings import TOPIC, live_ring, until

RECORDS = 100
GROWTH_BYTES_MAX = 24 << 20  # a quarter of what two nodes store


@pytest.mark.slow
async def test_large_records_do_not_stay_in_memory(tmp_path: Path) -> None:
    """Two members store 100 records of 512 KiB each, 100 MiB in all."""
    delivered = [0]

    def count(delivery: Deliver) -> None:
        delivered[0] += sum(map(len, delivery.records))

    with LogStore.open(tmp_path / "a") as first, LogStore.open(tmp_path / "b") as second:
        async with live_ring() as ring:
            for name, store in (("a", first), ("b", second)):
                (await ring.join(name, store)).attach(TOPIC, count)
            await ring.wait_healthy()
            tracemalloc.start()
            try:
                for number in range(RECORDS):
                    await ring.publish("a", bytes([number]) * PAYLOAD_BYTES_MAX)
                    expected = 2 * (number + 1)
                    await until(lambda: delivered[0] == expected)  # noqa: B023
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            logs = [store.log(TOPIC) for store in (first, second)]
            await until(lambda: all(log.durable_end == RECORDS for log in logs))
    assert peak < GROWTH_BYTES_MAX
