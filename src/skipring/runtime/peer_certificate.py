"""Certificate of the peer of a connection: the fields that connections depend on."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from skipring.core.peers import NodeId
from skipring.runtime.names import peer_name


class PeerCertificate(Struct, frozen=True):
    """Name, serial number and expiry of a certificate."""

    name: NodeId | None  # None if the certificate names no single node
    serial: int
    ends_s: float  # seconds since 1970

    @classmethod
    def read(cls, shown: Mapping[str, Any]) -> PeerCertificate:
        """Read the result of ``getpeercert`` for a verified certificate."""
        ends_s = ssl.cert_time_to_seconds(shown["notAfter"])
        return cls(peer_name(shown), int(shown["serialNumber"], 16), ends_s)
