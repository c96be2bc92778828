"""Rows of topics with a policy: kills during a reclaim, clocks, restores, forged charters."""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from time import time_ns
from typing import Final

from faults.frames import greeting, send_streams
from faults.judge import Ledger
from faults.load import publish_some
from faults.matrix import fault_row
from faults.processes import run_cli
from faults.programs import REFUSED, REFUSED_STATUS
from faults.requests import TOPIC, publish_one, stranger
from faults.rows.disks import HALF, JoinedReader, restore_in_another_order
from faults.rows.messages import STRANGER, addresses_of
from faults.shims import beside, clock_shim, set_clock
from faults.trial import NAMES, READER, FaultRing, FaultTrial
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.limits import NUMBER_MAX
from skipring.core.messages import PublishNew
from skipring.core.peers import SUPERVISOR
from skipring.core.retention.charter import Charter, Policy, charter_record
from skipring.wire.codec import encode

LIMIT: Final = "1M"  # segments have 64 KiB
PADDING: Final = bytes(8192)
GROUP: Final = 16
GROUPS: Final = 6  # in each repetition; nine groups reach the limit
KEPT_GROUPS: Final = 4  # certainly retained
HOUR_S: Final = 3600.0
RING_TICKS: Final = 8
CLOCKS_TICKS: Final = 72  # members send their clocks every 64 ticks


def _set_policy(ring: FaultRing, *options: str) -> None:
    supervisor = ring.running[SUPERVISOR].address
    run_cli("topic", "set", TOPIC, *options, "--supervisor", supervisor)
    ring.wait_ticks(RING_TICKS)


@fault_row(
    "trim-kill",
    "a node is killed while all drop publications beyond 1 MiB and reclaim their segments",
    "SIGKILL during 800 KiB of publications, restart; the newest 512 KiB are held",
    repeats=10,
    short=2,
)
def _trim_kill(trial: FaultTrial) -> None:
    with trial.ring() as ring, ThreadPoolExecutor(1) as pool:
        _set_policy(ring, "--max-bytes", LIMIT)
        known = _charters(ring)
        groups = [known]
        for number, victim in enumerate(trial.victims()):
            for part in range(GROUPS):
                payloads = [
                    f"trim{number}.{part}.{each}.".encode() + PADDING for each in range(GROUP)
                ]
                ledger = Ledger()
                ring.ledger.tried.update(payloads)
                places = [place for place in ring.places() if place[0] != victim]
                sent = pool.submit(publish_some, places, payloads, ledger)
                if part == GROUPS // 2:
                    ring.kill(victim)
                sent.result()
                groups.append(ledger.acknowledged)
            ring.restart(victim)
            ring.heal()
        ring.ledger.acknowledge_all([each for group in groups[-KEPT_GROUPS:] for each in group])


def _charters(ring: FaultRing) -> set[bytes]:
    """Return the payloads of charters, which the nodes hold and no publisher of the row sent."""
    found = set(ring.payloads(NAMES[0]))
    for each in found:
        ring.ledger.tolerate(each)
    return found


@fault_row(
    "clock-jumps-retention",
    "clocks go an hour ahead and back in a topic with an age limit, and all nodes are killed",
    "a shim before time.time_ns; 100 publications ahead, SIGKILL after the return, ahead again",
    repeats=2,
)
def _clock_jumps(trial: FaultTrial) -> None:
    with trial.ring(environment=clock_shim()) as ring:
        _set_policy(ring, "--max-age", "30d", "--max-bytes", "64K")  # segments have 4 KiB
        _charters(ring)
        for number in range(trial.repeats):
            _set_clocks(ring, HOUR_S)
            ring.run_publisher(f"ahead{number}", str(ring.data("writer")), HALF, called="writer")
            _set_clocks(ring, 0)
            ring.wait_ticks(CLOCKS_TICKS)
            ring.kill(*NAMES)
            for name in NAMES:
                ring.restart(name)
            ring.wait_ticks(RING_TICKS)  # doctor reports the hidden publications until then
            _set_clocks(ring, HOUR_S)
            ring.heal()
            for name in NAMES:
                ring.until_complete(name)


def _set_clocks(ring: FaultRing, ahead_s: float) -> None:
    for name in (*NAMES, "writer"):
        set_clock(ring.data(name), ahead_s)
    ring.wait_ticks(RING_TICKS)


@fault_row(
    "restored-compacted",
    "a reader's directory is restored, and its cursor is among publications that were superseded",
    "backup, 100 keys, restore, 20 published there, 100 keys again; the old cursor is refused",
    repeats=3,
)
def _restored_compacted(trial: FaultTrial) -> None:
    for number in range(trial.repeats):
        with trial.ring(*NAMES[:3]) as ring:
            ring.kill(READER)  # it gets superseded publications too
            _set_policy(ring, "--compact", "--max-bytes", "64K")  # segments have 4 KiB
            _charters(ring)
            reader = JoinedReader(ring, f"compacted{number}")
            data = ring.data(f"compacted{number}")
            _publish_keys(ring, "first", range(HALF))
            reader.read(HALF)
            shutil.copytree(data, beside(data, ".backup"))
            _publish_keys(ring, "second", range(HALF, 2 * HALF))
            reader.read(HALF)
            restore_in_another_order(ring, f"compacted{number}")
            kept = _publish_keys(ring, "third", range(2 * HALF))
            ring.restart(f"compacted{number}")  # it rewrites its segments
            ring.heal()
            ring.wait_ticks(RING_TICKS)
            ring.stop(f"compacted{number}")
            ring.heal()
            process = reader.start()
            ring.until_printed(process, 1)
            assert ring.lines(process)[0].startswith(REFUSED), "the cursor was accepted"
            assert ring.exit_status(process) == REFUSED_STATUS
            ring.ledger.acknowledge_all(kept)


def _publish_keys(ring: FaultRing, run: str, keys: range) -> list[bytes]:
    """Publish a value of each key through a node; return the payloads."""
    payloads = [f"{run}.{key}".encode() + bytes(200) for key in keys]
    ring.ledger.tried.update(payloads)
    first = time_ns()

    async def scene() -> None:
        async with stranger() as client:
            for number, payload in zip(keys, payloads, strict=True):
                record = BatchRecord(payload, time_ns() // 1000, b"key%d" % number)
                made = RecordBatch.of(
                    [record], publisher="client", first=first + number, topic=TOPIC
                )
                await publish_one(client, ring.place(NAMES[0]), made)

    asyncio.run(scene())
    return payloads


@fault_row(
    "forged-charter",
    "a charter of a stranger that acts at once and has the highest epoch",
    "PublishNew with effective_from 0 and epoch 2^63-1; nothing is dropped before the delay",
    repeats=3,
    short=1,
)
def _forged_charter(trial: FaultTrial) -> None:
    with trial.ring(*NAMES[:3]) as ring:
        ring.publish_some(HALF)
        for number in range(trial.repeats):
            charter = Charter(
                epoch=NUMBER_MAX,
                stamp=time_ns() // 1000,
                effective_from=0,
                policy=Policy(max_count=1 + number),
            )
            record = charter_record(charter)
            ring.ledger.tolerate(record.payload)
            made = RecordBatch.of([record], publisher="stranger", first=number, topic=TOPIC)
            stream = greeting(STRANGER) + encode(TOPIC, PublishNew(made))
            asyncio.run(send_streams(addresses_of(ring, NAMES[number % 3]), [stream]))
            ring.wait_ticks(2 * RING_TICKS)
            ring.heal()
