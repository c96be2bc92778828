"""Certificates for tests of TLS: those of a cluster, and those that it must refuse."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import trustme

from skipring.security.ca import issue, make_authority
from skipring.security.credentials import Credentials
from tests.support.exchanges import TransportHost

AGE = timedelta(days=50)  # age of the cluster


class Papers:
    """Authority of a cluster, its certificates, and foreign ones."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with patch("skipring.security.ca._now", lambda: datetime.now(UTC) - AGE):
            self._authority = make_authority(directory / "cluster", days=100)
            self._outdated = directory / "outdated"
            issue(self._authority, "b", self._outdated, days=10, hosts=[])
        self._made: dict[str, Credentials] = {}

    def of(self, name: str) -> Credentials:
        """Return the credentials of a node of the cluster."""
        if name not in self._made:
            issue(self._authority, name, self._authority, days=10, hosts=[])
            cert, key = self._authority / f"{name}.pem", self._authority / f"{name}.key"
            self._made[name] = Credentials(self._authority / "ca.pem", cert, key)
        return self._made[name]

    def none(self, side: int) -> ssl.SSLContext:
        """Return a context without a certificate that trusts every peer."""
        context = ssl.SSLContext(side)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context

    def expired(self, side: int) -> ssl.SSLContext:
        """Return the expired credentials of b."""
        context = self.none(side)
        context.load_cert_chain(self._outdated / "b.pem", self._outdated / "b.key")
        return context

    def of_another_authority(self, side: int) -> ssl.SSLContext:
        """Return credentials of another authority with the name b."""
        context = self.none(side)
        trustme.CA().issue_cert(common_name="b").configure_cert(context)
        return context


def node(papers: Papers, name: str, certificate: str = "") -> TransportHost:
    """Return the transport of a node with a certificate, its own or that of another."""
    return TransportHost(name, credentials=papers.of(certificate or name))
