"""Ring of transcriptions: subscribers and supervisor of the pseudocode, in random order."""

from __future__ import annotations

from random import Random
from typing import Any

from skipring.core.labels import Label
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.state import legitimate_state
from skipring.world.snapshot import Snapshot
from tests.paper.pseudocode import Tuple
from tests.paper.readings import ReadSubscriber, ReadSupervisor
from tests.paper.steps import METHODS, call, subscriber_value, transcribed

REQUESTS = ("Subscribe", "Unsubscribe", "GetConfiguration")
OF_THE_RING = {name: METHODS[name] for name in METHODS if "Publish" not in name}


class TranscribedRing:
    """Subscribers and supervisor from a snapshot, without its publications."""

    def __init__(self, start: Snapshot, seed: int, readings: frozenset[str] = frozenset()) -> None:
        self.rng = Random(f"transcribed/{seed}")
        self.readings = readings
        self.supervisor = ReadSupervisor(readings)
        self.supervisor.database = dict(start.supervisor.database)
        self.supervisor.next = start.supervisor.next
        self.subscribers: dict[NodeId, ReadSubscriber] = {}
        for node, state in start.subscribers.items():
            u = self.subscribers[node] = transcribed(node, state, readings)
            u.trie.publications = {}
            u.coin = lambda probability: self.rng.random() < probability
        found = [(parcel.to, call(parcel.message)) for parcel in start.channels]
        self.channels = [(to, *each) for to, each in found if each is not None]

    def run_round(self) -> None:
        """Deliver all present messages and run each Timeout once, as ``RandomOrder`` does.

        Messages sent during the round take part, so new ones may overtake old ones.
        """
        waiting: list[NodeId] = [SUPERVISOR, *self.subscribers]
        self.rng.shuffle(waiting)
        old = [True] * len(self.channels)
        while waiting or any(old):
            old += [False] * (len(self.channels) - len(old))
            pick = self.rng.randrange(len(waiting) + len(self.channels))
            if pick < len(waiting):
                process = self.process(waiting.pop())
                process.step("timeout")
                self.collect(process)
            else:
                del old[pick - len(waiting)]
                self.deliver(*self.channels.pop(pick - len(waiting)))

    def process(self, node: NodeId) -> ReadSubscriber | ReadSupervisor:
        """Return a process by name."""
        return self.supervisor if node == SUPERVISOR else self.subscribers[node]

    def deliver(self, to: NodeId, procedure: str, arguments: tuple[Any, ...]) -> None:
        """Execute a message at its receiver, if it exists and has the procedure."""
        is_known = to in self.subscribers or to == SUPERVISOR
        method = {**OF_THE_RING, "Linearize": "linearize"}.get(procedure)
        if is_known and method is not None and (to == SUPERVISOR) is (procedure in REQUESTS):
            self.process(to).step(method, *arguments)
            self.collect(self.process(to))

    def collect(self, process: ReadSubscriber | ReadSupervisor) -> None:
        """Move the messages that a process has sent into the channels."""
        self.channels += process.sent
        process.sent.clear()

    def is_legitimate(self) -> bool:
        """Return True if every variable is that of SR(n)."""
        database = self.supervisor.database
        names = [database.get(Label.nth(i).bits) for i in range(len(database))]
        known = [name for name in names if name is not None]
        if len(set(known)) != len(self.subscribers) or len(names) != len(known):
            return False
        for index, node in enumerate(known):
            u = self.subscribers[node]
            edges = [each and Tuple(*each) for each in (u.left, u.right, u.ring)]
            value = subscriber_value(legitimate_state(index, known))[:-1]
            if (u.label, *edges, u.shortcuts) != value:
                return False
        return True

    def rounds_to_legitimate(self, rounds_max: int) -> int | None:
        """Return the rounds until the ring is legitimate, or None if it takes longer."""
        for number in range(rounds_max + 1):
            if self.is_legitimate():
                return number
            self.run_round()
        return None
