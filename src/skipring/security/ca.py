"""Certificate authority of a cluster, and the certificates of its processes."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from msgspec import Struct

from skipring.core.limits import check_node, shown
from skipring.core.peers import NodeId
from skipring.errors import IdentityError, InputError, MessageError
from skipring.security.credentials import (
    PURPOSES,
    Certificate,
    belongs_to,
    read_certificates,
    read_key,
    time_text,
)
from skipring.security.deny_list import FILE_NAME, deny, parse_serial
from skipring.storage.data_dir import sync_directory

DAYS_MAX: Final = 36_500  # Chosen limit: far from the year 9999, where X.509 ends.
CLOCK_DIFFERENCE: Final = timedelta(minutes=5)  # Guess: the skew between machines.

_AUTHORITY: Final = "ca"
_SECRET_MODE: Final = 0o600
_PUBLIC_MODE: Final = 0o644
_DIRECTORY_MODE: Final = 0o700
# The last part of a host name is not a number: that would be a mistyped address.
_HOST: Final = re.compile(r"(?=.{1,253}\Z)(?:\w[\w-]{0,62}\.)*(?![0-9]+\Z)\w[\w-]{0,62}", re.ASCII)


class Files(NamedTuple):
    """Paths of a certificate and its key."""

    certificate: Path
    key: Path


class Issued(Struct, frozen=True):
    """Certificate that was written."""

    name: NodeId
    certificate: Path
    key: Path
    serial: int
    ends: datetime
    is_cut: bool  # shortened, because it would have outlived its authority


def make_authority(directory: Path, *, days: int) -> Path:
    """Create the authority of a cluster, ``ca.pem`` and ``ca.key``; return its directory."""
    _check_days(days)
    files = authority_files(directory)
    _check_absent(files)
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = _named(f"skipring authority {serial % (1 << 32):08x}")  # distinguishes two authorities
    ends = _now() + timedelta(days=days)
    builder = _builder(name, key.public_key(), ends, is_authority=True).issuer_name(name)
    _write(files, builder.serial_number(serial).sign(key, SHA256()), key)
    return directory


def authority_files(directory: Path) -> Files:
    """Return the paths of the certificate and key of the authority in a directory."""
    return _files(directory, _AUTHORITY)


def issue(authority: Path, name: NodeId, out: Path, *, days: int, hosts: Sequence[str]) -> Issued:
    """Issue a certificate of the authority in a directory: ``NAME.pem`` and ``NAME.key``."""
    (issued,) = issue_each(authority, [name], out, days=days, hosts=hosts)
    return issued


def issue_each(
    authority: Path, names: Sequence[NodeId], out: Path, *, days: int, hosts: Sequence[str]
) -> list[Issued]:
    """Issue certificates; write none if one of them is refused."""
    _check_days(days)
    _check_names(names)
    places = [_place(host) for host in dict.fromkeys(hosts)]
    signer = _Signer.read(authority)
    for name in names:
        _check_absent(_files(out, name))
    return [signer.issue(name, _files(out, name), days, places) for name in names]


def certificates_in(directory: Path) -> list[Certificate]:
    """Read the certificates of processes in a directory, without its authority."""
    found = [read_certificates(path)[0] for path in sorted(directory.glob("*.pem"))]
    return [each for each in found if not each.is_authority]


def deny_each(directory: Path, given: Sequence[str]) -> list[tuple[int, str, bool]]:
    """Deny certificates, given as files or serial numbers, in an authority's deny list.

    Return for each its serial number, its comment and whether it is new.
    """
    serials = dict(_denied(each) for each in given)
    new = deny(directory / FILE_NAME, serials)
    return [(serial, comment, serial in new) for serial, comment in serials.items()]


def _denied(given: str) -> tuple[int, str]:
    """Return the serial number in a text, or of the certificate in the file that it names."""
    serial = parse_serial(given)
    if serial is not None and not Path(given).exists():
        return serial, f"denied at {time_text(_now())}"
    certificate = read_certificates(Path(given))[0]
    if certificate.is_authority:
        raise InputError(
            f"{given}: the certificate of an authority; to distrust it, remove it from the file "
            "of the authorities"
        )
    name = " ".join(certificate.common_names)
    return certificate.serial, f"{name}, denied at {time_text(_now())}"


class _Signer(Struct, frozen=True):
    """Authority that can issue certificates."""

    certificate: Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def read(cls, directory: Path) -> _Signer:
        """Read an authority from its directory; raise InputError if it cannot be used."""
        files = authority_files(directory)
        if not files.certificate.exists():
            raise InputError(
                f"{files.certificate}: there is no such file; create an authority first: "
                f"skipring certs init {shlex.quote(str(directory))}"
            )
        certificate, key = read_certificates(files.certificate)[0], read_key(files.key)
        if not certificate.is_authority or not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InputError(
                f"{directory}: its ca.pem and ca.key are not an authority of "
                "skipring certs init; use the directory of one"
            )
        if not belongs_to(key, certificate):
            raise InputError(
                f"{files.key}: not the key of {files.certificate}; "
                "restore the key that was created with it"
            )
        certificate.check_time()
        return cls(certificate, key)

    def issue(
        self, name: NodeId, files: Files, days: int, places: Sequence[x509.GeneralName]
    ) -> Issued:
        """Create a key and a certificate for it, and write both."""
        key = ec.generate_private_key(ec.SECP256R1())
        wanted = _now() + timedelta(days=days)
        ends = min(wanted, self.certificate.ends)
        identity = x509.UniformResourceIdentifier(f"skipring:{name}")
        builder = _builder(_named(name), key.public_key(), ends, is_authority=False)
        for extension in (
            x509.ExtendedKeyUsage(PURPOSES),
            x509.SubjectAlternativeName([*places, identity]),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
        ):
            builder = builder.add_extension(extension, critical=False)
        builder = builder.issuer_name(self.certificate.parsed.subject)
        signed = builder.serial_number(x509.random_serial_number()).sign(self.key, SHA256())
        _write(files, signed, key)
        is_cut = wanted > self.certificate.ends
        return Issued(name, *files, signed.serial_number, signed.not_valid_after_utc, is_cut)


# -- arguments -------------------------------------------------------------------------------


def _check_days(days: int) -> None:
    if not 1 <= days <= DAYS_MAX:
        raise InputError(f"a certificate is valid for 1 to {DAYS_MAX} days, not {days}")


def _check_names(names: Sequence[NodeId]) -> None:
    for name in names:
        try:
            check_node(name)
        except MessageError as error:
            raise IdentityError(f"invalid name for a certificate: {error}") from None
        if names.count(name) > 1:
            raise IdentityError(f"the name {name} is given twice")


def _place(host: str) -> x509.GeneralName:
    """Return a host in the form that certificates use."""
    try:
        address = ip_address(host)
    except ValueError:
        if _HOST.fullmatch(host):
            return x509.DNSName(host)
    else:
        if not (isinstance(address, IPv6Address) and address.scope_id):
            return x509.IPAddress(address)
    raise InputError(
        f"invalid host: {shown(host)}; use an IP address or a name in ASCII, without a port"
    )


# -- certificates ----------------------------------------------------------------------------


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, ends: datetime, *, is_authority: bool
) -> x509.CertificateBuilder:
    """Return a certificate without an issuer; only an authority's certificate can sign others."""
    length = 0 if is_authority else None
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .not_valid_before(_now() - CLOCK_DIFFERENCE)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=length), critical=True)
        .add_extension(_usage(is_authority=is_authority), critical=True)
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    """Return the key usage: an authority signs certificates and CRLs, others sign handshakes."""
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _now() -> datetime:
    return datetime.now(UTC)


# -- files -----------------------------------------------------------------------------------


def _files(directory: Path, name: str) -> Files:
    return Files(directory / f"{name}.pem", directory / f"{name}.key")


def _check_absent(files: Files) -> None:
    for path in files:
        if path.exists():
            raise _exists(path)


def _exists(path: Path | str) -> InputError:
    return InputError(
        f"{path}: exists already and is never overwritten; "
        "choose another name or directory, or move the file first"
    )


def _write(files: Files, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    """Write both files, or none."""
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    directory = files.key.parent
    with _translate_write_errors(directory), ExitStack() as undone:
        _make_directory(directory)
        _write_new(files.key, secret, _SECRET_MODE, undone)
        _write_new(files.certificate, certificate.public_bytes(Encoding.PEM), _PUBLIC_MODE, undone)
        sync_directory(directory)
        undone.pop_all()


def _write_new(path: Path, data: bytes, mode: int, undone: ExitStack) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    undone.callback(path.unlink, missing_ok=True)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _make_directory(directory: Path) -> None:
    """Create a directory and its parents; ``Path.mkdir`` would give parents a more open mode."""
    for each in (*reversed(directory.parents), directory):
        if not each.exists():
            each.mkdir(_DIRECTORY_MODE, exist_ok=True)


@contextmanager
def _translate_write_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:  # created after the check
        raise _exists(error.filename) from None
    except OSError as error:
        raise InputError(
            f"cannot write {error.filename or directory}: {error.strerror}; "
            "choose a directory that this user may write to, on a disk with free space"
        ) from None
