"""Certificates for tests of TLS: a cluster's own, and those of people it should not let in."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import trustme

from skipring.security.ca import issue, make_authority
from skipring.security.credentials import Credentials
from tests.support.exchanges import Host

AGE = timedelta(days=50)  # of the cluster


class Papers:
    """The authority of a cluster, what it has issued, and what others show."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with patch("skipring.security.ca._now", lambda: datetime.now(UTC) - AGE):
            self._authority = make_authority(directory / "cluster", days=100)
            self._outdated = directory / "outdated"
            issue(self._authority, "b", self._outdated, days=10, hosts=[])
        self._made: dict[str, Credentials] = {}

    def of(self, name: str) -> Credentials:
        """What somebody of the cluster shows."""
        if name not in self._made:
            issue(self._authority, name, self._authority, days=10, hosts=[])
            cert, key = self._authority / f"{name}.pem", self._authority / f"{name}.key"
            self._made[name] = Credentials.load(self._authority / "ca.pem", cert, key)
        return self._made[name]

    def none(self, side: int) -> ssl.SSLContext:
        """Of somebody who shows nothing, and believes everything."""
        context = ssl.SSLContext(side)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context

    def expired(self, side: int) -> ssl.SSLContext:
        """Of b, as it was some weeks ago."""
        context = self.none(side)
        context.load_cert_chain(self._outdated / "b.pem", self._outdated / "b.key")
        return context

    def of_another_authority(self, side: int) -> ssl.SSLContext:
        """Of somebody else who is called b."""
        context = self.none(side)
        trustme.CA().issue_cert(common_name="b").configure_cert(context)
        return context


def node(papers: Papers, name: str, certificate: str = "") -> Host:
    """The links of a node that shows a certificate, its own or that of another."""
    return Host(name, credentials=papers.of(certificate or name))
