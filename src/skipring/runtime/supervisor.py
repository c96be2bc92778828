"""A supervisor process: lets subscribers in and out, and sees nothing of what they publish."""

from __future__ import annotations

from random import Random
from typing import Self

from skipring.core.effects import Effect
from skipring.core.peers import SUPERVISOR, TopicId
from skipring.core.state import SupervisorState
from skipring.core.topics import SupervisorTopics
from skipring.runtime.addresses import AddressBook
from skipring.runtime.driver import Driver
from skipring.runtime.links import Links
from skipring.runtime.settings import Settings
from skipring.runtime.ticker import Ticker
from skipring.wire.greeting import Greeting, Role
from skipring.wire.runtime_messages import Address


class SupervisorServer:
    """Serves the topics of one supervisor over sockets."""

    def __init__(self, settings: Settings, *, rng: Random) -> None:
        self._topics = SupervisorTopics(config=settings.config)
        book = AddressBook()
        self._driver = Driver(
            self._topics, node=SUPERVISOR, book=book, supervisors=(), keep=_nothing_to_keep
        )
        greeting = Greeting(node=SUPERVISOR, address="", role=Role.SUPERVISOR)
        self.links = Links(greeting, book, self._driver.receive, rng)
        self._driver.links = self.links
        self._ticker = Ticker(self._driver.tick, settings.tick_s, rng)
        self.address: Address = ""

    async def start(self, host: str, port: int) -> Self:
        """Listen; port 0 picks a free one."""
        self.address = await self.links.listen(host, port)
        self._ticker.start()
        return self

    def state(self, topic: TopicId) -> SupervisorState:
        """The database of a topic as a value."""
        machine = self._topics.machine(topic)
        return machine.state() if machine is not None else SupervisorState()

    async def close(self) -> None:
        """Stop serving."""
        self._ticker.stop()
        await self.links.close()


def _nothing_to_keep(topic: TopicId, effect: Effect) -> None:
    raise AssertionError(f"a supervisor only sends, in {topic} it wants {effect}")
