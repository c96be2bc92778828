"""Where nodes listen, as far as one has heard; hints outside the protocol's state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from ipaddress import ip_address
from socket import SOCK_DGRAM, getaddrinfo, socket
from typing import Final

from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.errors import InputError
from skipring.wire.runtime_messages import Address
from skipring.wire.values import shown

ADDRESSES_MAX: Final = 100_000  # Limit of ours: the members of all topics of a process, and more.
PORT_MAX: Final = (1 << 16) - 1
SCHEME: Final = "skipring://"
LOOPBACK: Final = "127.0.0.1"
SUPERVISOR_PORT: Final = 7400  # Our choice; no service of the field uses it.
DEFAULT_SUPERVISOR: Final = f"{LOOPBACK}:{SUPERVISOR_PORT}"


class AddressBook:
    """Addresses by node; what a node says of itself counts more than what others say of it."""

    def __init__(self) -> None:
        self._said: dict[NodeId, Address] = {}  # by the node itself, in a greeting
        self._heard: dict[NodeId, Address] = {}  # from others, the newest last

    def find(self, node: NodeId) -> Address | None:
        """Where a node listens, or None if nobody has said."""
        return self._said.get(node, self._heard.get(node)) or None

    def greet(self, node: NodeId, address: Address) -> None:
        """A node has said itself where it listens; an empty address: nowhere."""
        _put(self._said, node, address)

    def hear(self, hints: Mapping[NodeId, Address]) -> None:
        """Somebody has said where others listen; older word of themselves may be outdated."""
        for node, address in hints.items():
            _put(self._heard, node, address)

    def doubt(self, node: NodeId) -> None:
        """Nobody answers where the node said it listens: believe others from now on."""
        self._said.pop(node, None)

    def hints(self, nodes: Iterable[NodeId]) -> dict[NodeId, Address]:
        """What we know of some nodes."""
        found = {node: self.find(node) for node in nodes}
        return {node: address for node, address in found.items() if address}


def _put(book: dict[NodeId, Address], node: NodeId, address: Address) -> None:
    book.pop(node, None)
    book[node] = address
    if len(book) > ADDRESSES_MAX:
        del book[next(iter(book))]


# -- supervisors -----------------------------------------------------------------------------


def supervisor_of(topic: TopicId, supervisors: Iterable[Address]) -> Address:
    """Which supervisor a topic belongs to: the highest hash wins (rendezvous hashing).

    When the list changes, only the topics of whoever came or went move.
    """
    return max(supervisors, key=lambda address: (_weight(topic, address), address))


def _weight(topic: TopicId, address: Address) -> bytes:
    text = f"{len(topic)}:{topic}{address}"
    return blake2b(text.encode(), digest_size=8, person=b"skipring topic").digest()


def supervisor_at(address: Address) -> NodeId:
    """What the supervisor at an address is called among links: several share the one name."""
    return f"{SUPERVISOR}@{address}"


# -- addresses as users write them -------------------------------------------------------------


def parse_address(text: str, parameter: str) -> Address:
    """Normalize ``PORT``, ``:PORT``, ``HOST:PORT`` or ``skipring://HOST:PORT`` to ``HOST:PORT``.

    Without a host the address is on loopback. An IPv6 host stands in brackets.
    """
    plain = text.strip().removeprefix(SCHEME).removesuffix("/")
    host, _, port = plain.rpartition(":")
    host = host or LOOPBACK
    is_bracketed = host.startswith("[") and host.endswith("]")
    is_port = port.isascii() and port.isdecimal() and int(port) <= PORT_MAX
    if not is_port or (":" in host and not is_bracketed) or not _is_host(host):
        raise InputError(
            f"expected HOST:PORT, PORT or {SCHEME}HOST:PORT (IPv6 as [::1]:PORT), "
            f"got {shown(text)}",
            parameter=parameter,
        )
    return f"{host}:{int(port)}"


def _is_host(host: str) -> bool:
    return not re.search(r"[\s/@,]", host)


def split_address(text: str, parameter: str, *, is_secured: bool) -> tuple[str, int]:
    """Parse an address into host and port; refuse hosts beyond loopback without certificates."""
    host, _, port = parse_address(text, parameter).rpartition(":")
    host = host.strip("[]")
    if not is_secured and not is_loopback(host):
        raise InputError(
            f"{shown(host)} can be reached from other machines, and there are no certificates; "
            "use a loopback address such as 127.0.0.1, or certificates "
            "(`skipring certs` creates them)",
            parameter=parameter,
        )
    return host, int(port)


def parse_supervisors(supervisors: str | Iterable[str], *, is_secured: bool) -> tuple[Address, ...]:
    """Normalize a list of supervisors, or its comma-separated text such as a URL."""
    parts = supervisors.split(",") if isinstance(supervisors, str) else list(supervisors)
    parts = [part for part in parts if part.strip().removeprefix(SCHEME)]
    if not parts:
        raise InputError("no address given; expected HOST:PORT", parameter="supervisor")
    for part in parts:
        _, port = split_address(part, "supervisor", is_secured=is_secured)
        if port == 0:
            raise InputError(f"port 0 cannot be dialled: {shown(part)}", parameter="supervisor")
    return tuple(dict.fromkeys(parse_address(part, "supervisor") for part in parts))


def local_host_towards(address: Address) -> str:
    """Which of our own addresses leads to somebody; loopback, if nobody can tell."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if is_loopback(host):
        return LOOPBACK
    try:
        family, kind, protocol, _, where = getaddrinfo(host, int(port), type=SOCK_DGRAM)[0]
        with socket(family, kind, protocol) as probe:
            probe.connect(where)  # nothing is sent
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):
        return LOOPBACK


def is_anywhere(host: str) -> bool:
    """True if a host stands for all addresses of this machine, which nobody can dial."""
    with suppress(ValueError):
        return ip_address(host).is_unspecified
    return False


def is_loopback(host: str) -> bool:
    """True if what is sent to a host stays on this machine."""
    with suppress(ValueError):
        return host == "localhost" or ip_address(host).is_loopback
    return False


def join_address(host: str, port: int) -> Address:
    """Put ``HOST:PORT`` together."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
