"""GossipSub of py-libp2p: hosts that are connected to the publisher and to some of each other.

It is written for trio, so it runs in a thread beside the loop that drives it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from threading import Thread
from typing import Any, Final

from skipring.lab.bench.peers.run import TOPIC, BenchRun, Publisher, Receive, Subscribers, until

PROTOCOL: Final = "/meshsub/1.1.0"
DEGREE: Final = 6  # as libp2p recommends, and the bounds beside it
DEGREE_LOW: Final = 4
DEGREE_HIGH: Final = 12
NEIGHBOURS: Final = 3  # earlier subscribers that each connects to, besides the publisher
HEARTBEAT_S: Final = 1
MESSAGES_MAX_PER_S: Final = 1e9  # no limit
PUBLISHER_FILE: Final = "publisher.peer"


class TrioThread:
    """A thread in which trio runs, and hosts until the process ends."""

    def __init__(self, main: Callable[[TrioThread, AsyncExitStack], Awaitable[None]]) -> None:
        self.is_ready = False
        self.error: BaseException | None = None
        self._main = main
        self._token: Any = None
        self._thread = Thread(target=self._run, daemon=True)

    async def start(self) -> None:
        """Wait until what was to be done first is done."""
        self._thread.start()
        await until(lambda: self.is_ready or self.error, "hosts of libp2p")
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        import trio

        try:
            trio.run(self._work)
        except BaseException as error:  # noqa: BLE001  (whoever waits for us is told)
            self.error = error

    async def _work(self) -> None:
        import trio

        self._token = trio.lowlevel.current_trio_token()
        async with AsyncExitStack() as stack, trio.open_nursery() as self.nursery:
            await self._main(self, stack)
            self.is_ready = True
            await trio.sleep_forever()

    async def call(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run something in that thread, and wait for it."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        async def run() -> None:
            await function()
            loop.call_soon_threadsafe(done.set_result, None)

        self._token.run_sync_soon(self.nursery.start_soon, run)
        await done


class GossipPublisher(Publisher):
    """A host that publishes; the others connect to it."""

    async def connect(self) -> None:
        """Listen, and say who we are."""
        self._thread = TrioThread(self._begin)
        await self._thread.start()

    async def _begin(self, _: TrioThread, stack: AsyncExitStack) -> None:
        host, self._pubsub = await _host(stack, f"/tcp/{self.run.address.rpartition(':')[2]}")
        await self._pubsub.subscribe(TOPIC)
        unfinished = self.run.directory / f"{PUBLISHER_FILE}.new"
        unfinished.write_text(host.get_id().to_string(), encoding="ascii")
        unfinished.rename(self.run.directory / PUBLISHER_FILE)

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Publish these."""

        async def publish() -> None:
            for payload in payloads:
                await self._pubsub.publish(TOPIC, payload)

        await self._thread.call(publish)


class GossipSubscribers(Subscribers):
    """Hosts that read, in a mesh with the publisher."""

    async def connect(self) -> None:
        """Connect and subscribe, one after the other."""
        file = self.run.directory / PUBLISHER_FILE
        await until(file.exists, "the publisher")
        self._publisher = file.read_text(encoding="ascii")
        self._thread = TrioThread(self._begin)
        await self._thread.start()

    async def _begin(self, thread: TrioThread, stack: AsyncExitStack) -> None:
        from libp2p.peer.peerinfo import info_from_p2p_addr
        from multiaddr import Multiaddr

        port = self.run.address.rpartition(":")[2]
        addresses = [Multiaddr(f"/ip4/127.0.0.1/tcp/{port}/p2p/{self._publisher}")]
        for receive in self.receivers:
            host, pubsub = await _host(stack, "/tcp/0")
            subscription = await pubsub.subscribe(TOPIC)
            for address in dict.fromkeys((addresses[0], *addresses[-NEIGHBOURS:])):
                await host.connect(info_from_p2p_addr(address))
            addresses += host.get_addrs()[:1]
            thread.nursery.start_soon(partial(_read, subscription, receive))


async def _read(subscription: Any, receive: Receive) -> None:
    while True:
        receive((await subscription.get()).data)


async def _host(stack: AsyncExitStack, port: str) -> tuple[Any, Any]:
    """A host with GossipSub, until the process ends."""
    from libp2p import new_host
    from libp2p.pubsub.gossipsub import GossipSub
    from libp2p.pubsub.pubsub import Pubsub
    from libp2p.tools.anyio_service import background_trio_service
    from multiaddr import Multiaddr

    host = new_host()
    await stack.enter_async_context(host.run(listen_addrs=[Multiaddr(f"/ip4/127.0.0.1{port}")]))
    gossip = GossipSub(
        protocols=[PROTOCOL],
        degree=DEGREE,
        degree_low=DEGREE_LOW,
        degree_high=DEGREE_HIGH,
        heartbeat_interval=HEARTBEAT_S,
        spam_protection_enabled=False,
        max_messages_per_topic_per_second=MESSAGES_MAX_PER_S,
    )
    pubsub = Pubsub(host, gossip, strict_signing=False)  # as ours: links are trusted or secured
    for service in (gossip, pubsub):
        await stack.enter_async_context(background_trio_service(service))
    await pubsub.wait_until_ready()
    return host, pubsub


def publisher(run: BenchRun) -> Publisher:
    """The process that publishes."""
    return GossipPublisher(run)


def subscribers(run: BenchRun, receivers: list[Receive]) -> Subscribers:
    """The process with all subscribers."""
    return GossipSubscribers(run, receivers)
