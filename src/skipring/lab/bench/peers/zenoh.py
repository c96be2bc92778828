"""Zenoh in peer mode: no broker, the subscribers have a session with the publisher each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from skipring.lab.bench.peers.run import TOPIC, BenchRun, Publisher, Receive, Subscribers


class ZenohPublisher(Publisher):
    """Listens, and waits rather than drops when a subscriber is slow."""

    async def connect(self) -> None:
        """Open the session that all others connect to."""
        import zenoh

        config = _config(listen=[f"tcp/{self.run.address}"], connect=[])
        self._session = await asyncio.to_thread(zenoh.open, config)
        self._publisher = self._session.declare_publisher(
            TOPIC, congestion_control=zenoh.CongestionControl.BLOCK
        )

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Publish these; Zenoh packs them itself."""
        for payload in payloads:
            self._publisher.put(payload)


class ZenohSubscribers(Subscribers):
    """Sessions with a callback each, called in Zenoh's own threads."""

    async def connect(self) -> None:
        """Open all sessions, one after the other."""
        import zenoh

        lock, self._open = Lock(), []
        for receive in self.receivers:
            config = _config(listen=[], connect=[f"tcp/{self.run.address}"])
            session = await asyncio.to_thread(zenoh.open, config)
            self._open.append((session, session.declare_subscriber(TOPIC, _taking(receive, lock))))


def _taking(receive: Receive, lock: Lock) -> Callable[[Any], None]:
    def take(sample: Any) -> None:
        payload = sample.payload.to_bytes()
        with lock:
            receive(payload)

    return take


def _config(*, listen: list[str], connect: list[str]) -> Any:
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


def publisher(run: BenchRun) -> Publisher:
    """The process that publishes."""
    return ZenohPublisher(run)


def subscribers(run: BenchRun, receivers: list[Receive]) -> Subscribers:
    """The process with all subscribers."""
    return ZenohSubscribers(run, receivers)
