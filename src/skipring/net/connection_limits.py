"""Limits of the connections that peers open, by name (decision 0047).

Clients can occupy only some places, the others are reserved for nodes, and each name has a limit.
Connections that this process dials need no place.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol

from skipring.core.peers import NodeId

LINKS_MAX: Final = 4096  # Limit: connections that peers have opened.
CLIENT_LINKS_MAX: Final = 1024  # Limit: client connections among them; nodes have the rest.
# Limit: connections among them with one certificate, or with one claimed name without certificates.
NAME_LINKS_MAX: Final = 256
IDLE_CLIENT_S: Final = 10.0  # Guess: an active client sends a request every second.


class LimitedConnection(Protocol):
    """Connection that a peer has opened."""

    @property
    def used_s(self) -> float:
        """Return the time of the last use, as of the last ``check_deadlines``."""

    def check_deadlines(self, now: float) -> None:
        """Record whether the connection was used since the last call."""

    def make_room(self) -> None:
        """Close the connection: another client needs its place."""


class ConnectionLimits:
    """Connections that peers have opened and that have greeted, by name."""

    def __init__(self) -> None:
        self._names: dict[LimitedConnection, tuple[NodeId, bool]] = {}
        self._sizes: Counter[tuple[NodeId, bool]] = Counter()
        self._clients: dict[LimitedConnection, None] = {}

    def __len__(self) -> int:
        """Return the number of occupied places."""
        return len(self._names)

    def occupy(
        self, link: LimitedConnection, name: NodeId, *, is_client: bool, now_s: float
    ) -> str | None:
        """Assign a place to a connection; return None, or the reason for refusal as a sentence.

        If all places are occupied, the client that has been idle longest is closed.
        """
        why = self._why_none(name, is_client=is_client, now_s=now_s)
        if why is None:
            self._names[link] = name, is_client
            self._sizes[name, is_client] += 1
            if is_client:
                self._clients[link] = None
        return why

    def _why_none(self, name: NodeId, *, is_client: bool, now_s: float) -> str | None:
        kind = "clients" if is_client else "nodes"
        if self._sizes[name, is_client] >= NAME_LINKS_MAX:
            return f"{name} has {NAME_LINKS_MAX} connections of {kind}, which is the limit"
        is_full = len(self._names) >= LINKS_MAX
        if not is_full and not (is_client and len(self._clients) >= CLIENT_LINKS_MAX):
            return None
        idle = self._idle_client(now_s)
        if idle is not None:
            self.release(idle)
            idle.make_room()
            return None
        if is_full:
            return f"there are {LINKS_MAX} connections, which is the limit"
        return f"there are {CLIENT_LINKS_MAX} connections of clients, which is the limit"

    def _idle_client(self, now_s: float) -> LimitedConnection | None:
        """Return the client that has been idle longest, if for more than IDLE_CLIENT_S."""
        for link in self._clients:
            link.check_deadlines(now_s)
        idle = min(self._clients, key=lambda link: link.used_s, default=None)
        return idle if idle is not None and now_s - idle.used_s > IDLE_CLIENT_S else None

    def release(self, link: LimitedConnection) -> None:
        """Free the place of a connection; a no-op if it has none."""
        key = self._names.pop(link, None)
        if key is None:
            return
        self._clients.pop(link, None)
        self._sizes[key] -= 1
        if not self._sizes[key]:
            del self._sizes[key]
