"""Members with broken clocks: topics with a policy lose nothing that they retain, and agree."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from time import time_ns

import pytest

from faults.processes import SUPERVISOR, LiveProcesses, numbered, run_cli
from faults.requests import TOPIC, batches_at, publish_one, stranger
from skipring.core.batches import BatchRecord, RecordBatch, is_reserved

pytestmark = pytest.mark.heavy

TICK_S = 0.25
CLOCKS_TICKS = 72  # members send their clocks every 64 ticks
RIGHT = numbered(3)
OFFSETS_S = {"ahead": 7200, "behind": -10800}
KEYS = 40


def publish(ring: LiveProcesses, name: str, run: int) -> set[bytes]:
    """Publish a value of each key through a node, with times of this machine."""
    payloads = [b"%d.%d" % (run, key) for key in range(KEYS)]

    async def scene() -> None:
        async with stranger() as client:
            for key, payload in enumerate(payloads):
                record = BatchRecord(payload, time_ns() // 1000, b"%d" % key)
                made = RecordBatch.of(
                    [record], publisher="client", first=run * KEYS + key, topic=TOPIC
                )
                await publish_one(client, ring.place(name), made)

    asyncio.run(scene())
    return set(payloads)


def held(ring: LiveProcesses, name: str) -> set[bytes]:
    """Return the payloads that a node holds, without charters."""
    found = [each.records() for each in batches_at(ring.place(name), contents=True)]
    return {record.payload for records in found if not is_reserved(records) for record in records}


@pytest.mark.parametrize("policy", [("--max-age", "1h"), ("--compact",)], ids=["age", "compact"])
def test_two_broken_clocks_lose_nothing_that_is_retained(
    tmp_path: Path, policy: Sequence[str]
) -> None:
    with LiveProcesses(tmp_path, tick_s=TICK_S, has_metrics=True) as ring:
        ring.start_supervisor()
        ring.start(*RIGHT)
        for name, offset_s in OFFSETS_S.items():
            ring.start(name, options=("--chaos", "--clock-offset", str(offset_s)))
        ring.until_legitimate()
        run_cli("topic", "set", TOPIC, *policy, "--supervisor", ring.running[SUPERVISOR].address)
        retained = set[bytes]()
        for run, name in enumerate((RIGHT[0], "ahead", "behind")):
            made = publish(ring, name, run)
            retained = made if "--compact" in policy else retained | made
        end = ring.ticks(RIGHT[0]) + CLOCKS_TICKS
        ring.until(lambda: ring.ticks(RIGHT[0]) >= end)
        for name in (*RIGHT, *OFFSETS_S):
            ring.until(lambda: held(ring, name) == retained, lambda: f"{name} differs")  # noqa: B023
        assert [held(ring, name) for name in (*RIGHT, *OFFSETS_S)] == [retained] * (
            len(RIGHT) + len(OFFSETS_S)
        )
