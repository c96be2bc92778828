"""Catalog of the measurable systems: requirements of each and the command that installs them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from msgspec import Struct

from skipring.lab.bench.report import Row
from skipring.lab.bench.servers import BROKERS

CLIENTS: Final = "pip install 'skipring[bench]'"
OURS: Final = "skipring"
OURS_SECURED: Final = "skipring-tls"
RINGS: Final = (OURS, OURS_SECURED)
RELAY: Final = "relay"  # the floor: sockets, one sync and the event loop in the same tree
JETSTREAM_STORED: Final = "jetstream-stored"
REDIS_STREAMS_STORED: Final = "redis-streams-stored"
_NATS: Final = ("nats",)
_REDIS: Final = ("redis.asyncio", "hiredis")


class System(Struct, frozen=True):
    """Measurable system and its requirements."""

    driver: str  # module of this package and prefix of its classes
    packages: tuple[str, ...] = ()  # packages that the driver imports
    broker: str | None = None  # its key in BROKERS
    deliveries_max: int | None = None  # slow systems run with fewer publications

    @property
    def missing(self) -> str | None:
        """Return the command that installs missing requirements; None if there are none."""
        commands = []
        if self.broker is not None and shutil.which(program := BROKERS[self.broker][0]) is None:
            commands.append(f"apt-get install {program}")
        if not all(find_spec(package.partition(".")[0]) for package in self.packages):
            commands.append(CLIENTS)
        return " && ".join(commands) or None

    @property
    def skipped(self) -> Row | None:
        """Return the row of a system that is not installed; None if it is."""
        return None if self.missing is None else {"skipped": f"not installed: {self.missing}"}


SYSTEMS: Final[Mapping[str, System]] = {
    OURS: System("ours.Ring"),
    OURS_SECURED: System("ours.Ring"),
    "nats": System("brokers.Nats", _NATS, "nats"),
    "redis": System("brokers.Redis", _REDIS, "redis"),
    "mosquitto": System("brokers.Mosquitto", ("aiomqtt",), "mosquitto", 100_000),
    "zenoh": System("brokerless.Zenoh", ("zenoh",)),
    "zeromq": System("brokerless.Zeromq", ("zmq",)),
    "zeromq-asyncio": System("brokerless.ZeromqAsyncio", ("zmq.asyncio",), None, 100_000),
    RELAY: System("brokerless.Relay"),
}

# Systems that store publications for newcomers; "-stored": the newcomer stores them as well.
STORED: Final[Mapping[str, System]] = {
    OURS: System("ours.Ring"),
    OURS_SECURED: System("ours.Ring"),
    "jetstream": System("brokers.JetStream", _NATS, "jetstream"),
    JETSTREAM_STORED: System("brokers.JetStreamStored", _NATS, "jetstream"),
    "redis-streams": System("brokers.RedisStreams", _REDIS, "redis"),
    REDIS_STREAMS_STORED: System("brokers.RedisStreamsStored", _REDIS, "redis"),
}
