"""Limits of the connections that peers open (decision 0047).

Handshakes: source addresses share two limits, on open connections and on handshakes begun per
second. An accepted connection waits, without a handshake, until its source may begin another one.

Places, from the greeting on: clients can occupy only some places, the others are reserved for
nodes, and each name has a limit. Connections that this process dials need no place.

Unfinished frames: all of them share a limit, so connections cannot fill the memory, and each frame
has a deadline. At the limit, the name that holds most bytes loses its oldest connection.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from ipaddress import IPv6Address, ip_network
from typing import Final, Generic, Protocol, TypeVar

from msgspec import Struct

from skipring.core.peers import NodeId

# Guess: a handshake takes some milliseconds and two round trips.
OLD_S: Final = 1.0
SOURCES_MAX: Final = 2048  # Limit: source addresses with a remembered rate.
_PREFIX_BITS: Final = 64  # prefix of an IPv6 address; a machine chooses the other bits
BURST_S: Final = 2.0  # Guess: all nodes of a machine start together.

LINKS_MAX: Final = 4096  # Limit: connections that peers have opened.
CLIENT_LINKS_MAX: Final = 1024  # Limit: client connections among them; nodes have the rest.
# Limit: connections among them with one certificate, or with one claimed name without certificates.
NAME_LINKS_MAX: Final = 256
IDLE_CLIENT_S: Final = 10.0  # Guess: an active client sends a request every second.

PARTIAL_BYTES_MAX: Final = 32 << 20  # Limit: 32 of the longest frames at once.
FRAME_S: Final = 30.0  # Guess: the longest frame over a line of 300 kbit/s.
LATE_S: Final = 1.0  # Guess: if the timer is later, the loop was blocked and has unread input.

Connection = TypeVar("Connection")


# -- handshakes ------------------------------------------------------------------------------


class HandshakeLimits(Struct, frozen=True):
    """Limits of handshakes that peers begin; a burst is the rate times ``BURST_S``."""

    at_once: int  # connections without a greeting
    source_rate: float  # handshakes that one source begins per second
    total_rate: float  # handshakes that all sources begin per second
    waiting: int  # waiting connections of one source
    turn: int  # handshakes that begin in one turn of the loop


# Measured: a handshake takes 1 ms of a core with certificates and 0.1 ms without. One source
# therefore gets a tenth of a core, and all sources together a quarter.
SECURED: Final = HandshakeLimits(at_once=256, source_rate=100, total_rate=250, waiting=32, turn=10)
PLAIN: Final = HandshakeLimits(
    at_once=1024, source_rate=1000, total_rate=2500, waiting=128, turn=100
)


def source_of(host: str) -> str:
    """Return the source of an address: the IPv4 address, or the /64 network of an IPv6 address.

    >>> source_of("2001:db8::1"), source_of("::ffff:10.0.0.1"), source_of("10.0.0.1")
    ('2001:db8::/64', '10.0.0.1', '10.0.0.1')
    """
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ip_network((address, _PREFIX_BITS), strict=False))


class _Rate:
    """Token bucket."""

    __slots__ = ("_a_second", "_counted_s", "_tokens")

    def __init__(self, a_second: float, now_s: float) -> None:
        self._a_second = a_second
        self._tokens = a_second * BURST_S
        self._counted_s = now_s

    def has_token(self, now_s: float) -> bool:
        """Refill the bucket for the time that has passed; return True if a handshake may begin."""
        passed_s, self._counted_s = now_s - self._counted_s, now_s
        full = self._a_second * BURST_S
        self._tokens = min(full, self._tokens + passed_s * self._a_second)
        return self._tokens >= 1

    def spend(self) -> None:
        self._tokens -= 1


class _SourceAddress(Generic[Connection]):
    """Connections of one source address that have not greeted."""

    __slots__ = ("open", "rate", "waiting")

    def __init__(self, rate: _Rate) -> None:
        self.rate = rate
        self.open: OrderedDict[Connection, None] = OrderedDict()  # oldest first
        self.waiting: deque[Connection] = deque()  # subset whose handshake has not begun


class Handshakes(Generic[Connection]):
    """Connections without a greeting, and the order of their handshakes."""

    def __init__(self, limits: HandshakeLimits, now_s: float) -> None:
        self._limits = limits
        self._rate = _Rate(limits.total_rate, now_s)
        self.sources: OrderedDict[str, _SourceAddress[Connection]] = OrderedDict()
        self._busy: dict[str, _SourceAddress[Connection]] = {}  # sources with connections
        self._open: OrderedDict[Connection, tuple[str, float]] = OrderedDict()  # source, since when
        self._turns: OrderedDict[str, None] = OrderedDict()  # sources with waiting connections

    def __len__(self) -> int:
        """Return the number of connections that have not greeted."""
        return len(self._open)

    @property
    def has_waiting(self) -> bool:
        """Return True if connections wait for a handshake."""
        return bool(self._turns)

    def add(self, connection: Connection, source: str, now_s: float) -> Connection | None:
        """Add a connection; at a limit, return the connection to refuse: this one or another."""
        known = self.sources.get(source)
        own: _SourceAddress[Connection] = known or _SourceAddress(
            _Rate(self._limits.source_rate, now_s)
        )
        gives_way = None
        if len(own.waiting) >= self._limits.waiting:
            return connection
        if len(self._open) >= self._limits.at_once:
            gives_way = self._dispensable(own, now_s)
            if gives_way is None:
                return connection
            self.remove(gives_way)
        self.sources[source] = own
        self.sources.move_to_end(source)
        if len(self.sources) > SOURCES_MAX:
            self._forget_source()
        self._busy[source] = own
        own.open[connection] = None
        own.waiting.append(connection)
        self._open[connection] = source, now_s
        self._turns.setdefault(source)
        return gives_way

    def _dispensable(self, own: _SourceAddress[Connection], now_s: float) -> Connection | None:
        """Return the oldest connection of the largest source, or the oldest of all after OLD_S.

        The source with the most connections does not get the place of another source.
        """
        largest = max(self._busy.values(), key=lambda each: len(each.open))
        if len(largest.open) > len(own.open) + 1:
            return next(iter(largest.open))
        oldest, (_, since_s) = next(iter(self._open.items()))
        return oldest if largest is not own and now_s - since_s > OLD_S else None

    def _forget_source(self) -> None:
        """Forget the rate of the source that has been idle longest."""
        idle = next((name for name in self.sources if name not in self._busy), None)
        if idle is not None:
            del self.sources[idle]

    def begin(self, now_s: float) -> list[Connection]:
        """Return the connections whose handshakes begin now, from each source in turn."""
        begun: list[Connection] = []
        without_token = 0
        while without_token < len(self._turns) and self._can_begin(len(begun), now_s):
            name, _ = self._turns.popitem(last=False)
            source = self.sources[name]
            if source.rate.has_token(now_s):
                without_token = 0
                source.rate.spend()
                self._rate.spend()
                begun.append(source.waiting.popleft())
            else:
                without_token += 1
            if source.waiting:
                self._turns[name] = None
        return begun

    def _can_begin(self, begun: int, now_s: float) -> bool:
        return begun < self._limits.turn and self._rate.has_token(now_s)

    def remove(self, connection: Connection) -> None:
        """Forget a connection that has greeted or is closed."""
        if connection not in self._open:
            return
        name, _ = self._open.pop(connection)
        source = self.sources[name]
        del source.open[connection]
        if not source.open:
            del self._busy[name]
        if connection in source.waiting:
            source.waiting.remove(connection)
            if not source.waiting:
                del self._turns[name]


# -- places ----------------------------------------------------------------------------------


class Place(Protocol):
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
        self._names: dict[Place, tuple[NodeId, bool]] = {}
        self._sizes: Counter[tuple[NodeId, bool]] = Counter()
        self._clients: dict[Place, None] = {}

    def __len__(self) -> int:
        """Return the number of occupied places."""
        return len(self._names)

    def occupy(self, link: Place, name: NodeId, *, is_client: bool, now_s: float) -> str | None:
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

    def _idle_client(self, now_s: float) -> Place | None:
        """Return the client that has been idle longest, if for more than IDLE_CLIENT_S."""
        for link in self._clients:
            link.check_deadlines(now_s)
        idle = min(self._clients, key=lambda link: link.used_s, default=None)
        return idle if idle is not None and now_s - idle.used_s > IDLE_CLIENT_S else None

    def release(self, link: Place) -> None:
        """Free the place of a connection; a no-op if it has none."""
        key = self._names.pop(link, None)
        if key is None:
            return
        self._clients.pop(link, None)
        self._sizes[key] -= 1
        if not self._sizes[key]:
            del self._sizes[key]


# -- unfinished frames -----------------------------------------------------------------------


class Sending(Protocol):
    """Connection on which a frame arrives."""

    @property
    def account(self) -> str:
        """Return the name of the peer, or its host before the greeting."""

    @property
    def is_read(self) -> bool:
        """Return False while this process does not read from the connection."""

    def refuse(self, reason: str, detail: str) -> None:
        """Close the connection."""


class PartialFrames:
    """Bytes of unfinished frames, by connection."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._held: OrderedDict[Sending, tuple[float, int]] = (
            OrderedDict()
        )  # start time and bytes; oldest first
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def update(self, link: Sending, size_bytes: int, *, is_new: bool) -> None:
        """Set the size of a connection's unfinished frame; ``is_new`` restarts its deadline."""
        now_s = asyncio.get_running_loop().time()
        since_s, old_bytes = self._held.get(link, (now_s, 0))
        self.size_bytes += size_bytes - old_bytes
        if is_new or not size_bytes:
            self._held.pop(link, None)
            since_s = now_s
        if size_bytes:
            self._held[link] = since_s, size_bytes
            self._schedule(since_s + FRAME_S)
            if self.size_bytes > PARTIAL_BYTES_MAX:
                self._refuse_largest()

    def forget(self, link: Sending) -> None:
        """Forget a connection that is closed."""
        _, size_bytes = self._held.pop(link, (0.0, 0))
        self.size_bytes -= size_bytes

    def close(self) -> None:
        """Cancel the timer of the deadlines."""
        if self._timer is not None:
            self._timer.cancel()

    def _refuse_largest(self) -> None:
        sizes: Counter[str] = Counter()
        for link, (_, size_bytes) in self._held.items():
            sizes[link.account] += size_bytes
        largest = max(sizes, key=lambda name: sizes[name])
        oldest = next(link for link in self._held if link.account == largest)
        detail = (
            f"unfinished frames hold {self.size_bytes >> 20} MiB, which is the limit; "
            f"{largest} holds {sizes[largest] >> 20} MiB of them"
        )
        self.forget(oldest)
        oldest.refuse("too many unfinished frames", detail)

    def _schedule(self, due_s: float) -> None:
        if self._timer is None:
            self._due_s = due_s
            self._timer = asyncio.get_running_loop().call_at(due_s, self._on_due)

    def _on_due(self) -> None:
        """Refuse the connections whose frames are past their deadline."""
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        if now_s - self._due_s > LATE_S:  # the loop was blocked, not the peer
            self._schedule(now_s + LATE_S)
            return
        for link, (since_s, size_bytes) in list(self._held.items()):
            if not link.is_read:
                self.update(link, size_bytes, is_new=True)
            elif now_s - since_s >= FRAME_S:
                detail = f"{size_bytes} bytes of a frame, and no more within {FRAME_S:.0f} s"
                self.forget(link)
                link.refuse("unfinished frame", detail)
            else:
                break
        if self._held:
            since_s, _ = next(iter(self._held.values()))
            self._schedule(max(since_s + FRAME_S, now_s))
