"""Settings of a live process at its start, and the name of a node in its data directory."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from string import ascii_lowercase, digits
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from skipring.core.config import ProtocolConfig
from skipring.core.limits import check_name
from skipring.core.peers import NodeId
from skipring.errors import IdentityError
from skipring.storage.data_dir import make_directory, translate_os_errors, write_durably
from skipring.wire.rpc import Address

if TYPE_CHECKING:  # it reads certificates, which few processes need
    from skipring.security.credentials import Credentials


# Guess: a publication that the tree has lost arrives within a second.
FLUSHES_PER_TICK: Final = 4
POLICY_DELAY_S: Final = 600.0  # Guess: an operator notices a mistake within 10 minutes.
ANSWER_S: Final = 0.02  # Guess: a supervisor answers requests of 20 ms together.


class NodeSettings(Struct, frozen=True, kw_only=True):
    """Addresses of the supervisors, intervals, and the protocol configuration of a process."""

    supervisors: tuple[Address, ...] = ()
    allowed_topics: tuple[str, ...] = ()  # patterns such as "orders.*"; none: all topics
    tick_s: float = 1.0  # Guess; the paper only says "periodically".
    flush_s: float = 1.0 / FLUSHES_PER_TICK  # delay of announcements
    # Delay of a supervisor's answers between two ticks; None: it answers at ticks only.
    answer_s: float | None = None
    advertised: Address | None = None  # address for peers, if not the listen address
    credentials: Credentials | None = None  # required for addresses other than loopback
    drain_s: float = 30.0  # Guess: 480 MB at the credits of a tick (decision 0049).
    is_chaotic: bool = False  # chaos requests may damage this process
    policy_delay_s: float = POLICY_DELAY_S  # until a new policy of a topic takes effect
    clock_offset_us: int = 0  # of the wall clock; only with ``is_chaotic``
    config: ProtocolConfig = ProtocolConfig.live()

    @property
    def protocol(self) -> ProtocolConfig:
        """Return the configuration of the protocol with the settings of this process."""
        return replace(self.config, policy_delay_us=round(self.policy_delay_s * 1_000_000))

    def clocks(self) -> tuple[int, int]:
        """Return the wall clock and the monotonic clock, in microseconds."""
        now_us = time.time_ns() // 1000 + self.clock_offset_us
        return max(now_us, 0), time.monotonic_ns() // 1000


# -- name of a node ----------------------------------------------------------------------------

FILE: Final = "node-id"
RANDOM_CHARACTERS: Final = 12  # Guess: 62 bits, so that a million names do not collide.
_FILE_BYTES_MAX: Final = 1024
_ALPHABET: Final = ascii_lowercase + digits


def node_id(directory: Path, name: str | None = None) -> NodeId:
    """Return the stored node id; if there is none, store ``name`` or else a random name.

    Raise IdentityError if a name is invalid, or if ``name`` differs from the stored one.
    """
    if name is not None:
        check_name(name, parameter="name")
    path = directory / FILE
    with translate_os_errors(directory):
        make_directory(directory)
        if not path.exists():
            made = name or "".join(secrets.choice(_ALPHABET) for _ in range(RANDOM_CHARACTERS))
            write_durably(path, f"{made}\n".encode())
            return made
        with path.open("rb") as file:
            kept = file.read(_FILE_BYTES_MAX).decode(errors="replace").removesuffix("\n")
    check_name(kept, parameter=str(path))
    if name not in (None, kept):
        raise IdentityError(
            f"{path}: this node is called {kept}, not {name}; "
            "omit the name, or use another data directory"
        )
    return kept
