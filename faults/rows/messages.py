"""Rows of hostile messages: bursts, mutations, forged senders, expensive requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

from msgspec.msgpack import encode as pack
from msgspec.structs import replace

from faults.frames import bursts, forged_frames, greeting, mutations, send_streams
from faults.matrix import fault_row
from faults.requests import TOPIC, fetch_all, surveyed
from faults.samples import BATCH, RECORD, SAMPLES, SCANS
from faults.trial import HOLDER, NAMES, FaultRing, FaultTrial, history
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.log_messages import FetchLog
from skipring.core.messages import PublishNew
from skipring.core.peers import SUPERVISOR
from skipring.lab.usage import MIB, resident_bytes_of
from skipring.wire.codec import encode
from skipring.wire.framing import DATA, frame
from skipring.wire.handshake import Role
from skipring.wire.rpc import REQUEST_TYPES, Address

OTHERS: Final = ("v", "w", "x", "y", "z")  # the samples do not name these nodes
GROWTH_BYTES_MAX: Final = 64 * MIB  # Requirement, for 100,000 mutated frames.
STRANGER: Final = "stranger"
FORGED: Final = 10_000
ARRIVED_MIN: Final = 0.95  # Guess: the share of connections that a process under load accepts.
REQUEST_BYTES: Final = 110_000
HISTORY: Final = 20_000
SCAN_BITS: Final = 8  # a scan for one batch in 256


def addresses_of(ring: FaultRing, *names: str) -> list[Address]:
    """Return the addresses at which processes listen."""
    return [ring.running[name].address for name in names]


@contextmanager
def bounded_growth(ring: FaultRing, *names: str) -> Iterator[None]:
    """Fail if the resident memory of a process grows by more than 64 MiB."""
    pids = {name: ring.running[name].pid for name in names}
    before = {name: resident_bytes_of(pid) for name, pid in pids.items()}
    yield
    for name, pid in pids.items():
        growth = resident_bytes_of(pid) - before[name]
        assert growth <= GROWTH_BYTES_MAX, f"{name} grew by {growth / MIB:.0f} MiB"


@fault_row(
    "burst",
    "256 KiB of every valid message type, and of bundles, as a node and as a client",
    "generated from the wire samples, to a node and to the supervisor",
    repeats=len(bursts()),
)
def _burst(trial: FaultTrial) -> None:
    with trial.ring(*OTHERS) as ring:
        ring.publish_some(200)
        ring.ledger.tolerate(RECORD.payload)  # some types publish it
        targets = addresses_of(ring, OTHERS[0], SUPERVISOR)
        with bounded_growth(ring, OTHERS[0], SUPERVISOR):
            for number, (_, data) in enumerate(list(bursts().items())[: trial.repeats]):
                for role in (Role.NODE, Role.CLIENT):
                    streams = [greeting("a", role) + data] * len(targets)
                    asyncio.run(send_streams(targets, streams))
                if number % 10 == 0:
                    ring.publish_some(10)
        assert not set(ring.evicted()) & set(OTHERS), f"evicted: {ring.evicted()}"


@fault_row(
    "mutated",
    "100,000 mutated frames",
    "one connection each, to a node and to the supervisor; RSS grows by 64 MiB at most",
    repeats=100_000,
    short=1_000,
)
def _mutated_frames(trial: FaultTrial) -> None:
    with trial.ring(*OTHERS) as ring:
        ring.ledger.tolerate(RECORD.payload)
        targets = addresses_of(ring, OTHERS[0], SUPERVISOR)
        streams = mutations(Random(trial.repeats), trial.repeats)
        with ring.load(), bounded_growth(ring, OTHERS[0], SUPERVISOR):
            arrived = asyncio.run(send_streams(targets, streams))
        assert arrived >= ARRIVED_MIN * trial.repeats, f"{arrived} of {trial.repeats} arrived"


@fault_row(
    "forged",
    "10,000 frames with a forged sender, of every message that names one (P1)",
    "to a node and to the supervisor; each is counted, RSS grows by 64 MiB at most",
    repeats=FORGED,
    short=1_000,
)
def _forged_senders(trial: FaultTrial) -> None:
    with trial.ring() as ring:  # the samples name a and b, which are members here
        names = ("c", SUPERVISOR)
        stream = greeting(STRANGER) + forged_frames(STRANGER, trial.repeats)
        with ring.load(), bounded_growth(ring, *names):
            asyncio.run(send_streams(addresses_of(ring, *names), [stream] * len(names)))
        for name in names:
            dropped = ring.metric(name, "skipring_dropped_total", reason="sender mismatch")
            assert dropped >= trial.repeats, f"{name} dropped {dropped:.0f} of {trial.repeats}"


@fault_row(
    "wide-record",
    "a batch with 900 KB in an unknown field, or a record with 400 KB in one (P3)",
    "PublishNew from a stranger; the id of the record's batch is right",
    repeats=5,
)
def _wide_record(trial: FaultTrial) -> None:
    with trial.ring() as ring:
        for number in range(trial.repeats):
            fields = [STRANGER, number, 1, BATCH.body, False, BATCH.id, bytes(900_000)]
            body = pack([[b"wide", 1, None, {}, bytes(400_000)]])
            wide = RecordBatch(STRANGER, number, 1, body).with_id(TOPIC)
            stream = greeting(STRANGER) + encode(TOPIC, PublishNew(wide))
            stream += frame(pack([[14, fields, 0], TOPIC]), DATA)
            asyncio.run(send_streams(addresses_of(ring, "a"), [stream]))
            ring.publish_some(10)


@fault_row(
    "forged-batch",
    "batches under the id of others, with unreadable bodies, and with wrong numbers of records",
    "PublishNew from a stranger; a member drops and counts them, and publishes the genuine one",
    repeats=5,
)
def _forged_batch(trial: FaultTrial) -> None:
    with trial.ring() as ring:
        for number in range(trial.repeats):
            payloads = [f"genuine{number}.{each}".encode() for each in range(2)]
            records = [BatchRecord(payload, 1) for payload in payloads]
            genuine = RecordBatch.of(records, publisher=STRANGER, first=2 * number, topic=TOPIC)
            other = RecordBatch.of([RECORD], publisher=STRANGER, first=2 * number, topic=TOPIC)
            forged = (
                replace(other, id=genuine.id),
                replace(genuine, count=3, id=genuine.id),
                replace(genuine, count=3).with_id(TOPIC),
                replace(genuine, body=genuine.body[:-1]).with_id(TOPIC),
                replace(genuine, body=genuine.body + b"\0").with_id(TOPIC),
            )
            stream = b"".join(encode(TOPIC, PublishNew(each)) for each in (*forged, genuine))
            ring.ledger.acknowledge_all(payloads)
            asyncio.run(send_streams(addresses_of(ring, "a"), [greeting(STRANGER) + stream]))
            ring.heal()
            dropped = ring.metric("a", "skipring_dropped_total", reason="invalid batch")
            sent = (number + 1) * len(forged)
            assert dropped == sent, f"a dropped {dropped:.0f} of {sent}"


@fault_row(
    "forged-number",
    "a publication under another name with the number 2^62-1 (D4)",
    "PublishNew from a stranger; the publisher runs again",
    repeats=3,
)
def _forged_number(trial: FaultTrial) -> None:
    with trial.ring(*NAMES[:3]) as ring:
        place = str(ring.data("writer"))
        for number in range(trial.repeats):
            payload = f"forged{number}".encode()
            ring.ledger.attempt(payload)
            record = BatchRecord(payload, 1)
            made = RecordBatch.of([record], publisher="writer", first=(1 << 62) - 1, topic=TOPIC)
            stream = greeting(STRANGER) + encode(TOPIC, PublishNew(made))
            asyncio.run(send_streams(addresses_of(ring, "a"), [stream]))
            ring.run_publisher(f"writer{number}", place, 20, called="writer")
        ring.start("writer")
        ring.heal()
        numbers = [each for each in ring.numbers("a", "writer") if each < (1 << 62) - 1]
        assert len(numbers) == len(set(numbers)) == 20 * trial.repeats, "a number was issued twice"


@fault_row(
    "requests",
    "110 KB of every request, and of those that read or scan everything (P2)",
    "from the wire samples, as a client, to a node with 20,000 publications",
    repeats=3,
)
def _expensive_requests(trial: FaultTrial) -> None:
    with trial.ring(HOLDER, "b", "c", before=history(HISTORY)) as ring:
        survey = surveyed(ring.place(HOLDER))
        scan = FetchLog(1, survey.store, survey.epoch, 0, survey.end, SCAN_BITS, 255, True)
        samples = [each for each in SAMPLES if type(each) in REQUEST_TYPES]
        everything = [fetch_all(0, contents=contents)(1) for contents in (True, False)]
        requests = [*everything, scan, *SCANS, *samples]
        ring.ledger.tolerate(RECORD.payload)  # one of them publishes it
        target = addresses_of(ring, HOLDER)
        for _ in range(trial.repeats):
            with ring.load() as load:
                for request in requests:
                    each = encode(TOPIC, request)
                    stream = greeting(STRANGER, Role.CLIENT) + each * (REQUEST_BYTES // len(each))
                    arrived = asyncio.run(send_streams(target, [stream]))
                    assert arrived == 1, f"no {type(request).__name__} arrived"
                    ring.await_load(load, 5)
        ring.check_none_evicted()
