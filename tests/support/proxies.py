"""A ring in one process whose network can be cut (``faults.proxies``)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec.structs import replace

from faults.proxies import Cut, Proxy, ProxyNetwork
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.node.host import NodeHost
from skipring.storage.store import LogStore
from tests.support.rings import LiveRing

__all__ = ["Cut", "ProxiedRing", "proxied_ring"]


class ProxiedRing(LiveRing):
    """Ring in which all processes are reached through proxies."""

    def __init__(self, tick_s: float) -> None:
        self.network = ProxyNetwork()
        self._proxies: list[Proxy] = []
        super().__init__(tick_s)

    async def _proxy(self, name: NodeId) -> Proxy:
        proxy = Proxy(self.network, name)
        self._proxies.append(proxy)
        await proxy.start()
        return proxy

    async def start(self) -> None:
        await super().start()
        proxy = await self._proxy(SUPERVISOR)
        proxy.forward_to(self.supervisor.address)
        self.settings = replace(self.settings, supervisors=(proxy.address,))

    async def join(self, name: NodeId, store: LogStore | None = None) -> NodeHost:
        proxy = await self._proxy(name)
        self.settings = replace(self.settings, advertised=proxy.address)
        node = await super().join(name, store)
        proxy.forward_to(node.address)
        return node

    async def stop(self) -> None:
        await super().stop()
        for proxy in self._proxies:
            await proxy.stop()


@asynccontextmanager
async def proxied_ring(*names: NodeId, tick_s: float = 0.05) -> AsyncIterator[ProxiedRing]:
    ring = ProxiedRing(tick_s)
    await ring.start()
    try:
        for name in names:
            await ring.join(name)
        yield ring
    finally:
        await ring.stop()
