"""Failed dials: the cause, and a sentence with the cause and a remedy."""

from __future__ import annotations

import ssl
from enum import StrEnum
from typing import Final

from msgspec import Struct

from skipring.core.limits import shown
from skipring.core.peers import NodeId
from skipring.wire.handshake import VERSION, Hello, Role, version_in
from skipring.wire.rpc import Address

FIRST_BYTES_MAX: Final = 1024  # Limit: longer than a greeting, enough to recognise a banner.

# Reasons that OpenSSL gives for bytes that are not TLS.
NOT_TLS: Final = frozenset({"wrong version number", "http request", "record layer failure"})

_TLS_RECORDS: Final = range(0x14, 0x18)
_TLS_MAJOR: Final = 3
# A server that takes the greeting for HTTP/0.9 answers with a page and no status line.
_HTTP: Final = (b"http/", b"<!doctype html", b"<html")

# Reasons of failed TLS handshakes. Details come from OpenSSL or this process, never from a peer.
HANDSHAKE_REASONS: Final = frozenset({"bad certificate", "no certificate", "handshake failed"})


class Cause(StrEnum):
    """Cause of a failed dial."""

    REFUSED = "refused"  # nothing listens there
    UNREACHABLE = "unreachable"  # no such host, no route, or no answer to TCP
    SILENT = "silent"  # connected, but no greeting yet
    CLOSED = "closed"  # the peer closed before its greeting
    FOREIGN = "foreign"  # the answer is not a greeting
    VERSION = "version"  # the peer has another wire version
    WRONG_PEER = "wrong peer"  # another skipring process answers
    SECURED = "secured"  # the peer uses TLS, this process does not
    PLAIN = "plain"  # this process uses TLS, the peer does not
    UNTRUSTED = "untrusted"  # one side refuses the other's certificate
    TURNED_AWAY = "turned away"  # refused after the greeting, with a reason
    NAME_TAKEN = "name taken"  # another live process holds this process's name


_SENTENCES: Final = {
    Cause.REFUSED: "nothing listens on {address}{remedy}",
    Cause.UNREACHABLE: "{address} cannot be reached: {detail}",
    Cause.SILENT: "{address} accepts connections but has not answered as skipring",
    Cause.CLOSED: "{address} closed the connection during the handshake",
    Cause.FOREIGN: "{address} is not {what}: it answered with {detail}",
    Cause.VERSION: f"{{address}} uses wire version {{detail}}, this process uses {VERSION}",
    Cause.WRONG_PEER: "{address} is not {what}: it is {detail}",
    Cause.SECURED: (
        "{address} speaks TLS, and this process has no certificate; set the CA, the certificate "
        "and its key (`skipring certs` creates them)"
    ),
    Cause.PLAIN: (
        "{address} does not speak TLS; it is not {what}, or it was started without certificates"
    ),
    Cause.UNTRUSTED: (
        "{address} and this process do not accept each other's certificates ({detail}); "
        "all processes of a cluster have certificates of the same authority"
    ),
    Cause.TURNED_AWAY: "{address} refuses connections of this process: {detail}",
    Cause.NAME_TAKEN: "{address} refuses this process: {detail}",
}


class DialFailure(Struct, frozen=True):
    """One failed dial; ``detail`` completes the sentence of its cause."""

    cause: Cause
    detail: str = ""

    def sentence(self, address: Address, node: NodeId | None) -> str:
        """Return a sentence about the dial; ``node`` was expected there, or a supervisor if None.

        >>> DialFailure(Cause.FOREIGN, "HTTP").sentence("127.0.0.1:7400", None)
        '127.0.0.1:7400 is not a skipring supervisor: it answered with HTTP'
        """
        is_supervisor = node is None
        return _SENTENCES[self.cause].format(
            address=address,
            detail=self.detail,
            what="a skipring supervisor" if is_supervisor else f"the skipring node {node}",
            remedy="; start one with: skipring supervisor" if is_supervisor else "",
        )


SILENT: Final = DialFailure(Cause.SILENT)
CLOSED: Final = DialFailure(Cause.CLOSED)
NO_ANSWER: Final = DialFailure(Cause.UNREACHABLE, "no answer")


def failure_of(error: Exception) -> DialFailure:
    """Return the failure that corresponds to an error of a connection or a TLS handshake."""
    match error:
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError() | ConnectionResetError():
            return CLOSED
        case ssl.SSLError():
            return _tls_failure(error)
        case ConnectionAbortedError():  # asyncio raises it if a TLS handshake takes too long
            return SILENT
        case ConnectionRefusedError():
            return DialFailure(Cause.REFUSED)
        case _:
            return DialFailure(Cause.UNREACHABLE, _reason(error))


def _tls_failure(error: ssl.SSLError) -> DialFailure:
    if isinstance(error, ssl.SSLCertVerificationError):
        return DialFailure(Cause.UNTRUSTED, error.verify_message)
    reason = (error.reason or "").replace("_", " ").lower()
    is_plain = reason in NOT_TLS
    return DialFailure(Cause.PLAIN) if is_plain else DialFailure(Cause.UNTRUSTED, reason)


def _reason(error: Exception) -> str:
    match error:
        case TimeoutError():
            return NO_ANSWER.detail
        case OSError():
            return (error.strerror or str(error)).lower()
        case _:  # UnicodeError
            return "not a host name"


def failure_in(first: bytes) -> DialFailure:
    """Return the failure for the first bytes of a server that sent no valid greeting."""
    version = version_in(first)
    if version not in (None, VERSION):
        return DialFailure(Cause.VERSION, str(version))
    if len(first) > 1 and first[0] in _TLS_RECORDS and first[1] == _TLS_MAJOR:
        return DialFailure(Cause.SECURED)
    if first.lower().startswith(_HTTP):
        return DialFailure(Cause.FOREIGN, "HTTP")
    if first.startswith(b"SSH-"):
        return DialFailure(Cause.FOREIGN, "SSH")
    return DialFailure(Cause.FOREIGN, shown(first.decode("latin-1")))


def classify_tls_error(error: Exception) -> tuple[str | None, str]:
    """Return why a TLS handshake failed, as reason and detail; the reason is None if not TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "bad certificate", error.verify_message
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "").replace("_", " ").lower()
        if "did not return a certificate" in reason:
            return "no certificate", "the peer has presented none"
        if reason in NOT_TLS:
            return "handshake failed", "the peer does not speak TLS"
        return "handshake failed", reason or str(error)
    return None, str(error)


def wrong_peer(greeting: Hello) -> DialFailure:
    """Return the failure of a dial that another skipring process answered."""
    is_supervisor = greeting.role is Role.SUPERVISOR
    who = "a skipring supervisor" if is_supervisor else f"the skipring node {greeting.node}"
    return DialFailure(Cause.WRONG_PEER, who)
