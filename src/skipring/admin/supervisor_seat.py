"""Supervisor of a cluster in one process that can be restarted at the same address."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Final

from skipring.core.events import Overwritten
from skipring.core.peers import TopicId
from skipring.core.state import SupervisorState
from skipring.errors import InputError
from skipring.net.addresses import split_address
from skipring.node.settings import NodeSettings
from skipring.node.supervisor_host import SupervisorHost
from skipring.storage.supervisor_store import SupervisorStore
from skipring.wire.rpc import Address

LOOPBACK: Final = "127.0.0.1"


class RestartableSupervisor:
    """Supervisor that can stop and start again at the same address."""

    def __init__(self, settings: NodeSettings, directory: Path | None) -> None:
        self.server: SupervisorHost | None = None
        self.address: Address = f"{LOOPBACK}:0"  # picks a free port
        self._settings = settings
        self._directory = directory
        self._store: SupervisorStore | None = None
        self._kept: dict[TopicId, SupervisorState] = {}  # state of a stopped supervisor
        self._crashing: asyncio.Task[None] | None = None

    async def start(self, *, lose_data: bool = False) -> None:
        """Start a supervisor at the address."""
        if self.server is not None:
            raise InputError(f"the supervisor at {self.address} is running; stop it first")
        await self.stop()  # a crashed one may still be closing
        if lose_data:
            self._kept = {}
        if self._directory is not None:
            if lose_data:
                rmtree(self._directory, ignore_errors=True)
            self._store = SupervisorStore.open(self._directory)
        self.server = SupervisorHost(
            self._settings, rng=Random(0), store=self._store, crash=self._crash
        )
        host, port = split_address(self.address, "supervisor", is_secured=False)
        await self.server.start(host, port)
        self.address = self.server.address
        for topic, state in self._kept.items() if self._store is None else ():
            self.server.dispatch(topic, Overwritten(state))

    async def stop(self) -> None:
        """Stop the supervisor if it is running."""
        if self._crashing is not None:
            await self._crashing
        await self._stop()

    async def _stop(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            self._kept = {topic: server.state(topic) for topic in server.members()}
            await server.close()
        if self._store is not None:
            self._store.close()
            self._store = None

    def _crash(self) -> None:
        """Stop the supervisor instead of the process, which runs the whole cluster."""
        self._crashing = asyncio.get_running_loop().create_task(self._stop())

    def state(self, topic: TopicId) -> SupervisorState:
        """Return the database of a topic, or its last state if the supervisor is stopped."""
        if self.server is not None:
            return self.server.state(topic)
        return self._kept.get(topic, SupervisorState())
