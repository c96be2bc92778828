"""Attacks: malformed frames, mutations of valid ones, and well-formed messages that are wrong."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from msgspec.msgpack import encode as pack
from msgspec.structs import asdict, replace

from skipring.core.batches import RecordBatch
from skipring.core.labels import CIRCLE, Label
from skipring.core.messages import (
    SESSION_MAX,
    CheckAndPublish,
    CheckLabel,
    CheckTrie,
    Digest,
    GetConfiguration,
    IHave,
    Introduce,
    IntroduceShortcut,
    Publications,
    PublishNew,
    RemoveConnections,
    ReportUnresponsive,
    SetConfiguration,
    Subscribe,
    TrieEqual,
    Unsubscribe,
    Want,
)
from skipring.core.peers import EdgeKind, Peer
from skipring.core.prefix import Prefix
from skipring.core.publications import ID_BYTES
from skipring.core.summaries import RangeSummary, Summary
from skipring.wire.framing import CONTROL, DATA, frame
from skipring.wire.handshake import VERSION
from skipring.wire.rpc import WireMessage
from tests.support.batches import batch
from tests.support.exchanges import HELLO, greeting_of, note
from tests.support.rings import DEADLINE_S, LOOPBACK, TOPIC
from tests.wire.samples import SAMPLES

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


async def send_stream(port: int, data: bytes) -> None:
    """Connect, send data, and wait until the other side has closed."""
    loop = asyncio.get_running_loop()
    with socket.socket() as made:
        made.setblocking(False)
        async with asyncio.timeout(DEADLINE_S):
            with suppress(ConnectionError):
                await loop.sock_connect(made, (LOOPBACK, port))
                await loop.sock_sendall(made, data)
                made.shutdown(socket.SHUT_WR)
                while await loop.sock_recv(made, 1 << 16):
                    pass


async def send_streams(ports: Sequence[int], frames: Sequence[bytes], at_once: int = 50) -> None:
    """Send each on its own connection, to one port after the other."""
    for start in range(0, len(frames), at_once):
        async with asyncio.TaskGroup() as group:
            for number, data in enumerate(frames[start : start + at_once], start):
                group.create_task(send_stream(ports[number % len(ports)], data))


# -- malformed frames ------------------------------------------------------------------------


def control(*fields: Any) -> bytes:  # noqa: ANN401  (whatever may be packed)
    return frame(pack([list(fields), TOPIC]), CONTROL)


def data(*fields: Any) -> bytes:  # noqa: ANN401
    return frame(pack([list(fields), TOPIC]), DATA)


def greeting(*fields: Any) -> bytes:  # noqa: ANN401
    return frame(pack(fields), CONTROL)


def new_batch(hops: int = 0, **changes: Any) -> list[Any]:  # noqa: ANN401
    """Return a PublishNew of a batch in which some fields are replaced."""
    fields = asdict(batch(topic=TOPIC)) | changes
    return [14, list(fields.values()), hops]


DEEP = b"\x91" * 5000
NOTE = note(1)[5:]  # the body
FIRST: dict[str, bytes] = {
    "another magic": greeting("other", 1, "b", "h:1", "node"),
    "another version": greeting("skipring", VERSION + 1, "b", "h:1", "node"),
    "a version below all": greeting("skipring", -1, "b", "h:1", "node"),
    "a version as text": greeting("skipring", "1", "b", "h:1", "node"),
    "another role": greeting("skipring", VERSION, "b", "h:1", "king"),
    "a name with a space": greeting("skipring", VERSION, "b b", "h:1", "node"),
    "a name that is long": greeting("skipring", VERSION, "b" * 65, "h:1", "node"),
    "the name of a client's queue": greeting("skipring", VERSION, "client/b", "", "client"),
    "no address": greeting("skipring", VERSION, "b", "", "node"),
    "an address without a port": greeting("skipring", VERSION, "b", "h", "node"),
    "too few fields": greeting("skipring", VERSION, "b"),
    "a map": frame(pack({"magic": "skipring"}), CONTROL),
    "no msgpack": frame(b"\xc1" * 9, CONTROL),
    "bad UTF-8": frame(b"\x95\xa8skipring\x02\xa1\xff\xa3h:1\xa4node", CONTROL),
    "a huge text": frame(b"\x95\xdb\xff\xff\xff\xff", CONTROL),
    "deep": frame(DEEP, CONTROL),
    "nothing": frame(b"", CONTROL),
    "a message": note(1),
    "a data frame": frame(HELLO[5:], DATA),
    "another protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "the start of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "no length": bytes(5),
    "a huge length": b"\xff\xff\xff\xff\0",
    "too long": (1 << 21).to_bytes(4, "big") + b"\1",
    "control too long": (1 << 15).to_bytes(4, "big") + b"\0",
    "an unknown kind": b"\0\0\0\1\3",
    "a supervisor": greeting_of("supervisor"),
}
LATER: dict[str, bytes] = {
    "a greeting again": HELLO,
    "an unknown tag": control(63),
    "a negative tag": control(-1),
    "a tag as text": control("9", "a", 1),
    "half a message": frame(NOTE[:-1], CONTROL),
    "more than a message": frame(NOTE + b"\0", CONTROL),
    "a message in a data frame": frame(NOTE, DATA),
    "data in a control frame": control(*new_batch()),
    "a number for a name": control(9, 7, 1),
    "a negative sum": control(9, "a", -1),
    "a label below 0": control(7, [[-1], "a"]),
    "an edge of a third kind": control(6, [[0], "a"], "XXX", True),
    "short ids cut off": control(15, "a", b"1234567", b"\1"),
    "a digest cut off": control(13, "a", b"1"),
    "a claim that is none": control(10, "a", [[b"\xff" * 50, b"", b"", b""]], 1),
    "a session below 0": control(10, "a", [], -1),
    "hops below 0": data(*new_batch(hops=-1)),
    "hops beyond counting": data(*new_batch(hops=256)),
    "a number below 0": data(*new_batch(first=-1)),
    "a batch without records": data(*new_batch(count=0)),
    "a batch of too many records": data(*new_batch(count=257)),
    "a batch with a body of text": data(*new_batch(body="text")),
    "a batch without a publisher": data(*new_batch(publisher="")),
    "a batch with an id cut off": data(*new_batch(id=b"1")),
    "a batch with a field too many": data(*new_batch(surplus=0)),
    "a body too long": data(*new_batch(body=bytes(600_000))),
    "a bad name": control(1, "a b"),
    "a count of 0": control(64, 1, 0),
    "a request below 0": control(64, -1, 1),
    "no topic": frame(pack([[9, "a", 1]]), CONTROL),
    "an empty topic": frame(pack([[9, "a", 1], ""]), CONTROL),
    "a topic of control characters": frame(pack([[9, "a", 1], "a\nb"]), CONTROL),
    "a topic too long": frame(pack([[9, "a", 1], "t" * 256]), CONTROL),
    "a hint about a stranger": frame(pack([[9, "a", 1], TOPIC, {"z": "h:1"}]), CONTROL),
    "a hint that leads nowhere": frame(pack([[9, "a", 1], TOPIC, {"a": "h"}]), CONTROL),
    "hints without end": frame(
        pack([[9, "a", 1], TOPIC, {f"n{number}": "h:1" for number in range(900)}]), CONTROL
    ),
    "bad UTF-8": frame(b"\x92\x93\x09\xa2\xff\xfe\x01\xa4news", CONTROL),
    "deep": frame(b"\x92\x93\x09" + DEEP, CONTROL),
    "deep in a field": frame(b"\x92\x93\x09\xa1a" + DEEP, CONTROL),
    "deep behind the rest": frame(b"\x93\x93\x09\xa1a\x01\xa4news\x80" + DEEP, CONTROL),
    "a huge array": frame(b"\x92\xdd\xff\xff\xff\xff", CONTROL),
    "a huge array of claims": frame(b"\x92\x94\x0a\xa1a\xdd\xff\xff\xff\xff", CONTROL),
    "too long": (1 << 21).to_bytes(4, "big") + b"\1",
    "control too long": (1 << 15).to_bytes(4, "big") + b"\0",
}


def malformed(rng: Random, count: int) -> list[bytes]:
    """Return streams that are refused, each with a different start."""
    whole = [*FIRST.values(), *(HELLO + later for later in LATER.values())]
    name = "stranger{}".format
    made = []
    for number in range(count):
        chosen = whole[number % len(whole)] if number < len(whole) else rng.choice(whole)
        if chosen.startswith(HELLO):  # each under another name
            chosen = greeting_of(name(number)) + chosen.removeprefix(HELLO)
        made.append(chosen)
    return made


# -- well-formed lies ------------------------------------------------------------------------


class Liar:
    """Generator of well-formed messages with wrong content."""

    def __init__(self, rng: Random, names: Sequence[str]) -> None:
        self._rng = rng
        self._names = names

    def _node(self) -> str:
        rng = self._rng
        return rng.choice(self._names) if rng.random() < 0.7 else f"ghost{rng.randrange(20)}"

    def _label(self) -> Label:
        rng = self._rng
        near = rng.random() < 0.8
        return Label.nth(rng.randrange(12)) if near else Label(rng.randrange(CIRCLE))

    def _peer(self) -> Peer:
        return Peer(self._label(), self._node())

    def _peer_or_none(self) -> Peer | None:
        return self._peer() if self._rng.random() < 0.7 else None

    def _claims(self) -> tuple[RangeSummary, ...]:
        rng = self._rng
        bits = "".join(rng.choices("01", k=rng.randrange(6)))
        prefix, below = Prefix.parse(bits), Prefix.parse(bits + rng.choice("01"))
        if rng.random() < 0.5:
            return (
                RangeSummary.make(prefix, [Summary(below, rng.randbytes(rng.choice((8, 16))))]),
            )
        return (RangeSummary.make(prefix, leaves=[rng.randbytes(8)]),)

    def _publication(self) -> RecordBatch:
        """Return a batch under its id, the id of another topic, or any other id."""
        rng = self._rng
        first = rng.choice((0, 1, rng.randrange(100), 2**63 - 1))
        topic = rng.choice((TOPIC, TOPIC, "elsewhere"))
        made = batch(rng.randbytes(3), publisher=self._node(), first=first, topic=topic)
        return replace(made, id=rng.randbytes(ID_BYTES)) if rng.random() < 1 / 3 else made

    def message(self) -> WireMessage:
        """Return a wrong message of any kind."""
        rng, node = self._rng, self._node
        session = rng.randrange(SESSION_MAX + 1)
        shorts = rng.randrange(4)
        label = self._label() if rng.random() < 0.8 else None
        kinds: list[Callable[[], WireMessage]] = [
            lambda: Subscribe(node()),
            lambda: Unsubscribe(node()),
            lambda: GetConfiguration(node(), rng.choice((None, rng.randrange(CIRCLE)))),
            lambda: SetConfiguration(self._peer_or_none(), label, self._peer_or_none()),
            lambda: CheckLabel(self._peer(), label, rng.choice(list(EdgeKind))),
            lambda: Introduce(self._peer(), rng.choice(list(EdgeKind)), rng.random() < 0.5),
            lambda: IntroduceShortcut(self._peer()),
            lambda: RemoveConnections(node()),
            lambda: Digest(node(), rng.randrange(CIRCLE)),
            lambda: CheckTrie(node(), self._claims(), session, rng.random() < 0.5),
            lambda: CheckAndPublish(node(), self._claims(), session, self._claims()),
            lambda: Publications((self._publication(),), session),
            lambda: TrieEqual(node(), rng.randbytes(16)),
            lambda: PublishNew(self._publication(), rng.randrange(256)),
            lambda: IHave(node(), rng.randbytes(8 * shorts), bytes(shorts)),
            lambda: Want(node(), rng.randbytes(8 * shorts), bytes(shorts)),
            lambda: ReportUnresponsive(node()),
            lambda: rng.choice(SAMPLES),
        ]
        return rng.choice(kinds)()
