"""Host of the name registry, which decides which live process holds a name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Final, Protocol, assert_never

from msgspec import Struct

from skipring.core.name_registry import (
    Admit,
    Conflict,
    ConnectionEnded,
    ConnectionId,
    Displace,
    ExpectAnswer,
    HolderAnswered,
    NameClaimed,
    NameRegistry,
    PingExpired,
    PingHolder,
    ProcessId,
    Refuse,
    RegistryEffect,
    RegistryEvent,
    RegistryTick,
)
from skipring.core.peers import NodeId
from skipring.wire.codec import encode
from skipring.wire.handshake import NO_TOPIC, AskHolder, Hello, HolderReply, NameTaken

AUDIT_TICKS: Final = 8  # Guess: two admitted processes with one name are rare.
PING_S: Final = 1.5  # Guess: a running process answers sooner, even on a busy machine.
CLAIMING_MAX: Final = 256  # Limit: connections that wait for the answer of a holder.


class NamedLink(Protocol):
    """Connection, as the name guard uses it."""

    def write(self, data: bytes) -> None:
        """Write bytes to the socket."""

    def admit_name(self) -> None:
        """Start to handle messages: the peer holds the name it claimed."""

    def refuse_name(self, farewell: bytes, why: str) -> None:
        """Drop all messages; send a farewell and close."""

    def displace(self) -> None:
        """Close the connection at once: its peer does not answer."""


def name_conflict_text(name: NodeId, other: ProcessId, *, is_refused: bool) -> str:
    """Return the sentence for a process whose name another live process also claims."""
    where = f"at {other.address} (incarnation {other.incarnation:x})"
    what = (
        f"the name {name} is in use by the process {where}"
        if is_refused
        else f"another process claims the name {name} and was refused: it listens {where}"
    )
    return f"{what}; stop one of them, or give it another name"


class _Entry(Struct, frozen=True):
    """Connection under a name, and the values by which its process recognises it."""

    name: NodeId
    process: ProcessId
    link: NamedLink
    nonce: int
    address: str | None


class NameGuard:
    """Names of the peers on the connections of one process."""

    def __init__(self, report: Callable[[Conflict], None]) -> None:
        self._report = report
        self._registry = NameRegistry()
        self._numbers = count(1)
        self._ticks = 0
        self._claims: dict[ConnectionId, _Entry] = {}  # waiting for a decision
        self._admitted: dict[ConnectionId, _Entry] = {}
        self._connections: dict[NamedLink, ConnectionId] = {}

    def claim(self, link: NamedLink, greeting: Hello, address: str | None) -> None:
        """Admit or refuse a connection under a name, now or once the current holder has answered.

        ``address`` is the other end of the connection, or None if it is not compared.
        """
        number = next(self._numbers)
        process = ProcessId(greeting.incarnation, greeting.address)
        self._connections[link] = number
        self._claims[number] = _Entry(greeting.node, process, link, greeting.nonce, address)
        if len(self._claims) > CLAIMING_MAX:
            self._on_ended(link)
            link.displace()
            return
        self._handle(NameClaimed(greeting.node, number, process))

    def on_reply(self, link: NamedLink, reply: HolderReply) -> None:
        """Pass the answer of the process at the end of a connection to the registry."""
        number = self._connections.get(link)
        if number in self._admitted:
            name = self._admitted[number].name
            self._handle(HolderAnswered(name, number, reply.connection, reply.is_own))

    def on_lost(self, link: NamedLink) -> None:
        """Forget a connection that has ended."""
        name, number = self._on_ended(link)
        if name is not None and number is not None:
            self._handle(ConnectionEnded(name, number))

    def _on_ended(self, link: NamedLink) -> tuple[NodeId | None, ConnectionId | None]:
        number = self._connections.pop(link, None)
        if number is None:
            return None, None
        found = self._claims.pop(number, None) or self._admitted.pop(number, None)
        return (found.name if found is not None else None), number

    def on_tick(self) -> None:
        """Expire old reports; every AUDIT_TICKS, compare the registry with the connections."""
        self._ticks += 1
        if self._ticks % AUDIT_TICKS:
            self._handle(RegistryTick())
            return
        connections: dict[NodeId, dict[ConnectionId, ProcessId]] = {}
        for number, entry in self._admitted.items():
            connections.setdefault(entry.name, {})[number] = entry.process
        self._handle(RegistryTick(connections))

    def conflicts(self) -> list[Conflict]:
        """Return the recent conflicts: names that two live processes claimed."""
        return self._registry.conflicts()

    # -- effects -------------------------------------------------------------------------------

    def _handle(self, event: RegistryEvent) -> None:
        for effect in self._registry.handle(event):
            self._apply(effect)

    def _apply(self, effect: RegistryEffect) -> None:
        match effect:
            case PingHolder():
                self._ping(effect)
            case ExpectAnswer(name=name, claim=claim, attempt=attempt):
                loop = asyncio.get_running_loop()
                loop.call_later(PING_S, self._handle, PingExpired(name, claim, attempt))
            case Admit(connection=number):
                if number in self._claims:
                    self._admitted[number] = self._claims.pop(number)
                    self._admitted[number].link.admit_name()
            case Refuse():
                self._refuse(effect)
            case Displace(connection=number):
                if number in self._admitted:
                    self._admitted[number].link.displace()
            case _:
                assert_never(effect)

    def _ping(self, effect: PingHolder) -> None:
        holder = self._admitted.get(effect.connection)
        claim = self._claims.get(effect.claim) or self._admitted.get(effect.claim)
        if holder is None:
            self._handle(ConnectionEnded(effect.name, effect.connection))
        elif claim is None:
            self._handle(ConnectionEnded(effect.name, effect.claim))
        else:
            question = AskHolder(effect.claim, claim.nonce, claim.address)
            holder.link.write(encode(NO_TOPIC, question))

    def _refuse(self, effect: Refuse) -> None:
        found = self._claims.get(effect.connection) or self._admitted.get(effect.connection)
        if found is None:
            return
        conflict = effect.conflict
        name, holder, refused = conflict.name, conflict.holder, conflict.refused
        self._report(conflict)
        if effect.holder in self._admitted:
            taken = NameTaken(refused.incarnation, refused.address, refused=False)
            self._admitted[effect.holder].link.write(encode(NO_TOPIC, taken))
        self._on_ended(found.link)
        farewell = encode(NO_TOPIC, NameTaken(holder.incarnation, holder.address, refused=True))
        found.link.refuse_name(farewell, name_conflict_text(name, holder, is_refused=True))
