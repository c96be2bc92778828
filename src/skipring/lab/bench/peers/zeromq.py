"""ZeroMQ PUB/SUB with pyzmq: drained by hand, and through zmq.asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from skipring.lab.bench.peers.run import BenchRun, Publisher, Receive, Subscribers

DRAINED_AT_ONCE: Final = 500  # Our guess: then the other sockets have their turn.


class ZeromqPublisher(Publisher):
    """One PUB socket without a limit."""

    async def connect(self) -> None:
        """Listen."""
        import zmq

        self._socket = zmq.Context().socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.bind(f"tcp://{self.run.address}")

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Publish these; threads of ZeroMQ pack and write them."""
        for payload in payloads:
            self._socket.send(payload)


class DrainedSubscribers(Subscribers):
    """Plain sockets, read until they are empty whenever the loop sees something."""

    async def connect(self) -> None:
        """Connect and subscribe."""
        import zmq

        context, loop = zmq.Context(), asyncio.get_running_loop()
        self._sockets = []
        for receive in self.receivers:
            socket = _subscribed(context, self.run)
            drain = _draining(socket, receive)
            loop.add_reader(socket.getsockopt(zmq.FD), drain)
            loop.call_soon(drain)  # what came before is not told again
            self._sockets.append(socket)


class AsyncioSubscribers(Subscribers):
    """Sockets of zmq.asyncio with a task each."""

    async def connect(self) -> None:
        """Connect and subscribe."""
        from zmq.asyncio import Context

        context = Context()
        self._reading = [
            asyncio.create_task(_read(_subscribed(context, self.run), receive))
            for receive in self.receivers
        ]


def _subscribed(context: Any, run: BenchRun) -> Any:
    import zmq

    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.connect(f"tcp://{run.address}")
    socket.subscribe(b"")
    return socket


def _draining(socket: Any, receive: Receive) -> Callable[[], None]:
    import zmq

    read, none_left, at_once, loop = socket.recv, zmq.Again, zmq.NOBLOCK, asyncio.get_running_loop()

    def drain() -> None:
        try:
            for _ in range(DRAINED_AT_ONCE):
                receive(read(at_once))
        except none_left:
            return
        loop.call_soon(drain)

    return drain


async def _read(socket: Any, receive: Receive) -> None:
    while True:
        receive(await socket.recv())


def publisher(run: BenchRun) -> Publisher:
    """The process that publishes."""
    return ZeromqPublisher(run)


def subscribers(run: BenchRun, receivers: list[Receive]) -> Subscribers:
    """The process with all subscribers."""
    kind = AsyncioSubscribers if run.system == "zeromq-asyncio" else DrainedSubscribers
    return kind(run, receivers)
