"""The ring of the demo: its processes, and all that is done to them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from shutil import rmtree
from time import monotonic
from typing import Final

from skipring.admin.chaos_client import ChaosClient
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.errors import SkipringError
from skipring.lab.demo.harm import flip_bits, scrambled
from skipring.lab.demo.press import Press
from skipring.lab.demo.processes import Processes, numbered
from skipring.lab.demo.sight import Lookout, Sight
from skipring.lab.demo.story import TOPIC, DemoCast, DemoPlan, DemoRole
from skipring.rpc.client import RpcClient
from skipring.wire.rpc import Address

START_S: Final = 60.0  # Our guess: it takes a second, but others use the machine too.
POLL_S: Final = 0.01


class LiveRing:
    """A supervisor and nodes as processes, somebody who looks at them, and one who publishes."""

    def __init__(self, plan: DemoPlan, directory: Path, processes: Processes) -> None:
        self.names = numbered(plan.n)
        self.witness = self.names[0]  # the one that nothing happens to but what happens to all
        self.rng = Random(plan.seed)  # of who is hit: nobody else draws from it
        self._seed = plan.seed
        self.directory = directory
        self._processes = processes

    # -- starting ------------------------------------------------------------------------------

    @asynccontextmanager
    async def supervised(self) -> AsyncIterator[None]:
        """Start the supervisor, and those who look and publish from outside."""
        self._processes.fork_supervisor()
        await self._listening([SUPERVISOR])
        async with RpcClient([self.supervisor], rng=Random()) as outsider:
            self._outsider = outsider
            self._lookout = Lookout(outsider, TOPIC)
            self.press = Press(outsider, TOPIC, self.places, Random(f"{self._seed}/orders"))
            yield

    async def start_nodes(self) -> None:
        """Start all nodes; returns once they listen."""
        for name in self.names:
            self._processes.fork_node(name, TOPIC)
        await self._listening(self.names)
        self._introduce()

    async def _listening(self, names: Iterable[str]) -> None:
        for name in names:
            await until(partial(self._processes.is_listening, name), f"{name} is silent")

    def _introduce(self) -> None:
        """Let those outside know where the nodes are, also while there is no supervisor."""
        self._outsider.book.learn(self.places())

    # -- what there is -------------------------------------------------------------------------

    @property
    def supervisor(self) -> Address:
        """Where the supervisor listens, or did."""
        processes = self._processes
        return (processes.running.get(SUPERVISOR) or processes.ended[SUPERVISOR]).address

    def places(self) -> dict[NodeId, Address]:
        """The nodes that live, and where they listen."""
        running = self._processes.running
        return {name: running[name].address for name in self._processes.nodes}

    def pids(self) -> dict[str, int]:
        """The processes that live."""
        return {name: process.pid for name, process in self._processes.running.items()}

    def cast(self) -> DemoCast:
        """What runs where."""
        running = self._processes.running.items()
        roles = (DemoRole(n, p.pid, p.address, self._processes.data(n).name) for n, p in running)
        return DemoCast(str(self.directory), tuple(roles))

    async def look(self, published: Iterable[bytes] | None = None) -> Sight:
        """See how the ring is, and who has what was published."""
        wanted = list(self.press.acknowledged if published is None else published)
        is_led = SUPERVISOR in self._processes.running
        look = self._lookout.look if is_led else self._lookout.look_at_nodes
        return await look(self._processes.nodes, wanted)

    async def tick(self) -> int | None:
        """How many rounds there have been."""
        return await self._lookout.tick(self.witness)

    # -- what is done to it --------------------------------------------------------------------

    async def kill(self, names: Iterable[str]) -> None:
        """Kill processes, all at once, as kill -9 does; returns once they are dead."""
        dying = list(names)
        for name in dying:
            self._processes.send_signal(name, signal.SIGKILL)
        for name in dying:
            await until(partial(self._has_ended, name), f"{name} still runs")

    def _has_ended(self, name: str) -> bool:
        return self._processes.status(name) is not None

    async def restart(self, names: Iterable[str]) -> None:
        """Start processes again as they were, with what is left of their data."""
        again = list(names)
        for name in again:
            self._processes.fork_again(name)
        await self._listening(again)
        self._introduce()

    def delete_database(self) -> None:
        """Delete all that a supervisor which was killed has known."""
        rmtree(self._processes.data(SUPERVISOR))

    def flip_bits(self, name: NodeId) -> int:
        """Damage the disk of a node that was killed; how many bits."""
        return flip_bits(self._processes.data(name), self.rng)

    async def scramble(self) -> None:
        """Damage the memory of everybody, and take half of their publications away."""
        saboteur = ChaosClient(self._outsider, TOPIC)
        await saboteur.apply(scrambled(TOPIC, await saboteur.members(), self._seed))


async def until(holds: Callable[[], bool], otherwise: str) -> None:
    """Wait for a condition; SkipringError if it does not come true in time."""
    deadline = monotonic() + START_S
    while not holds():
        if monotonic() > deadline:
            raise SkipringError(f"{otherwise} after {START_S:.0f} s")
        await asyncio.sleep(POLL_S)
