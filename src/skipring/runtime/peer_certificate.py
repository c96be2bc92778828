"""Certificate that the other side of a connection has shown, as far as connections depend on it."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from skipring.core.peers import NodeId
from skipring.runtime.names import peer_name


class PeerCertificate(Struct, frozen=True):
    """Name, serial number and end of a certificate."""

    name: NodeId | None  # None if it has no clear one
    serial: int
    ends_s: float  # seconds since 1970

    @classmethod
    def read(cls, shown: Mapping[str, Any]) -> PeerCertificate:
        """Read what ``getpeercert`` returns of a certificate that was verified."""
        ends_s = ssl.cert_time_to_seconds(shown["notAfter"])
        return cls(peer_name(shown), int(shown["serialNumber"], 16), ends_s)
