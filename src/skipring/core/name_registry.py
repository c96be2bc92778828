"""Registry of node names: the process that holds each name (decision 48).

A second connection under a name can belong to the process that holds it, to a restarted node whose
old connection is not closed yet, or to another process, such as a clone of a data directory. No
value in a handshake is proof, because other processes may know it. The registry asks the process
on the connection in use whether it has opened the other connection as well. If this process
answers, the registry admits or refuses the connection accordingly; if it does not answer or its
connection ends, the registry admits the claim. A corrupted value therefore locks out no process. An
audit finds two processes that were both admitted because of a corrupted value, and connections that
do not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, TypeAlias

from msgspec import Meta, Struct

from skipring.core.peers import Address, NodeId

PING_TICKS: Final = 16  # Guess: above the deadline of the host, which PingExpired reports.
CONFLICT_TICKS: Final = 120  # Guess: a refused process tries again within 5 s.
MISSES_MAX: Final = 4  # Guess: audits that a connection may leave unanswered.
CLAIMS_MAX: Final = 4  # Limit: claims of one name that wait for an answer.
CONFLICTS_MAX: Final = 1024  # Limit: names with a recorded conflict.

ConnectionId: TypeAlias = int
INCARNATION_MAX: Final = (1 << 40) - 1  # Limit: an incarnation has 40 bits (decision 46).
Incarnation: TypeAlias = Annotated[int, Meta(ge=0, le=INCARNATION_MAX, description="0 to 2^40-1")]


class ProcessId(Struct, frozen=True, gc=False):
    """One run of a process: its incarnation and its claimed listening address, for reports."""

    incarnation: Incarnation
    address: Address


class Conflict(Struct, frozen=True, gc=False):
    """Two live processes with one name: one holds it, the other was refused."""

    name: NodeId
    holder: ProcessId
    refused: ProcessId


# -- events ------------------------------------------------------------------------------------


class NameClaimed(Struct, frozen=True, gc=False):
    """Claim to a name by a process, in its handshake."""

    name: NodeId
    connection: ConnectionId
    process: ProcessId


class HolderAnswered(Struct, frozen=True, gc=False):
    """Answer to a ping: whether the process behind a connection also opened another connection."""

    name: NodeId
    connection: ConnectionId
    claim: ConnectionId
    is_own: bool


class PingExpired(Struct, frozen=True, gc=False):
    """Timeout of one attempt to get an answer about a claim."""

    name: NodeId
    claim: ConnectionId
    attempt: int


class ConnectionEnded(Struct, frozen=True, gc=False):
    """End of a connection under a name."""

    name: NodeId
    connection: ConnectionId


class RegistryTick(Struct, frozen=True, gc=False):
    """Periodic expiry; also an audit if ``connections`` lists the admitted connections by name."""

    connections: Mapping[NodeId, Mapping[ConnectionId, ProcessId]] | None = None


RegistryEvent: TypeAlias = (
    NameClaimed | HolderAnswered | PingExpired | ConnectionEnded | RegistryTick
)


# -- effects -----------------------------------------------------------------------------------


class PingHolder(Struct, frozen=True, gc=False):
    """Request to ask the process behind a connection whether it also opened another one."""

    name: NodeId
    connection: ConnectionId
    claim: ConnectionId


class ExpectAnswer(Struct, frozen=True, gc=False):
    """Request to report PingExpired after the deadline of the host."""

    name: NodeId
    claim: ConnectionId
    attempt: int


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


# -- the machine -------------------------------------------------------------------------------


class _Pending(Struct):
    """Claim that waits for an answer of the connections that the registry asked at a tick."""

    process: ProcessId
    since: int
    attempt: int = 0
    asked: tuple[ConnectionId, ...] = ()


class NameRegistry:
    """Holders of node names among the connections of one process."""

    __slots__ = ("_answers", "_conflicts", "_denied", "_holders", "_misses", "_pending", "_ticks")

    def __init__(self) -> None:
        # Connections of each name in the order of their admission, with the process at their end.
        self._holders: dict[NodeId, dict[ConnectionId, ProcessId]] = {}
        self._pending: dict[NodeId, dict[ConnectionId, _Pending]] = {}
        # Connections that the last audit asked, by name; True: the connection has answered.
        self._answers: dict[NodeId, dict[ConnectionId, bool]] = {}
        # Connections that the first connection of a name has denied since the last audit.
        self._denied: dict[NodeId, set[ConnectionId]] = {}
        self._misses: dict[ConnectionId, int] = {}  # consecutive audits without an answer
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
        """Admit the first connection of a name; ask its process before another is admitted."""
        name, connection, holders = event.name, event.connection, self._holders.get(event.name)
        claims = self._pending.get(name, {})
        if not holders:
            self._admit(name, connection, event.process, out)
        elif len(claims) < CLAIMS_MAX:
            self._pending.setdefault(name, {})[connection] = _Pending(event.process, self._ticks)
            self._ask(name, connection, out)
        else:
            self._refuse(name, connection, event.process, next(iter(holders)), out)

    def _on_answer(self, event: HolderAnswered, out: list[RegistryEffect]) -> None:
        """Decide a waiting claim, or record an answer for the audit."""
        name, connection = event.name, event.connection
        holders = self._holders.get(name, {})
        if connection not in holders:
            return
        if connection in self._answers.get(name, {}):
            self._answers[name][connection] = True
        claim = self._forget_claim(name, event.claim)
        if claim is not None and event.is_own:
            self._admit(name, event.claim, claim.process, out)
        elif claim is not None:
            self._refuse(name, event.claim, claim.process, connection, out)
        elif not event.is_own and connection == next(iter(holders)):
            self._denied.get(name, set()).add(event.claim)

    def _on_expired(self, event: PingExpired, out: list[RegistryEffect]) -> None:
        claim = self._pending.get(event.name, {}).get(event.claim)
        if claim is not None and claim.attempt == event.attempt:
            self._expire(event.name, event.claim, claim, out)

    def _expire(
        self,
        name: NodeId,
        connection: ConnectionId,
        claim: _Pending,
        out: list[RegistryEffect],
    ) -> None:
        """Displace silent connections; ask the others, or admit the first claim of a free name."""
        holders = self._holders.get(name, {})
        silent = [each for each in claim.asked if each in holders]
        for each in silent:
            self._forget_holder(name, each)
        if name in self._holders:
            self._ask(name, connection, out)
        else:
            self._admit_first(name, out)
        out.extend(Displace(name, each) for each in silent)

    def _on_ended(self, event: ConnectionEnded, out: list[RegistryEffect]) -> None:
        """Forget a connection; free the name with its last connection."""
        self._forget_claim(event.name, event.connection)
        self._forget_holder(event.name, event.connection)
        if event.name not in self._holders:
            self._admit_first(event.name, out)

    def _on_tick(self, event: RegistryTick, out: list[RegistryEffect]) -> None:
        self._ticks += 1
        now = self._ticks
        self._conflicts = {
            name: (tick, conflict)
            for name, (tick, conflict) in self._conflicts.items()
            if now - CONFLICT_TICKS < tick <= now
        }
        for name, claims in list(self._pending.items()):
            for connection, claim in list(claims.items()):
                if connection in claims and not now - PING_TICKS < claim.since <= now:
                    self._expire(name, connection, claim, out)
        if event.connections is not None:
            self._audit(event.connections, out)

    def _audit(
        self,
        connections: Mapping[NodeId, Mapping[ConnectionId, ProcessId]],
        out: list[RegistryEffect],
    ) -> None:
        """Ask about each connection of a name that has several; refuse those of a second process.

        The host passes the connections, so two audits find two processes that share a name because
        of a corrupted variable
        (``test_second_process_of_a_name_is_refused_after_two_audits``).
        """
        self._holders = {name: dict(sorted(found.items())) for name, found in connections.items()}
        answers, self._answers = self._answers, {}
        denied, self._denied = self._denied, {}
        misses, self._misses = self._misses, {}
        for name, answered in answers.items():
            self._displace_silent(name, answered, misses, out)
            self._refuse_denied(name, answered, denied.get(name, set()), out)
        for name, holders in self._holders.items():
            first, *others = holders
            if others:
                self._answers[name] = dict.fromkeys(holders, False)
                self._denied[name] = set()
                out.extend(PingHolder(name, first, other) for other in others)
                out.extend(PingHolder(name, other, first) for other in others)

    def _displace_silent(
        self,
        name: NodeId,
        answered: Mapping[ConnectionId, bool],
        misses: Mapping[ConnectionId, int],
        out: list[RegistryEffect],
    ) -> None:
        """Displace connections that did not answer the last MISSES_MAX audits."""
        for connection in [each for each in self._holders.get(name, {}) if each in answered]:
            missed = misses.get(connection, 0) + 1
            if answered[connection]:
                continue
            if missed < MISSES_MAX:
                self._misses[connection] = missed
            else:
                self._forget_holder(name, connection)
                out.append(Displace(name, connection))

    def _refuse_denied(
        self,
        name: NodeId,
        answered: Mapping[ConnectionId, bool],
        denied: Collection[ConnectionId],
        out: list[RegistryEffect],
    ) -> None:
        """Refuse connections of a live process that the first connection has denied."""
        holders = self._holders.get(name, {})
        for connection in list(holders)[1:]:
            if connection in denied and answered.get(connection):
                process = holders.pop(connection)
                self._refuse(name, connection, process, next(iter(holders)), out)

    # -- decisions -----------------------------------------------------------------------------

    def _ask(self, name: NodeId, connection: ConnectionId, out: list[RegistryEffect]) -> None:
        """Ask every connection of a name about a claim."""
        claim = self._pending[name][connection]
        claim.since, claim.attempt = self._ticks, claim.attempt + 1
        claim.asked = tuple(self._holders[name])
        out.append(ExpectAnswer(name, connection, claim.attempt))
        out.extend(PingHolder(name, each, connection) for each in claim.asked)

    def _admit_first(self, name: NodeId, out: list[RegistryEffect]) -> None:
        """Admit the first claim of a free name; ask its process about the others."""
        first = next(iter(self._pending.get(name, {})), None)
        claim = self._forget_claim(name, first) if first is not None else None
        if first is not None and claim is not None:
            self._admit(name, first, claim.process, out)
            for connection in self._pending.get(name, {}):
                self._ask(name, connection, out)

    def _forget_claim(self, name: NodeId, connection: ConnectionId) -> _Pending | None:
        claims = self._pending.get(name, {})
        claim = claims.pop(connection, None)
        if not claims:
            self._pending.pop(name, None)
        return claim

    def _forget_holder(self, name: NodeId, connection: ConnectionId) -> None:
        holders = self._holders.get(name, {})
        holders.pop(connection, None)
        if not holders:
            self._holders.pop(name, None)

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
        connection: ConnectionId,
        process: ProcessId,
        holder: ConnectionId,
        out: list[RegistryEffect],
    ) -> None:
        conflict = Conflict(name, self._holders[name][holder], process)
        self._conflicts.pop(name, None)
        self._conflicts[name] = self._ticks, conflict
        if len(self._conflicts) > CONFLICTS_MAX:
            del self._conflicts[next(iter(self._conflicts))]
        out.append(Refuse(connection, conflict, holder))

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
