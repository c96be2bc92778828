"""Hostile frames: whether they arrive, and which publications in them are valid."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

from msgspec import Struct

from faults.frames import greeting, mutations, send_stream, send_streams
from faults.requests import TOPIC, batch_of
from faults.samples import BATCH
from skipring.core.batches import RecordBatch
from skipring.core.messages import PublishNew
from skipring.errors import FramingError, MessageError
from skipring.wire.codec import decode, encode
from skipring.wire.framing import FrameReader
from tests.support.exchanges import play
from tests.support.rings import live_ring

UNUSED_ADDRESS = "127.0.0.1:1"


def stream(*payloads: bytes) -> bytes:
    made = map(batch_of, payloads)
    return greeting("stranger") + b"".join(encode(TOPIC, PublishNew(each)) for each in made)


def batches_in(data: bytes) -> list[RecordBatch]:
    """Return the batches in the valid messages of a stream."""
    found: list[RecordBatch] = []
    with suppress(FramingError):
        for each in FrameReader().feed(data):
            with suppress(MessageError):
                collect(decode(each).message, found)
    return found


def collect(value: object, found: list[RecordBatch]) -> None:
    match value:
        case RecordBatch():
            found.append(value)
        case Struct():
            for name in value.__struct_fields__:
                collect(getattr(value, name), found)
        case tuple():
            for each in value:
                collect(each, found)


def test_no_mutation_contains_a_genuine_batch_other_than_the_sample() -> None:
    found = [each for data in mutations(Random(0), 5_000) for each in batches_in(data)]
    altered = [each for each in found if each.body and each != BATCH]
    assert altered  # the codec accepts them, and members verify the ids
    assert not any(each.is_genuine(TOPIC) for each in altered)


def test_stream_to_a_closed_port_does_not_arrive() -> None:
    assert asyncio.run(send_stream(UNUSED_ADDRESS, stream(b"one"))) is False
    assert asyncio.run(send_streams([UNUSED_ADDRESS], [b""] * 3)) == 0


def test_stream_to_a_node_arrives() -> None:
    async def scene() -> None:
        async with live_ring("n0") as ring:
            assert await send_streams([ring.nodes["n0"].address], [stream(b"one")] * 3) == 3

    play(scene)
