"""Credentials of a process: authorities, certificate and key, and the names it may use."""

from __future__ import annotations

import os
import shlex
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, time_ns
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from skipring.core.limits import check_node
from skipring.core.peers import NodeId
from skipring.errors import InputError, MessageError
from skipring.observability.logs import logger
from skipring.security.deny_list import deny_list_beside, read_deny_list, serial_text


def peer_name(certificate: Mapping[str, Any] | None) -> NodeId | None:
    """Return the name in the result of ``getpeercert``; None if it has no single valid name."""
    subject = certificate.get("subject", ()) if certificate else ()
    return name_in([text for part in subject for key, text in part if key == "commonName"])


def may_act_as(certificate_name: str, node: str) -> bool:
    """Return True if the holder of a certificate with this name may act as a node."""
    return bool(certificate_name) and (
        node == certificate_name or node.startswith(f"{certificate_name}.")
    )


def name_in(common_names: Sequence[str]) -> NodeId | None:
    """Return the only common name of a subject if a node can have it, else None."""
    if len(common_names) != 1:
        return None
    try:
        check_node(common_names[0])
    except MessageError:
        return None
    return common_names[0]


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


PURPOSES: Final = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)

CHECK_S: Final = 1.0  # Guess: files change rarely, and an operator waits for the change to apply.
FRESH_NS: Final = 1_000_000_000  # Guess: a certificate and its key are replaced within a second.

_LOG: Final = logger("credentials")

_FILE_BYTES_MAX: Final = 1 << 20  # Chosen limit: hundreds of certificates.
_OF_OTHERS: Final = 0o077


class Distrust(Struct, frozen=True):
    """Reason to refuse a certificate that an authority has signed."""

    reason: str  # the label of a counter
    sentence: str


class _Loaded(Struct, frozen=True):
    """Content of the files when they were last read."""

    name: NodeId
    expires: datetime
    server: ssl.SSLContext
    client: ssl.SSLContext


class Credentials:
    """Verified certificate and key of this process.

    The constructor raises InputError for anything that peers would refuse later. The file of the
    authorities may contain several: during a change of the authority, a cluster trusts both.

    ``refresh`` reads the files again when they have changed, and the deny list beside the file of
    the authorities too. Open connections keep the certificate that they presented.
    """

    def __init__(self, ca: Path, cert: Path, key: Path) -> None:
        self._files = ca, cert, key
        self._deny_list = deny_list_beside(ca)
        self._stamps = self._stamp()  # stamps of the files last read, usable or not
        self._loaded = self._load()
        self._denied = read_deny_list(self._deny_list)
        self._check_s = 0.0  # time of the next check of the files

    def __repr__(self) -> str:
        return f"Credentials(name={self.name!r}, expires={self.expires!r})"

    @property
    def name(self) -> NodeId:
        """Return the name in the certificate."""
        return self._loaded.name

    @property
    def expires(self) -> datetime:
        """Return when peers stop accepting the certificate."""
        return self._loaded.expires

    def server_context(self) -> ssl.SSLContext:
        """Return the context for incoming connections."""
        return self._loaded.server

    def client_context(self) -> ssl.SSLContext:
        """Return the context for outgoing connections."""
        return self._loaded.client

    def distrust(self, peer: PeerCertificate, now_s: float) -> Distrust | None:
        """Return why a verified certificate is refused now; None if it is accepted."""
        if peer.serial in self._denied:
            sentence = f"the certificate {serial_text(peer.serial)} of {peer.name} is denied"
            return Distrust("certificate denied", sentence)
        if now_s >= peer.ends_s:
            ends = time_text(datetime.fromtimestamp(peer.ends_s, UTC))
            return Distrust(
                "certificate expired", f"the certificate of {peer.name} expired at {ends}"
            )
        return None

    # -- reading again -----------------------------------------------------------------------

    def refresh(self) -> None:
        """Read the files again if they have changed; check after CHECK_S again."""
        if monotonic() < self._check_s:
            return
        self._check_s = monotonic() + CHECK_S
        stamps = self._stamp()
        if stamps == self._stamps or _is_fresh(stamps):
            return
        self._stamps = stamps
        self.reload()

    def reload(self) -> None:
        """Read the files again; if one cannot be used, log the reason and keep the earlier content.

        The deny list does not depend on the other files: it is read even if they cannot be used.
        """
        self._stamps = self._stamp()
        errors = []
        try:
            self._denied = read_deny_list(self._deny_list)
        except InputError as error:
            errors.append(error)
        try:
            loaded = self._load()
            self._check_name(loaded.name)
            self._loaded = loaded
        except InputError as error:
            errors.append(error)
        for each in errors:
            _LOG.error("credentials_rejected", reason=str(each), denied=len(self._denied))
        if not errors:
            expires = time_text(self.expires)
            _LOG.info("credentials_reloaded", expires=expires, denied=len(self._denied))

    def _check_name(self, name: NodeId) -> None:
        if name != self.name:
            raise InputError(
                f"{self._files[1]}: has the name {name}, but this process was started with the "
                f"certificate of {self.name}; restart it to change its name"
            )

    def _stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_stamp_of, (*self._files, self._deny_list)))

    def _load(self) -> _Loaded:
        ca, cert, key = self._files
        authorities = read_certificates(ca)
        certificate = read_certificates(cert)[0]
        name = _usable_name(certificate)
        if not belongs_to(read_key(key), certificate):
            raise InputError(f"{key}: not the key of {cert}; use the key created with it")
        issuer = _issuer(certificate, authorities)
        for each in (issuer, certificate):
            each.check_time()
        # Not ssl.create_default_context: it trusts the system's authorities, and logs the keys of
        # connections if the environment requests it.
        server, client = map(ssl.SSLContext, (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
        server.num_tickets = 0  # no session resumption: each connection shows a certificate
        for context in (server, client):
            _prepare(context, authorities, cert, key)
        return _Loaded(name, min(certificate.ends, issuer.ends), server, client)


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Return values that change with a file; None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ctime_ns, found.st_ino, found.st_size


def _is_fresh(stamps: tuple[tuple[int, int, int] | None, ...]) -> bool:
    """Return True if a file has just changed: changes of the other files may follow."""
    now_ns = time_ns()
    return any(each is not None and 0 <= now_ns - each[0] < FRESH_NS for each in stamps)


def _usable_name(certificate: Certificate) -> NodeId:
    name = name_in(certificate.common_names)
    if name is None:
        raise InputError(
            f"{certificate.path}: its common name is not a valid node name; "
            "use a certificate of skipring certs issue"
        )
    if not set(PURPOSES) <= certificate.purposes:
        raise InputError(
            f"{certificate.path}: not valid for both ends of a connection, serverAuth and "
            "clientAuth; use a certificate of skipring certs issue"
        )
    return name


def _issuer(certificate: Certificate, authorities: Sequence[Certificate]) -> Certificate:
    """Return the authority that has signed a certificate."""
    for authority in authorities:
        if not authority.is_authority:
            raise InputError(
                f"{authority.path}: not an authority's certificate; "
                "use the ca.pem of skipring certs init"
            )
    for authority in authorities:
        if certificate.is_signed_by(authority):
            return authority
    raise InputError(
        f"{certificate.path}: not signed by the authority in {authorities[0].path}; "
        "all processes of a cluster need certificates of the same authority"
    )


def _prepare(
    context: ssl.SSLContext, authorities: Sequence[Certificate], cert: Path, key: Path
) -> None:
    """Load the certificate and key, and require a certificate of an authority from the peer."""
    context.check_hostname = False  # addresses change; the caller checks peer_name
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with _translate_tls_errors(authorities[0].path):
        context.load_verify_locations(cadata="".join(each.pem for each in authorities))
    with _translate_tls_errors(cert):
        context.load_cert_chain(cert, key)


@contextmanager
def _translate_tls_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # ssl.SSLError is one; a key may be too short, for example
        raise InputError(
            f"{path}: cannot be used for TLS: {error.strerror}; use a certificate of skipring certs"
        ) from None


# -- reading ---------------------------------------------------------------------------------


class Certificate(Struct, frozen=True):
    """Certificate read from a file, with the parsed fields that the checks use."""

    path: Path
    parsed: x509.Certificate
    common_names: tuple[str, ...]
    public_key: bytes
    is_authority: bool
    purposes: frozenset[x509.ObjectIdentifier]
    starts: datetime
    ends: datetime

    @property
    def pem(self) -> str:
        """Return the certificate as text."""
        return self.parsed.public_bytes(Encoding.PEM).decode()

    @property
    def serial(self) -> int:
        """Return the serial number, unique among the certificates of an authority."""
        return self.parsed.serial_number

    def is_signed_by(self, issuer: Certificate) -> bool:
        """Return True if the key of another certificate has signed this one."""
        try:
            self.parsed.verify_directly_issued_by(issuer.parsed)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            return False
        return True

    def check_time(self) -> None:
        """Raise InputError for a certificate that is not valid now."""
        now = _now()
        if now >= self.ends:
            remedy = "init in a new directory" if self.is_authority else "issue"
            raise InputError(
                f"{self.path}: expired at {time_text(self.ends)}; "
                f"create a new one with skipring certs {remedy}"
            )
        if now < self.starts:
            raise InputError(
                f"{self.path}: valid from {time_text(self.starts)} only; check this machine's clock"
            )


def time_text(moment: datetime) -> str:
    """Format a time for display."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def read_certificates(path: Path) -> list[Certificate]:
    """Read all certificates of a PEM file; there is at least one."""
    data = _read(path)
    with _translate_parse_errors(path, "certificate"):
        return [_certificate(path, each) for each in x509.load_pem_x509_certificates(data)]


def read_key(path: Path) -> PrivateKeyTypes:
    """Read a key from a PEM file that only its owner may read."""
    data = _read(path, is_secret=True)
    with _translate_parse_errors(path, "unencrypted private key"):
        return load_pem_private_key(data, password=None)


def belongs_to(key: PrivateKeyTypes, certificate: Certificate) -> bool:
    """Return True if a certificate contains the public half of a key."""
    return _public_bytes(key) == certificate.public_key


def _certificate(path: Path, parsed: x509.Certificate) -> Certificate:
    found = {type(each.value): each.value for each in parsed.extensions}
    constraints, usage = found.get(x509.BasicConstraints), found.get(x509.ExtendedKeyUsage)
    names = parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return Certificate(
        path,
        parsed,
        common_names=tuple(str(name.value) for name in names),
        public_key=_public_bytes(parsed),
        is_authority=isinstance(constraints, x509.BasicConstraints) and constraints.ca,
        # A certificate without the extension permits all purposes.
        purposes=frozenset(usage if isinstance(usage, x509.ExtendedKeyUsage) else PURPOSES),
        starts=parsed.not_valid_before_utc,
        ends=parsed.not_valid_after_utc,
    )


def _public_bytes(holder: PrivateKeyTypes | x509.Certificate) -> bytes:
    return holder.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _read(path: Path, *, is_secret: bool = False) -> bytes:
    try:
        with path.open("rb") as file:
            if is_secret and os.fstat(file.fileno()).st_mode & _OF_OTHERS:
                raise InputError(
                    f"{path}: other users may read this key; "
                    f"restrict it with chmod 600 {shlex.quote(str(path))}"
                )
            return file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; check the path and its permissions"
        ) from None


@contextmanager
def _translate_parse_errors(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except (
        ValueError,
        TypeError,  # a key that needs a password
        UnsupportedAlgorithm,
        x509.DuplicateExtension,
        x509.InvalidVersion,
        x509.UnsupportedGeneralNameType,
    ):
        raise InputError(
            f"{path}: no {what} in PEM form can be read from it; "
            "check that it is the right file and complete"
        ) from None


def _now() -> datetime:
    return datetime.now(UTC)
