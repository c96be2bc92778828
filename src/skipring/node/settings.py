"""Settings of a live process at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from skipring.core.config import ProtocolConfig
from skipring.wire.rpc import Address

if TYPE_CHECKING:  # it reads certificates, which few processes need
    from skipring.security.credentials import Credentials


ANSWER_S: Final = 0.02  # Our guess, of a supervisor process: who comes together is told together.


class NodeSettings(Struct, frozen=True, kw_only=True):
    """Where the supervisors are, how fast time goes, and how the protocol is set."""

    supervisors: tuple[Address, ...] = ()
    allowed_topics: tuple[str, ...] = ()  # patterns such as "orders.*"; none: all topics
    tick_s: float = 1.0  # Our guess; the paper only says "periodically".
    flush_s: float = 0.1  # Our guess: soon for a person, late for a network.
    # How soon a supervisor answers between its ticks; None: only at them. They may be short enough.
    answer_s: float | None = None
    advertised: Address | None = None  # where others find us, if not where we listen
    credentials: Credentials | None = None  # without them everything stays on this machine
    drain_s: float = 30.0  # Guess: 480 MB at the credits of a tick (decision 0049).
    is_chaotic: bool = False  # others may damage this process, to see it heal
    config: ProtocolConfig = ProtocolConfig.live()
