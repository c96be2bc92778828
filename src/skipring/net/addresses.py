"""Addresses of nodes, proven or claimed. They are hints, not part of the protocol state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from ipaddress import ip_address
from socket import SOCK_DGRAM, getaddrinfo, socket
from typing import Final, TypeVar

from skipring.core.limits import shown
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.errors import InputError
from skipring.wire.rpc import Address

ADDRESSES_MAX: Final = 100_000  # Limit: more than the members of all topics of a process.
ASSIGNMENTS_MAX: Final = 10_000  # Limit: remembered topics with their supervisors.
PORT_MAX: Final = (1 << 16) - 1
SCHEME: Final = "skipring://"
LOOPBACK: Final = "127.0.0.1"
SUPERVISOR_PORT: Final = 7400  # Guess: no common service uses this port.
DEFAULT_SUPERVISOR: Final = f"{LOOPBACK}:{SUPERVISOR_PORT}"


Value = TypeVar("Value")


class AddressBook:
    """Addresses of nodes; proven addresses take precedence over claims (decision 48).

    An address is proven once a dial by this process finds the node there. All other
    addresses are claims, tried in this order: by the node itself over its connection, by
    supervisors, by members. A claim of one kind does not replace a claim of another kind.
    """

    def __init__(self) -> None:
        self._proven: dict[NodeId, Address] = {}
        self._own: dict[NodeId, Address] = {}  # claimed by the node itself, over its connection
        self._incarnations: dict[NodeId, int] = {}  # of the processes that made these claims
        self._from_supervisors: dict[NodeId, Address] = {}  # claimed there or by this process
        self._from_members: dict[NodeId, tuple[Address, NodeId]] = {}  # with the claimant
        self._doubted: dict[NodeId, Address] = {}  # claims of supervisors that a dial disproved

    def find(self, node: NodeId) -> Address | None:
        """Return the address to dial for a node, or None if it is unknown."""
        found = self._proven.get(node) or self._own.get(node)
        if found:
            return found
        trusted, claimed = self._from_supervisors.get(node), self._from_members.get(node)
        if claimed is not None and (trusted is None or trusted == self._doubted.get(node)):
            return claimed[0]
        return trusted or None

    def claimant(self, node: NodeId, address: Address) -> NodeId | None:
        """Return the member that claims an address; None if it is proven or from a supervisor."""
        if address in (self._proven.get(node), self._from_supervisors.get(node)):
            return None
        if self._own.get(node) == address:
            return node
        claimed, member = self._from_members.get(node, ("", node))
        return member if claimed == address else None

    def is_proven(self, node: NodeId, address: Address) -> bool:
        """Return True if a dial to the address found the node and none has failed since."""
        return self._proven.get(node) == address

    def incarnation_at(self, node: NodeId, address: Address) -> int | None:
        """Return the incarnation of the process that claimed its own address; None if unknown."""
        return self._incarnations.get(node) if self._own.get(node) == address else None

    def greet(self, node: NodeId, address: Address, incarnation: int = 0) -> None:
        """Set the address that a node claims on its connection; drop a different proven one."""
        _put(self._own, node, address)
        _put(self._incarnations, node, incarnation)
        if self._proven.get(node) != address:
            self._proven.pop(node, None)

    def learn(self, hints: Mapping[NodeId, Address], member: NodeId | None = None) -> None:
        """Record claims about other nodes; ``member`` is None for a supervisor or this process."""
        for node, address in hints.items():
            if member is None:
                _put(self._from_supervisors, node, address)
            else:
                _put(self._from_members, node, (address, member))

    def prove(self, node: NodeId, address: Address) -> None:
        """Record that a dial to an address found the node."""
        _put(self._proven, node, address)
        self._doubted.pop(node, None)

    def doubt(self, node: NodeId, address: Address) -> None:
        """Drop an address at which a dial did not find the node.

        A supervisor repeats its claims rarely, so its claim remains as the last choice; a member
        cannot replace it.
        """
        for slot in (self._proven, self._own):
            if slot.get(node) == address:
                del slot[node]
        if self._from_members.get(node, ("", ""))[0] == address:
            del self._from_members[node]
        if self._from_supervisors.get(node) == address:
            _put(self._doubted, node, address)

    def hints(self, nodes: Iterable[NodeId]) -> dict[NodeId, Address]:
        """Return the known addresses of the given nodes."""
        found = {node: self.find(node) for node in nodes}
        return {node: address for node, address in found.items() if address}


def _put(book: dict[NodeId, Value], node: NodeId, value: Value) -> None:
    book.pop(node, None)
    book[node] = value
    if len(book) > ADDRESSES_MAX:
        del book[next(iter(book))]


# -- supervisors -------------------------------------------------------------------------------


def supervisor_of(topic: TopicId, supervisors: Iterable[Address]) -> Address:
    """Return the supervisor of a topic, by rendezvous hashing: the highest hash wins.

    When the list changes, only the topics of the added or removed supervisor move.
    """
    return _heaviest(topic, tuple(supervisors))


@lru_cache(maxsize=ASSIGNMENTS_MAX)  # asked for each message to a supervisor
def _heaviest(topic: TopicId, supervisors: tuple[Address, ...]) -> Address:
    return max(supervisors, key=lambda address: (_weight(topic, address), address))


def _weight(topic: TopicId, address: Address) -> bytes:
    text = f"{len(topic)}:{topic}{address}"
    return blake2b(text.encode(), digest_size=8, person=b"skipring topic").digest()


def supervisor_at(address: Address) -> NodeId:
    """Return the name of the supervisor at an address; supervisors share one node name."""
    return f"{SUPERVISOR}@{address}"


# -- addresses as users write them -------------------------------------------------------------


def parse_address(text: str, parameter: str) -> Address:
    """Normalize ``PORT``, ``:PORT``, ``HOST:PORT`` or ``skipring://HOST:PORT`` to ``HOST:PORT``.

    Without a host, the address is on loopback. An IPv6 host needs brackets.
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
    """Return the local address that is used to reach an address; loopback if there is no route."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if is_loopback(host):
        return LOOPBACK
    try:
        family, kind, protocol, _, where = getaddrinfo(host, int(port), type=SOCK_DGRAM)[0]
        with socket(family, kind, protocol) as probe:
            probe.connect(where)  # UDP connect selects a route and sends nothing
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):
        return LOOPBACK


def is_anywhere(host: str) -> bool:
    """Return True for a wildcard host such as 0.0.0.0, which no peer can dial."""
    with suppress(ValueError):
        return ip_address(host).is_unspecified
    return False


def is_loopback(host: str) -> bool:
    """Return True if traffic to a host stays on this machine."""
    with suppress(ValueError):
        return host == "localhost" or ip_address(host).is_loopback
    return False


def join_address(host: str, port: int) -> Address:
    """Join a host and a port to ``HOST:PORT``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
