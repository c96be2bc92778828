"""Hostile frames: whether they arrive, and which publications in them are valid."""

from __future__ import annotations

import asyncio
from random import Random

from skipring.core.messages import PublishNew
from skipring.core.publications import Publication
from skipring.lab.faults.frames import greeting, mutations, payloads_in, send_stream, send_streams
from skipring.lab.faults.requests import TOPIC
from skipring.lab.faults.samples import PUBLICATION
from skipring.wire.codec import encode
from tests.support.exchanges import play
from tests.support.rings import live_ring

UNUSED_ADDRESS = "127.0.0.1:1"


def stream(*payloads: bytes) -> bytes:
    made = [Publication(publisher="p", seq=0, payload=each, time=1) for each in payloads]
    return greeting("stranger") + b"".join(encode(TOPIC, PublishNew(each)) for each in made)


def test_payloads_of_valid_publications_are_found() -> None:
    assert payloads_in(stream(b"one", b"two")) == {b"one", b"two"}


def test_truncated_frames_and_frames_without_messages_have_no_payloads() -> None:
    assert payloads_in(stream(b"one")[:-1]) == set()
    assert payloads_in(greeting("stranger")) == set()
    assert payloads_in(bytes(100)) == set()


def test_some_mutations_publish_a_payload_that_differs_from_the_sample() -> None:
    found = [payloads_in(each) for each in mutations(Random(0), 5_000)]
    assert set().union(*found) - {PUBLICATION.payload}


def test_stream_to_a_closed_port_does_not_arrive() -> None:
    assert asyncio.run(send_stream(UNUSED_ADDRESS, stream(b"one"))) is False
    assert asyncio.run(send_streams([UNUSED_ADDRESS], [b""] * 3)) == 0


def test_stream_to_a_node_arrives() -> None:
    async def scene() -> None:
        async with live_ring("n0") as ring:
            assert await send_streams([ring.nodes["n0"].address], [stream(b"one")] * 3) == 3

    play(scene)
