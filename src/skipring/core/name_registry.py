"""Registry of node names: the process that holds each name (decision 48).

A process is identified by its incarnation and its address. Two live processes can claim one name:
a restarted node whose old connection is not closed yet, or a clone of a data directory. The
registry refuses no claim because of a remembered incarnation. It asks the process on the connection
in use: if this process answers, the registry refuses the claim of the other; if it does not answer
or its connection ends, the registry admits the claim. A corrupted value therefore locks out no
process. An audit finds two processes that were both admitted because of a corrupted value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeAlias

from msgspec import Struct

from skipring.core.peers import NodeId

PING_TICKS: Final = 16  # Guess: above the deadline of the host, which PingExpired reports.
CONFLICT_TICKS: Final = 120  # Guess: a refused process tries again within 5 s.
CLAIMS_MAX: Final = 4  # Limit: claims of one name that wait for an answer.
CONFLICTS_MAX: Final = 1024  # Limit: names of which a conflict is remembered.

ConnectionId: TypeAlias = int


class ProcessId(Struct, frozen=True, gc=False):
    """One run of a process: its incarnation, and the listening address that it states."""

    incarnation: int
    address: str


class Conflict(Struct, frozen=True, gc=False):
    """Two live processes with one name: one holds it, the other was refused."""

    name: NodeId
    holder: ProcessId
    refused: ProcessId


# -- events ------------------------------------------------------------------------------------


class NameClaimed(Struct, frozen=True, gc=False):
    """Claim of a process to a name, in its greeting."""

    name: NodeId
    connection: ConnectionId
    process: ProcessId


class HolderAnswered(Struct, frozen=True, gc=False):
    """Answer to a ping: the identity of the process at the end of a connection."""

    name: NodeId
    connection: ConnectionId
    process: ProcessId


class PingExpired(Struct, frozen=True, gc=False):
    """End of the host's wait for the answer to a ping that a first claim caused."""

    name: NodeId
    claim: ConnectionId


class ConnectionEnded(Struct, frozen=True, gc=False):
    """End of a connection under a name."""

    name: NodeId
    connection: ConnectionId


class RegistryTick(Struct, frozen=True, gc=False):
    """Periodic expiry; an audit too if ``connections`` has all admitted ones by name."""

    connections: Mapping[NodeId, Mapping[ConnectionId, ProcessId]] | None = None


RegistryEvent: TypeAlias = (
    NameClaimed | HolderAnswered | PingExpired | ConnectionEnded | RegistryTick
)


# -- effects -----------------------------------------------------------------------------------


class PingHolder(Struct, frozen=True, gc=False):
    """Request to ask the process at the end of a connection for its identity."""

    name: NodeId
    connection: ConnectionId


class ExpectAnswer(Struct, frozen=True, gc=False):
    """Request to report PingExpired after the deadline of the host."""

    name: NodeId
    claim: ConnectionId


class Admit(Struct, frozen=True, gc=False):
    """Admission of a connection: its process has the name."""

    name: NodeId
    connection: ConnectionId


class Refuse(Struct, frozen=True, gc=False):
    """Request to close a connection and inform both processes: another process has the name."""

    connection: ConnectionId
    conflict: Conflict
    holder: ConnectionId  # a connection of the process that has the name


class Displace(Struct, frozen=True, gc=False):
    """Request to close a connection whose process did not answer and has lost its name."""

    name: NodeId
    connection: ConnectionId


RegistryEffect: TypeAlias = PingHolder | ExpectAnswer | Admit | Refuse | Displace


_Claim: TypeAlias = tuple[ConnectionId, ProcessId]


# -- the machine -------------------------------------------------------------------------------


class _Pending(Struct):
    """Waiting claims of one name, by connection; the first claim caused a ping at a tick."""

    first: ConnectionId
    since: int
    claims: dict[ConnectionId, ProcessId]


class NameRegistry:
    """Holders of node names among the connections of one process."""

    __slots__ = ("_answers", "_conflicts", "_holders", "_pending", "_ticks")

    def __init__(self) -> None:
        # Connections of each name in the order of their admission, with the process at their end.
        self._holders: dict[NodeId, dict[ConnectionId, ProcessId]] = {}
        self._pending: dict[NodeId, _Pending] = {}
        # Answers since the last audit, for names with several connections.
        self._answers: dict[NodeId, dict[ConnectionId, ProcessId]] = {}
        self._conflicts: dict[NodeId, tuple[int, Conflict]] = {}  # with the tick of the refusal
        self._ticks = 0

    def handle(self, event: RegistryEvent) -> list[RegistryEffect]:
        """Apply one event; return the effects in order."""
        out: list[RegistryEffect] = []
        self._HANDLERS[type(event)](self, event, out)
        return out

    def conflicts(self) -> list[Conflict]:
        """Return the conflicts of the last CONFLICT_TICKS ticks, by name."""
        return [conflict for _, (_, conflict) in sorted(self._conflicts.items())]

    def _on_claim(self, event: NameClaimed, out: list[RegistryEffect]) -> None:
        """Admit the first process of a name; ask it before another process is admitted."""
        name, holders = event.name, self._holders.get(event.name)
        pending = self._pending.get(name)
        if not holders or event.process in holders.values():
            self._admit(name, event.connection, event.process, out)
        elif pending is None:
            claims = {event.connection: event.process}
            self._pending[name] = _Pending(event.connection, self._ticks, claims)
            out.append(ExpectAnswer(name, event.connection))
            out.extend(PingHolder(name, connection) for connection in holders)
        elif len(pending.claims) < CLAIMS_MAX:
            pending.claims[event.connection] = event.process
        else:
            holder = next(iter(holders.items()))
            self._refuse(name, (event.connection, event.process), holder, out)

    def _on_answer(self, event: HolderAnswered, out: list[RegistryEffect]) -> None:
        """Decide the waiting claims: the process that answered has the name."""
        name, connection, process = event.name, event.connection, event.process
        holders = self._holders.get(name, {})
        if connection not in holders:
            return
        holders[connection] = process
        if name in self._answers:
            self._answers[name][connection] = process
        pending = self._pending.pop(name, None)
        if pending is not None:
            self._decide(name, (connection, process), pending.claims, out)

    def _on_expired(self, event: PingExpired, out: list[RegistryEffect]) -> None:
        """Give the name to the first claim: its holder did not answer."""
        pending = self._pending.get(event.name)
        if pending is not None and pending.first == event.claim:
            self._expire(event.name, pending, out)

    def _expire(self, name: NodeId, pending: _Pending, out: list[RegistryEffect]) -> None:
        del self._pending[name]
        silent = self._holders.pop(name, {})
        self._answers.pop(name, None)
        self._admit_first(name, pending.claims, out)
        out.extend(Displace(name, connection) for connection in silent)

    def _on_ended(self, event: ConnectionEnded, out: list[RegistryEffect]) -> None:
        """Forget a connection; with its last connection a process loses the name."""
        name, connection = event.name, event.connection
        pending = self._pending.get(name)
        if pending is not None:
            pending.claims.pop(connection, None)
        holders = self._holders.get(name, {})
        holders.pop(connection, None)
        self._answers.get(name, {}).pop(connection, None)
        if not holders:
            self._holders.pop(name, None)
            self._answers.pop(name, None)
            self._pending.pop(name, None)
            if pending is not None:
                self._admit_first(name, pending.claims, out)
        elif pending is not None and not pending.claims:
            del self._pending[name]

    def _on_tick(self, event: RegistryTick, out: list[RegistryEffect]) -> None:
        self._ticks += 1
        now = self._ticks
        self._conflicts = {
            name: (tick, conflict)
            for name, (tick, conflict) in self._conflicts.items()
            if now - CONFLICT_TICKS < tick <= now
        }
        for name, pending in list(self._pending.items()):
            if not now - PING_TICKS < pending.since <= now:
                self._expire(name, pending, out)
        if event.connections is not None:
            self._audit(event.connections, out)

    def _audit(
        self,
        connections: Mapping[NodeId, Mapping[ConnectionId, ProcessId]],
        out: list[RegistryEffect],
    ) -> None:
        """Compare the answers of all connections of a name; refuse a second process.

        The connections are those of the host: two processes that have one name because a variable
        was corrupted are found within two audits
        (``test_second_process_of_a_name_is_refused_after_two_audits``).
        """
        self._holders = {name: dict(sorted(found.items())) for name, found in connections.items()}
        answers, self._answers = self._answers, {}
        for name, answered in answers.items():
            self._compare(name, answered, out)
        for name, holders in self._holders.items():
            if len(holders) > 1:
                self._answers[name] = {}
                out.extend(PingHolder(name, connection) for connection in holders)

    def _compare(
        self, name: NodeId, answered: Mapping[ConnectionId, ProcessId], out: list[RegistryEffect]
    ) -> None:
        holders = self._holders.get(name, {})
        in_order = [connection for connection in holders if connection in answered]
        for connection in in_order[1:]:
            if answered[connection] != answered[in_order[0]]:
                del holders[connection]
                holder = in_order[0], answered[in_order[0]]
                self._refuse(name, (connection, answered[connection]), holder, out)

    # -- decisions -----------------------------------------------------------------------------

    def _admit_first(
        self, name: NodeId, claims: Mapping[ConnectionId, ProcessId], out: list[RegistryEffect]
    ) -> None:
        first = next(iter(claims.items()), None)
        if first is not None:
            self._decide(name, first, claims, out)

    def _decide(
        self,
        name: NodeId,
        holder: _Claim,
        claims: Mapping[ConnectionId, ProcessId],
        out: list[RegistryEffect],
    ) -> None:
        """Admit the claims of the holder, refuse the others."""
        for connection, process in claims.items():
            if process == holder[1]:
                self._admit(name, connection, process, out)
            else:
                self._refuse(name, (connection, process), holder, out)

    def _admit(
        self,
        name: NodeId,
        connection: ConnectionId,
        process: ProcessId,
        out: list[RegistryEffect],
    ) -> None:
        self._holders.setdefault(name, {})[connection] = process
        out.append(Admit(name, connection))

    def _refuse(
        self,
        name: NodeId,
        claim: _Claim,
        holder: _Claim,
        out: list[RegistryEffect],
    ) -> None:
        conflict = Conflict(name, holder[1], claim[1])
        self._conflicts.pop(name, None)
        self._conflicts[name] = self._ticks, conflict
        if len(self._conflicts) > CONFLICTS_MAX:
            del self._conflicts[next(iter(self._conflicts))]
        out.append(Refuse(claim[0], conflict, holder[0]))

    _HANDLERS: ClassVar[
        Mapping[type, Callable[[NameRegistry, Any, list[RegistryEffect]], None]]
    ] = MappingProxyType(
        {
            NameClaimed: _on_claim,
            HolderAnswered: _on_answer,
            PingExpired: _on_expired,
            ConnectionEnded: _on_ended,
            RegistryTick: _on_tick,
        }
    )
