"""Systems without a broker: Zenoh in peer mode and ZeroMQ PUB/SUB."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final

from skipring.lab.bench.run import TOPIC, BenchRun
from skipring.lab.bench.worker import Publisher, Receive, Subscribers

DRAINED_AT_ONCE: Final = 500  # Guess: then the other sockets get a turn.


# -- Zenoh: each subscriber has a session with the publisher ----------------------------------


class ZenohPublisher(Publisher):
    """Publisher that listens, and blocks while a subscriber is slow."""

    async def connect(self) -> None:
        """Open the session that all others connect to."""
        import zenoh

        config = _zenoh_config(listen=[f"tcp/{self.run.address}"], connect=[])
        self._session = await asyncio.to_thread(zenoh.open, config)
        self._publisher = self._session.declare_publisher(
            TOPIC, congestion_control=zenoh.CongestionControl.BLOCK
        )

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Publish; Zenoh batches."""
        for payload in payloads:
            self._publisher.put(payload)


class ZenohSubscribers(Subscribers):
    """Sessions whose callbacks run in threads of Zenoh."""

    async def connect(self) -> None:
        """Open all sessions one after the other."""
        import zenoh

        lock, self._open = Lock(), []
        for receive in self.receivers:
            config = _zenoh_config(listen=[], connect=[f"tcp/{self.run.address}"])
            session = await asyncio.to_thread(zenoh.open, config)
            handler = _zenoh_handler(receive, lock)
            self._open.append((session, session.declare_subscriber(TOPIC, handler)))


def _zenoh_handler(receive: Receive, lock: Lock) -> Callable[[Any], None]:
    def on_sample(sample: Any) -> None:
        payload = sample.payload.to_bytes()
        with lock:
            receive(payload)

    return on_sample


def _zenoh_config(*, listen: list[str], connect: list[str]) -> Any:
    import zenoh

    config = zenoh.Config()
    for name, value in (
        ("mode", "peer"),
        ("scouting/multicast/enabled", False),
        ("scouting/gossip/enabled", False),
        ("listen/endpoints", listen),
        ("connect/endpoints", connect),
    ):
        config.insert_json5(name, json.dumps(value))
    return config


# -- ZeroMQ: plain sockets drained by the loop, and zmq.asyncio -------------------------------


class ZeromqPublisher(Publisher):
    """Publisher with one PUB socket without a limit."""

    async def connect(self) -> None:
        """Listen."""
        import zmq

        self._socket = zmq.Context().socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.bind(f"tcp://{self.run.address}")

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Publish; threads of ZeroMQ batch and write."""
        for payload in payloads:
            self._socket.send(payload)


class ZeromqSubscribers(Subscribers):
    """Plain sockets, read until empty when the loop reports them readable."""

    async def connect(self) -> None:
        """Connect and subscribe."""
        import zmq

        context, loop = zmq.Context(), asyncio.get_running_loop()
        self._sockets = []
        for receive in self.receivers:
            socket = _zeromq_socket(context, self.run)
            drain = _zeromq_drain(socket, receive)
            loop.add_reader(socket.getsockopt(zmq.FD), drain)
            loop.call_soon(drain)  # messages that arrived before are not reported
            self._sockets.append(socket)


class ZeromqAsyncioPublisher(ZeromqPublisher):
    """The same publisher."""


class ZeromqAsyncioSubscribers(Subscribers):
    """Sockets of zmq.asyncio with one reading task each."""

    async def connect(self) -> None:
        """Connect and subscribe."""
        from zmq.asyncio import Context

        context = Context()
        self._tasks = [
            asyncio.create_task(_read_zeromq(_zeromq_socket(context, self.run), receive))
            for receive in self.receivers
        ]


def _zeromq_socket(context: Any, run: BenchRun) -> Any:
    import zmq

    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.connect(f"tcp://{run.address}")
    socket.subscribe(b"")
    return socket


def _zeromq_drain(socket: Any, receive: Receive) -> Callable[[], None]:
    import zmq

    read, is_empty, at_once, loop = socket.recv, zmq.Again, zmq.NOBLOCK, asyncio.get_running_loop()

    def drain() -> None:
        try:
            for _ in range(DRAINED_AT_ONCE):
                receive(read(at_once))
        except is_empty:
            return
        loop.call_soon(drain)

    return drain


async def _read_zeromq(socket: Any, receive: Receive) -> None:
    while True:
        receive(await socket.recv())
