"""skipring's newcomer: a node that joins a ring with a history, and stores all of it."""

from __future__ import annotations

from skipring.lab.bench.peers.ring import BenchMember
from skipring.lab.bench.peers.run import BenchRun, Newcomer, until
from skipring.lab.bench.stores import fill_store


class RingNewcomer(Newcomer):
    """A node with a data directory of its own."""

    async def fetch(self) -> None:
        """Join; read all, until it is on our disk too."""
        self._member = member = BenchMember(self.run, "newcomer", is_hurried=False)
        await member.join()
        while self.count < self.run.count:
            found = await member.subscription.read_many(timeout=self.run.deadline_s)
            if not found:
                return
            self.note_first()
            self.count += len(found)
        await until(lambda: member.is_durable, "a durable store", self.run.deadline_s)

    async def settle(self) -> None:
        """Wait until both ring neighbours have confirmed to have what we have."""
        await self._member.subscription.synced(timeout=self.run.deadline_s)

    async def leave(self) -> None:
        """Leave the ring, so that it is what it was."""
        await self._member.leave()


async def fill(run: BenchRun) -> None:
    """Put all on the disk of a node that does not run yet."""
    fill_store(run.directory, run.count, run.size)


def newcomer(run: BenchRun) -> Newcomer:
    """Who comes later."""
    return RingNewcomer(run)
