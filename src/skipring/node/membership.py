"""Membership: the supervisor of each topic, and the connection to it.

A node obeys only the supervisor of the topic, and only over a connection that the node has dialled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from skipring.core.effects import Send
from skipring.core.messages import GetConfiguration, SetConfiguration, Unsubscribe
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.core.topics import SubscriberTopics
from skipring.net.addresses import supervisor_at, supervisor_of
from skipring.net.transport import Transport
from skipring.node.sender import Driver
from skipring.observability.logs import logger
from skipring.wire.codec import encode
from skipring.wire.rpc import Address, ConfigurationAck, WireMessage

_SUPERVISORS: Final = supervisor_at("")  # how the names of all supervisors begin

_LOG: Final = logger("membership")


class Membership:
    """What one node has to do with supervisors."""

    def __init__(
        self, node: NodeId, topics: SubscriberTopics, driver: Driver, links: Transport
    ) -> None:
        self.refusals: dict[TopicId, str] = {}  # why a supervisor does not let us in
        self._node = node
        self._topics = topics
        self._driver = driver
        self._links = links
        self._joined: set[TopicId] = set()
        self._away: set[Address] = set()  # supervisors without a link at the last tick
        self._reported: dict[Address, str] = {}  # of those, what was logged last
        links.on_unreachable = self._on_unreachable

    # -- what supervisors say ----------------------------------------------------------------

    def is_supervisor(self, sender: NodeId) -> bool:
        """True if it is a supervisor who speaks, of whatever topic."""
        return sender.startswith(_SUPERVISORS)

    def is_obeyed(self, sender: NodeId, topic: TopicId, message: WireMessage) -> bool:
        """True if it is the topic's own supervisor who speaks.

        Another one was the topic's once, and may still count on us: it is asked to forget us.
        """
        if self._driver.supervisors and sender == supervisor_at(self._driver.supervisor_of(topic)):
            return True
        self._links.counts["not the topic's supervisor"] += 1
        if isinstance(message, SetConfiguration) and message.label is not None:
            self._links.send(sender, encode(topic, Unsubscribe(self._node)))
        return False

    def on_heard(self, topic: TopicId, message: WireMessage) -> None:
        """The topic's supervisor has said something: let it know that a configuration has come."""
        if isinstance(message, SetConfiguration):
            self.refusals.pop(topic, None)
            self._driver.say(topic, SUPERVISOR, ConfigurationAck())

    def on_refused(self, topic: TopicId, reason: str) -> None:
        """The topic's supervisor does not let us in."""
        if self.refusals.get(topic) != reason:
            _LOG.warning("join_refused", topic=topic, reason=reason)
        self.refusals[topic] = reason

    # -- keeping in touch --------------------------------------------------------------------

    def on_tick(self) -> None:
        """Ask supervisors to which we have no link: they reach us only over one that we dial."""
        supervisors = {topic: self._driver.supervisor_of(topic) for topic in self._subscribed()}
        away = {
            address
            for address in set(supervisors.values())
            if not self._links.is_linked(supervisor_at(address))
        }
        for topic, machine in self._topics.machines():
            if machine.label is not None and supervisors.get(topic) in away:
                self._ask(topic)
        self._tell(set(supervisors.values()), away)

    def _subscribed(self) -> list[TopicId]:
        topics = self._topics.machines() if self._driver.supervisors else ()
        return [topic for topic, _ in topics]

    def _ask(self, topic: TopicId) -> None:
        self._driver.perform(topic, [Send(SUPERVISOR, GetConfiguration(self._node))])

    def _tell(self, used: set[Address], away: set[Address]) -> None:
        """Log which supervisors are lost and connected again, and which topics we have joined."""
        for address in sorted(away & self._away):  # a dial that takes less than a tick is usual
            self._report(address)
        for address in sorted(self._reported.keys() - away):
            del self._reported[address]
            if address in used:
                _LOG.info("supervisor_connected", address=address)
        self._away = away
        joined = {topic for topic, machine in self._topics.machines() if machine.label is not None}
        for topic in joined - self._joined:
            _LOG.info("joined", topic=topic)
        for topic in self._joined - joined:
            _LOG.info("left_ring", topic=topic)
        self._joined = joined

    def _on_unreachable(self, name: NodeId) -> None:
        """Log at once why a dial to a supervisor has failed."""
        address = name.removeprefix(_SUPERVISORS)
        if self.is_supervisor(name) and address in self._driver.supervisors:
            self._report(address)
            if self._links.is_name_refused(name):
                self._on_name_refused(address, self._links.why_unreachable(name) or "")

    def _on_name_refused(self, address: Address, why: str) -> None:
        """Another live process has our name: no topic of this supervisor is joined."""
        for topic in self._subscribed():
            if self._driver.supervisor_of(topic) == address:
                self.on_refused(topic, why)

    def _report(self, address: Address) -> None:
        """Log that a supervisor is not connected, once for each reason; not while we leave."""
        wanted = [topic for topic, machine in self._topics.machines() if machine.wants]
        if address not in map(self._driver.supervisor_of, wanted):
            return
        why = self._links.why_unreachable(supervisor_at(address)) or "no connection yet"
        if self._reported.get(address) != why:
            self._reported[address] = why
            _LOG.warning("supervisor_unreachable", address=address, reason=why)

    def set_supervisors(self, supervisors: Sequence[Address]) -> None:
        """Take another list of supervisors; topics that belong to another one now move to it."""
        old, new = self._driver.supervisors, tuple(supervisors)
        moved = [
            topic
            for topic in self._subscribed()
            if new and supervisor_of(topic, old) != supervisor_of(topic, new)
        ]
        for topic in moved:
            self._driver.perform(topic, [Send(SUPERVISOR, Unsubscribe(self._node))])
        self._driver.supervisors = new
        for topic in moved:
            self._ask(topic)
