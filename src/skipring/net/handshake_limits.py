"""Limits of the handshakes that peers begin (decision 0047).

Source addresses share two limits, on open connections and on handshakes begun per second. An
accepted connection waits, without a handshake, until its source may begin another one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from ipaddress import IPv6Address, ip_network
from typing import Final, Generic, TypeVar

from msgspec import Struct

# Guess: a handshake takes some milliseconds and two round trips.
OLD_S: Final = 1.0
SOURCES_MAX: Final = 2048  # Limit: source addresses with a remembered rate.
_PREFIX_BITS: Final = 64  # prefix of an IPv6 address; a machine chooses the other bits
BURST_S: Final = 2.0  # Guess: all nodes of a machine start together.

Connection = TypeVar("Connection")


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
