"""Settings of a live process at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from skipring.core.config import ProtocolConfig
from skipring.wire.rpc import Address

if TYPE_CHECKING:  # it reads certificates, which few processes need
    from skipring.security.credentials import Credentials


# Guess: a publication that the tree has lost arrives within a second.
FLUSHES_PER_TICK: Final = 4
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
    config: ProtocolConfig = ProtocolConfig.live()
