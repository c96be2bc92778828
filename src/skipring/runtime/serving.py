"""Running a supervisor or a node as a process, until somebody asks it to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from time import time_ns
from typing import Final

from skipring.core.effects import Deliver
from skipring.core.peers import TopicId
from skipring.core.publications import Publication
from skipring.errors import InputError
from skipring.runtime.node import Node
from skipring.runtime.outsider import Outsider
from skipring.runtime.settings import Settings
from skipring.runtime.supervisor import SupervisorServer
from skipring.storage.identity import node_id
from skipring.storage.publications import PublicationStore
from skipring.storage.supervisor import SupervisorStore
from skipring.wire.runtime_messages import Address, Published

PORT_MAX: Final = 0xFFFF
LEAVING_S: Final = 5.0  # Our guess: as long as a person waits for a process to stop.

Announce = Callable[[str], None]


def split_address(text: str, what: str) -> tuple[str, int]:
    """Cut ``HOST:PORT``; without certificates only loopback is accepted."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > PORT_MAX:
        raise InputError(f"{what}: expected HOST:PORT, got {text[:80]!r}")
    if host not in ("localhost", "::1") and not host.startswith("127."):
        raise InputError(
            f"{what}: {host[:80]} can be reached from other machines, and there are no "
            "certificates; use an address such as 127.0.0.1"
        )
    return host, int(port)


async def serve_supervisor(
    settings: Settings, listen: str, data: Path | None, announce: Announce
) -> None:
    """Run a supervisor until it is asked to stop."""
    host, port = split_address(listen, "--listen")
    stop = _stop_event()
    with ExitStack() as stack:
        store = stack.enter_context(SupervisorStore.open(data)) if data is not None else None
        server = SupervisorServer(settings, rng=Random(), store=store)
        try:
            await server.start(host, port)
            announce(f"listening {server.address}")
            await stop.wait()
        finally:
            await server.close()


async def serve_node(
    settings: Settings,
    listen: str,
    topics: tuple[TopicId, ...],
    *,
    name: str | None,
    data: Path | None,
    announce: Announce,
) -> None:
    """Run a subscriber of some topics until it is asked to stop; then leave them."""
    host, port = split_address(listen, "--listen")
    for address in settings.supervisors:
        split_address(address, "--supervisor")
    stop = _stop_event()
    with ExitStack() as stack:
        store = stack.enter_context(PublicationStore.open(data)) if data is not None else None
        called = node_id(data, name) if data is not None else name or _any_name()
        node = Node(called, settings, rng=Random(), deliver=_ignore, store=store)
        try:
            await node.start(host, port)
            announce(f"listening {node.address}")
            for topic in topics:
                node.subscribe(topic)
            await stop.wait()
            await asyncio.gather(*(node.unsubscribe(topic, LEAVING_S) for topic in topics))
        finally:
            await node.close()


async def publish_texts(
    supervisors: tuple[Address, ...], topic: TopicId, texts: Iterable[str]
) -> list[Published]:
    """Publish texts through a member of a topic, in order."""
    for address in supervisors:
        split_address(address, "--supervisor")
    published = []
    async with Outsider(supervisors, rng=Random()) as outsider:
        for seq, text in enumerate(texts):
            publication = Publication(
                publisher=outsider.name, seq=seq, payload=text.encode(), time=time_ns() // 1000
            )
            published.append(await outsider.publish(topic, publication))
    return published


def _ignore(topic: TopicId, delivery: Deliver) -> None:
    """There is no application: the node is there to keep and to pass on."""


def _any_name() -> str:
    """A name for a node that keeps nothing."""
    return f"node-{Random().getrandbits(48):012x}"


def _stop_event() -> asyncio.Event:
    """An event that is set when somebody asks the process to stop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop
