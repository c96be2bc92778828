"""Membership: the supervisor of each topic, and the connection to it.

A node accepts configurations from the supervisor of the topic only, over a connection that the node
has dialled.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from time import time_ns
from typing import Final

from skipring.core.log_messages import Refused
from skipring.core.messages import (
    CheckAndPublish,
    CheckHeld,
    CheckTrie,
    GetConfiguration,
    RequestHandover,
    SetConfiguration,
    Unsubscribe,
)
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import RANDOM_BITS, incarnation_at
from skipring.core.topics import SubscriberTopics
from skipring.net.addresses import supervisor_at, supervisor_of
from skipring.net.transport import SUPERVISORS, Transport
from skipring.observability.logs import RateLimitedLogger, logger
from skipring.wire.codec import encode
from skipring.wire.rpc import REQUEST_TYPES, Address, WireMessage

# Refused under back-pressure: messages with publications, and requests for large answers.
REQUESTS: Final = frozenset(
    {CheckTrie, CheckAndPublish, CheckHeld, RequestHandover, *REQUEST_TYPES}
)

_LOG: Final = logger("membership")


class Incarnations:
    """Incarnations of one process, each above the earlier ones (decision 46)."""

    def __init__(self) -> None:
        self._last = 0

    def issue(self) -> int:
        """Return a new incarnation, from clock and chance."""
        drawn = incarnation_at(time_ns() // 1000, secrets.randbits(RANDOM_BITS))
        self._last = max(self._last + 1, drawn)
        return self._last


class Membership:
    """Supervisors of one node, and the state of its joins."""

    def __init__(
        self,
        node: NodeId,
        topics: SubscriberTopics,
        transport: Transport,
        supervisors: Sequence[Address],
    ) -> None:
        self.refusals: dict[TopicId, str] = {}  # reasons of supervisors that refuse a join
        self._node = node
        self._topics = topics
        self._transport = transport
        self._supervisors = tuple(supervisors)
        self._names = {each: supervisor_at(each) for each in supervisors}
        self._joined: set[TopicId] = set()
        self._away: set[Address] = set()  # supervisors without a connection at the last tick
        self._reported: dict[Address, str] = {}  # last logged reason for each of them
        self._rate_limited = RateLimitedLogger(_LOG)

    def supervisor_of(self, topic: TopicId) -> Address | None:
        """Return the address of a topic's supervisor; None without supervisors."""
        return supervisor_of(topic, self._supervisors) if self._supervisors else None

    def is_connected_to_supervisor(self, topic: TopicId) -> bool:
        """Return True if there is a connection to a topic's supervisor."""
        address = self.supervisor_of(topic)
        return address is not None and self._transport.is_linked(self._names[address])

    # -- messages of supervisors ---------------------------------------------------------------

    def is_obeyed(self, sender: NodeId, topic: TopicId, message: WireMessage) -> bool:
        """Return True if the sender is the topic's supervisor.

        Another supervisor may have been the topic's before and still record this node: ask it to
        remove the node.
        """
        address = self.supervisor_of(topic)
        if address is not None and sender == self._names[address]:
            return True
        self._transport.counts["not the topic's supervisor"] += 1
        if isinstance(message, SetConfiguration) and message.label is not None:
            self._transport.send(sender, encode(topic, Unsubscribe(self._node)))
        return False

    def on_message(self, topic: TopicId, message: WireMessage) -> None:
        """Record that the topic's supervisor refuses the join, or accepts it."""
        match message:
            case SetConfiguration():
                self.refusals.pop(topic, None)
            case Refused(reason=reason):
                self._on_refused(topic, reason)
            case _:
                pass

    def _on_refused(self, topic: TopicId, reason: str) -> None:
        if self.refusals.get(topic) != reason:
            _LOG.warning("join_refused", topic=topic, reason=reason)
        self.refusals[topic] = reason

    # -- connections to supervisors ------------------------------------------------------------

    def on_tick(self) -> list[TopicId]:
        """Log changes; return the topics whose supervisor the node must ask.

        These have a label and no connection: a supervisor reaches a node only over a connection
        that the node dials.
        """
        machines = self._topics.by_topic
        joined = {topic: None for topic, machine in machines.items() if machine.label is not None}
        used = set(self._supervisors if machines else ())
        if len(used) > 1:
            used = {supervisor_of(topic, self._supervisors) for topic in machines}
        away = {each for each in used if not self._transport.is_linked(self._names[each])}
        self._log_changes(used, away, joined.keys())
        for topic, machine in machines.items():
            if machine.replica.own.ahead:
                self._rate_limited.warn(
                    "incarnations_ahead",
                    reason="numbers of this node's name are ahead of the clock and are ignored",
                    topic=topic,
                    count=machine.replica.own.ahead,
                )
        return [each for each in joined if self.supervisor_of(each) in away] if away else []

    def _log_changes(
        self, used: set[Address], away: set[Address], joined: AbstractSet[TopicId]
    ) -> None:
        """Log lost and restored supervisors, and joined and left topics."""
        for address in sorted(away & self._away):  # a dial that takes less than a tick is usual
            self._report(address)
        for address in sorted(self._reported.keys() - away):
            del self._reported[address]
            if address in used:
                _LOG.info("supervisor_connected", address=address)
        self._away = away
        if joined == self._joined:
            return
        for topic in joined - self._joined:
            _LOG.info("joined", topic=topic)
        for topic in self._joined - joined:
            _LOG.info("left_ring", topic=topic)
        self._joined = set(joined)

    def on_unreachable(self, name: NodeId) -> None:
        """Log at once why a dial to a supervisor has failed."""
        address = name.removeprefix(SUPERVISORS)
        if name.startswith(SUPERVISORS) and address in self._supervisors:
            self._report(address)
            if self._transport.is_name_refused(name):
                self._on_name_refused(address, self._transport.why_unreachable(name) or "")

    def _on_name_refused(self, address: Address, why: str) -> None:
        """Record that another live process has this name: no topic of the supervisor is joined."""
        for topic in self._topics.names():
            if self.supervisor_of(topic) == address:
                self._on_refused(topic, why)

    def _report(self, address: Address) -> None:
        """Log that a supervisor is not connected, once for each reason; not while leaving."""
        wanted = [topic for topic, machine in self._topics.machines() if machine.wants]
        if address not in map(self.supervisor_of, wanted):
            return
        why = self._transport.why_unreachable(supervisor_at(address)) or "no connection yet"
        if self._reported.get(address) != why:
            self._reported[address] = why
            _LOG.warning("supervisor_unreachable", address=address, reason=why)

    def set_supervisors(self, supervisors: Sequence[Address]) -> None:
        """Replace the list of supervisors; move topics that belong to another one now."""
        before = {topic: self.supervisor_of(topic) for topic in self._topics.names()}
        self._supervisors = tuple(supervisors)
        self._names = {each: supervisor_at(each) for each in supervisors}
        for topic, old in before.items():
            new = self.supervisor_of(topic)
            if old is not None and new is not None and old != new:
                send = self._transport.send_to_supervisor
                send(old, encode(topic, Unsubscribe(self._node)))
                send(new, encode(topic, GetConfiguration(self._node)))
