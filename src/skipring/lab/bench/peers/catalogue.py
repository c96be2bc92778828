"""Which systems there are, what each needs, and how to get it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

CLIENTS: Final = "pip install 'skipring[bench]'"
OURS: Final = "skipring"
OURS_SECURED: Final = "skipring-tls"
BARE: Final = "relay"  # no system, but what sockets, a sync and the loop take in a tree as ours
JETSTREAM_STORED: Final = "jetstream-stored"
REDIS_STREAMS_STORED: Final = "redis-streams-stored"


class System(Struct, frozen=True, kw_only=True):
    """A system that can be measured."""

    module: str  # of this package
    packages: tuple[str, ...] = ()  # that it imports
    install: str = CLIENTS
    server: str | None = None  # its broker, a program
    install_server: str = ""
    # Of what is slow less is asked.
    n_max: int | None = None
    deliveries_max: int | None = None
    window: int = 1000  # publications under way


SYSTEMS: Final[Mapping[str, System]] = {
    OURS: System(module="ring"),
    OURS_SECURED: System(module="ring"),
    "nats": System(
        module="nats",
        packages=("nats",),
        server="nats-server",
        install_server="apt-get install nats-server",
    ),
    "redis": System(
        module="redis",
        packages=("redis.asyncio", "hiredis"),
        server="redis-server",
        install_server="apt-get install redis-server",
    ),
    "mosquitto": System(
        module="mosquitto",
        packages=("aiomqtt",),
        server="mosquitto",
        install_server="apt-get install mosquitto",
        deliveries_max=100_000,
    ),
    "zenoh": System(module="zenoh", packages=("zenoh",)),
    "zeromq": System(module="zeromq", packages=("zmq",)),
    "zeromq-asyncio": System(module="zeromq", packages=("zmq.asyncio",), deliveries_max=100_000),
    BARE: System(module="relay"),
    "gossipsub": System(
        module="gossipsub",
        packages=("libp2p",),
        install="pip install libp2p",
        n_max=16,
        deliveries_max=1600,  # Measured: some milliseconds of processor time each.
        window=8,  # Measured: it drops what does not fit into queues of 32 that cannot be changed.
    ),
}


# Those that keep what was published, for who comes later; twice, if who comes need not keep it.
STORED: Final[Mapping[str, System]] = {
    OURS: System(module="latecomer"),
    OURS_SECURED: System(module="latecomer"),
    "jetstream": replace(SYSTEMS["nats"], module="jetstream"),
    JETSTREAM_STORED: replace(SYSTEMS["nats"], module="jetstream"),
    "redis-streams": replace(SYSTEMS["redis"], module="redis_streams"),
    REDIS_STREAMS_STORED: replace(SYSTEMS["redis"], module="redis_streams"),
}


def missing(system: System) -> str | None:
    """The command that installs what a system lacks here; None if nothing is missing."""
    commands = []
    if system.server is not None and shutil.which(system.server) is None:
        commands.append(system.install_server)
    if not all(find_spec(package.partition(".")[0]) for package in system.packages):
        commands.append(system.install)
    return " && ".join(commands) or None
