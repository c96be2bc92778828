"""Hostile input derived from the samples: mutated frames, forged senders and bursts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from random import Random
from typing import Final

from faults.requests import TOPIC
from faults.samples import SAMPLES
from skipring.core.messages import names_another
from skipring.core.peers import NodeId, TopicId
from skipring.wire.bundle import Bundle, SmallMessage
from skipring.wire.codec import encode
from skipring.wire.handshake import Hello, Role, encode_greeting
from skipring.wire.rpc import Address, WireMessage

HEAD_BYTES: Final = 5  # length and kind of a frame
BURST_BYTES: Final = 256 * 1024
AT_ONCE: Final = 50  # Guess: connections that are open at the same time.
HURL_S: Final = 60.0  # Guess: a node under attack answers or closes the connection sooner.
NOWHERE: Final = "127.0.0.1:9"  # the address of an attacker: no process listens there
SOURCES: Final = 250  # loopback networks to dial from, so limits per address do not end a run

_FRAMES: Final = [encode(TOPIC, sample) for sample in SAMPLES]
_SMALL: Final = [each for each in SAMPLES if isinstance(each, SmallMessage)]


def bundled(*messages: tuple[TopicId, SmallMessage]) -> bytes:
    """Return the frame of messages that share one; they must fit."""
    bundle = Bundle()
    for topic, message in messages:
        bundle.add(topic, message)
    (made,) = bundle.frames(lambda nodes: dict.fromkeys(nodes, NOWHERE))
    assert made is not None
    return made


# All small messages in one group, each in a group of its own, and pairs.
_BUNDLES: Final = [
    bundled(*[(TOPIC, each) for each in _SMALL]),
    bundled(*[(f"{TOPIC}.{number}", each) for number, each in enumerate(_SMALL)]),
    *(bundled((TOPIC, one), (TOPIC, other)) for one, other in pairwise(_SMALL)),
]
_BODY_CHANCE: Final = 0.9  # probability of a mutation outside the head of the frame
_BYTES_MIN: Final = 6  # shorter frames are not mutated again


def mutated(rng: Random) -> bytes:
    """Return a valid frame with a few changed bytes, or a changed length."""
    return _mutation(rng, _FRAMES + _BUNDLES)


def mutated_bundle(rng: Random) -> bytes:
    """Return a frame of several messages with a few changed bytes, or a changed length."""
    return _mutation(rng, _BUNDLES)


def _mutation(rng: Random, frames: Sequence[bytes]) -> bytes:
    made = bytearray(rng.choice(frames))
    head = HEAD_BYTES if rng.random() < _BODY_CHANCE else 0
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(head, len(made)) if len(made) > head else 0
        match rng.randrange(4):
            case 0:
                made[place] = rng.randrange(256)
            case 1:
                made[place] ^= 1 << rng.randrange(8)
            case 2:
                made[place:place] = rng.randbytes(rng.randrange(1, 5))
            case _:
                del made[place : place + rng.randrange(1, 5)]
        if len(made) < _BYTES_MIN:
            break
    if head:
        made[:4] = (len(made) - 4).to_bytes(4, "big")
    return bytes(made)


def greeting(name: NodeId, role: Role = Role.NODE, address: Address = NOWHERE) -> bytes:
    """Return the first frame of a peer."""
    return encode_greeting(Hello(node=name, address=address, role=role))


def bursts() -> Mapping[str, bytes]:
    """Return 256 KiB of valid frames of every message type, and of several messages, by name."""
    named = {type(sample).__name__: frame for sample, frame in zip(SAMPLES, _FRAMES, strict=True)}
    named |= {"a bundle of a topic": _BUNDLES[0], "a bundle of topics": _BUNDLES[1]}
    return {name: frame * -(-BURST_BYTES // len(frame)) for name, frame in named.items()}


def forged(sender: NodeId) -> list[WireMessage]:
    """Return the samples whose claimed sender is not the peer that sends them."""
    return [sample for sample in SAMPLES if names_another(sample, sender)]


def forged_frames(sender: NodeId, count: int) -> bytes:
    """Return ``count`` frames with forged senders, of all types in turn, and of several."""
    messages = forged(sender)
    frames = [encode(TOPIC, each) for each in messages]
    frames.append(bundled(*[(TOPIC, each) for each in messages if isinstance(each, SmallMessage)]))
    return b"".join(frames[number % len(frames)] for number in range(count))


async def send_stream(address: Address, data: bytes, source: str = "") -> bool:
    """Connect, send a stream, and read until the peer closes; return True if it has answered.

    A process sends its greeting first, so an answer proves that it has accepted the connection.
    """
    has_answered = False
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    with socket.socket() as made, suppress(OSError, TimeoutError):
        made.setblocking(False)
        if source:
            made.bind((source, 0))
        async with asyncio.timeout(HURL_S):
            await loop.sock_connect(made, (host, int(port)))
            sending = asyncio.create_task(_send_all(made, data))
            while await loop.sock_recv(made, 1 << 16):
                has_answered = True
            sending.cancel()
    return has_answered


async def _send_all(made: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        await asyncio.get_running_loop().sock_sendall(made, data)
        made.shutdown(socket.SHUT_WR)


async def send_streams(addresses: list[Address], streams: Iterable[bytes]) -> int:
    """Send each stream on its own connection, to the addresses in turn; count the arrivals."""
    numbered, arrived = enumerate(streams), 0
    while some := list(islice(numbered, AT_ONCE)):
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(send_stream(addresses[n % len(addresses)], data, source_of(n)))
                for n, data in some
            ]
        arrived += sum(task.result() for task in tasks)
    return arrived


def mutations(rng: Random, count: int) -> Iterator[bytes]:
    """Yield streams of a greeting and a mutated frame."""
    for number in range(count):
        yield greeting(f"stranger{number % 1000}") + mutated(rng)


def source_of(number: int) -> str:
    """Return a loopback address to dial from."""
    return f"127.0.{1 + number // 200 % SOURCES}.{1 + number % 200}"
