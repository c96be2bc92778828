"""Authorities and certificates: created as requested, or nothing is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from errno import ENOSPC
from ipaddress import ip_address
from pathlib import Path
from shutil import copy

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from skipring.errors import IdentityError, InputError
from skipring.security import ca as ca_module
from skipring.security.ca import issue, issue_each, make_authority
from skipring.security.credentials import belongs_to, read_certificates, read_key


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    return make_authority(tmp_path / "certs", days=1000)


def issued_by(authority: Path, name: str = "ann", **changes: object) -> ca_module.Issued:
    given: dict[str, object] = {"out": authority, "days": 10, "hosts": (), **changes}
    return issue(authority, name, **given)  # type: ignore[arg-type]


def parsed(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def common_name(certificate: x509.Certificate) -> str | bytes:
    (attribute,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return attribute.value


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def lived(certificate: x509.Certificate) -> timedelta:
    return certificate.not_valid_after_utc - certificate.not_valid_before_utc


# --- contents --------------------------------------------------------------------------


def test_authority_signs_certificates_and_no_further_authorities(authority: Path) -> None:
    certificate = parsed(authority / "ca.pem")
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert usage.value.crl_sign
    assert not usage.value.digital_signature
    certificate.verify_directly_issued_by(certificate)
    assert certificate.version is x509.Version.v3


def test_two_authorities_have_different_names_and_keys(tmp_path: Path) -> None:
    one, other = (parsed(make_authority(tmp_path / name, days=1) / "ca.pem") for name in "ab")
    assert one.subject != other.subject
    assert one.public_key() != other.public_key()


def test_certificate_has_the_name_of_its_node_and_serves_both_ends(authority: Path) -> None:
    issued = issued_by(authority, "ann.1")
    certificate = parsed(issued.certificate)
    assert common_name(certificate) == "ann.1"
    certificate.verify_directly_issued_by(parsed(authority / "ca.pem"))
    extensions = certificate.extensions
    assert extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    usage = extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.digital_signature
    assert not usage.key_cert_sign
    assert set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == {
        ExtendedKeyUsageOID.SERVER_AUTH,
        ExtendedKeyUsageOID.CLIENT_AUTH,
    }


def test_keys_use_curve_p_256_and_match_their_certificates(authority: Path) -> None:
    issued_by(authority)
    for name in ("ca", "ann"):
        key = read_key(authority / f"{name}.key")
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.curve.name == "secp256r1"
        assert belongs_to(key, read_certificates(authority / f"{name}.pem")[0])


def test_hosts_and_name_are_in_the_certificate_once_each(authority: Path) -> None:
    hosts = ["a.example.org", "10.0.0.1", "::1", "localhost", "10.0.0.1"]
    certificate = parsed(issued_by(authority, hosts=hosts).certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [
        x509.DNSName("a.example.org"),
        x509.IPAddress(ip_address("10.0.0.1")),
        x509.IPAddress(ip_address("::1")),
        x509.DNSName("localhost"),
        x509.UniformResourceIdentifier("skipring:ann"),
    ]
    alone = parsed(issued_by(authority, "bob").certificate).extensions
    assert list(alone.get_extension_for_class(x509.SubjectAlternativeName).value) == [
        x509.UniformResourceIdentifier("skipring:bob")
    ]


def test_certificates_are_valid_for_clocks_that_are_minutes_late(authority: Path) -> None:
    issued_by(authority)
    for name in ("ca.pem", "ann.pem"):
        early = datetime.now(UTC) - parsed(authority / name).not_valid_before_utc
        assert timedelta(minutes=3) < early < timedelta(hours=1)


def test_certificates_have_the_requested_lifetime(authority: Path) -> None:
    issued = issued_by(authority, days=10)
    assert lived(parsed(issued.certificate)) == timedelta(days=10, minutes=5)
    assert lived(parsed(authority / "ca.pem")) == timedelta(days=1000, minutes=5)
    assert issued.ends == parsed(issued.certificate).not_valid_after_utc
    assert not issued.is_cut


def test_certificate_ends_with_its_authority(authority: Path) -> None:
    issued = issued_by(authority, days=1001)
    assert issued.is_cut
    assert issued.ends == parsed(authority / "ca.pem").not_valid_after_utc
    assert issued.ends == parsed(issued.certificate).not_valid_after_utc


def test_every_certificate_has_its_own_serial_and_key(authority: Path) -> None:
    issued = issue_each(authority, ["a", "b", "c"], authority, days=1, hosts=[])
    made = [parsed(each.certificate) for each in issued]
    assert len({each.serial_number for each in made}) == 3
    assert len({each.key.read_bytes() for each in issued}) == 3


# --- files -----------------------------------------------------------------------------


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_keys_and_directories_are_private_under_any_umask(tmp_path: Path, open_umask: None) -> None:
    authority = make_authority(tmp_path / "above" / "certs", days=1)
    issued = issued_by(authority, out=tmp_path / "x" / "y")
    assert mode(authority / "ca.key") == mode(issued.key) == 0o600
    for directory in ("above", "above/certs", "x", "x/y"):
        assert mode(tmp_path / directory) == 0o700


def test_key_file_is_private_before_its_first_byte_is_written(
    tmp_path: Path, open_umask: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    fdopen = os.fdopen

    def spying(descriptor: int, how: str) -> object:
        status = os.fstat(descriptor)
        seen.append((status.st_mode & 0o777, status.st_size))
        return fdopen(descriptor, how)

    monkeypatch.setattr(os, "fdopen", spying)
    make_authority(tmp_path, days=1)
    assert seen == [(0o600, 0), (0o644, 0)]


@pytest.mark.parametrize("there", ["ca.pem", "ca.key", "ann.pem", "ann.key"])
def test_existing_file_is_never_overwritten(authority: Path, tmp_path: Path, there: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / there).write_text("precious")
    with pytest.raises(InputError, match=rf"{there}: exists already.*move the file"):
        make_authority(out, days=1) if there.startswith("ca") else issued_by(authority, out=out)
    assert names_in(out) == {there}
    assert (out / there).read_text() == "precious"


def test_dangling_link_is_not_followed(authority: Path, tmp_path: Path) -> None:
    (authority / "ann.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"ann.key: exists already"):
        issued_by(authority)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("there", ["ann.pem", "ann.key"])
def test_file_that_appears_at_the_last_moment_is_not_overwritten(
    authority: Path, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    (authority / there).write_text("precious")
    monkeypatch.setattr(ca_module, "_check_absent", lambda files: None)
    with pytest.raises(InputError, match=rf"{there}: exists already"):
        issued_by(authority)
    assert names_in(authority) == {"ca.pem", "ca.key", there}
    assert (authority / there).read_text() == "precious"


def test_node_called_ca_does_not_replace_the_authority(authority: Path) -> None:
    before = (authority / "ca.pem").read_bytes()
    with pytest.raises(InputError, match=r"ca.pem: exists already"):
        issued_by(authority, "ca")
    assert (authority / "ca.pem").read_bytes() == before


def test_full_disk_leaves_no_incomplete_pair(
    authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(ENOSPC, os.strerror(ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"cannot write .*certs: No space left"):
        issued_by(authority)
    assert names_in(authority) == {"ca.pem", "ca.key"}


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_directory_that_cannot_be_created_is_reported(
    authority: Path, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write .*file.*: Not a directory; choose a"):
        issued_by(authority, out=tmp_path / place)
    with pytest.raises(InputError, match=r"cannot write .*file.*: Not a directory; choose a"):
        make_authority(tmp_path / place, days=1)


# --- refusals --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a b", "é", "a" * 65, "../a", "a\n", "a\0"])
def test_invalid_node_name_is_refused_for_a_certificate(authority: Path, name: str) -> None:
    with pytest.raises(
        IdentityError, match=r"invalid name for a certificate: .* 1 to 64 characters"
    ):
        issued_by(authority, name)
    assert names_in(authority) == {"ca.pem", "ca.key"}


@pytest.mark.parametrize("name", ["a" * 64, ".", "..", "-x", "A_b-c.d"])
def test_every_node_name_is_valid_for_a_certificate(authority: Path, name: str) -> None:
    issued = issued_by(authority, name)
    assert common_name(parsed(issued.certificate)) == name
    assert names_in(authority) == {"ca.pem", "ca.key", f"{name}.pem", f"{name}.key"}


@pytest.mark.parametrize("days", [-1, 0, 36_501, 10**12])
def test_lifetime_out_of_range_is_refused(authority: Path, tmp_path: Path, days: int) -> None:
    with pytest.raises(InputError, match=f"valid for 1 to 36500 days, not {days}"):
        issued_by(authority, days=days)
    with pytest.raises(InputError, match=f"valid for 1 to 36500 days, not {days}"):
        make_authority(tmp_path / "other", days=days)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "host",
    [
        *("", "a b", "a:1", "10.0.0.1:80", "300.1.1.1", "10.0.0.0/8", "fe80::1%eth0", "[::1]"),
        *(
            "bücher.example",
            "a..b",
            ".a",
            "a" * 64,
            "a." * 127,
            "*.example.org",
            "a\n",
            "a/b",
            "-a",
        ),
    ],
)
def test_invalid_host_is_refused(authority: Path, host: str) -> None:
    with pytest.raises(InputError, match=r"invalid host: .*; use an IP address or a name"):
        issued_by(authority, hosts=["localhost", host])
    assert names_in(authority) == {"ca.pem", "ca.key"}


def test_nothing_is_issued_if_one_of_several_is_refused(authority: Path) -> None:
    (authority / "c.key").write_text("")
    with pytest.raises(InputError, match=r"c.key: exists already"):
        issue_each(authority, ["a", "b", "c"], authority, days=1, hosts=[])
    with pytest.raises(IdentityError, match="the name b is given twice"):
        issue_each(authority, ["a", "b", "b"], authority, days=1, hosts=[])
    assert names_in(authority) == {"ca.pem", "ca.key", "c.key"}


def cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def with_a_directory_for_a_key(directory: Path) -> None:
    (directory / "ca.key").unlink()
    (directory / "ca.key").mkdir(0o700)


def with_the_key_of_another(directory: Path) -> None:
    copy(make_authority(directory / "other", days=1) / "ca.key", directory / "ca.key")


def with_a_certificate_of_a_node(directory: Path) -> None:
    issued = issued_by(directory, out=directory / "other")
    copy(issued.certificate, directory / "ca.pem")
    copy(issued.key, directory / "ca.key")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda at: (at / "ca.pem").unlink(),
            r"ca.pem: there is no such file; .*skipring certs init \S+certs",
        ),
        (
            lambda at: (at / "ca.key").unlink(),
            r"cannot read \S+ca.key: No such file or directory; check",
        ),
        (with_a_directory_for_a_key, r"cannot read \S+ca.key: Is a directory"),
        (lambda at: cut(at / "ca.pem", 100), r"ca.pem: no certificate in PEM form"),
        (lambda at: cut(at / "ca.key", 60), r"ca.key: no unencrypted private key in PEM form"),
        (lambda at: (at / "ca.pem").write_bytes(b""), r"ca.pem: no certificate in PEM form"),
        (lambda at: copy(at / "ca.key", at / "ca.pem"), r"ca.pem: no certificate in PEM form"),
        (with_the_key_of_another, r"ca.key: not the key of \S+ca.pem; restore the key"),
        (
            lambda at: (at / "ca.key").chmod(0o640),
            r"ca.key: other users .* with chmod 600 \S+ca.key",
        ),
        (with_a_certificate_of_a_node, r"certs: its ca.pem and ca.key are not an authority"),
    ],
)
def test_unusable_authority_is_refused(
    authority: Path, spoil: Callable[[Path], object], words: str
) -> None:
    spoil(authority)
    with pytest.raises(InputError, match=words) as raised:
        issued_by(authority)
    assert "\n" not in str(raised.value)
    assert not (authority / "ann.pem").exists()
    assert not (authority / "ann.key").exists()


@pytest.mark.parametrize(
    ("days", "words"),
    [
        (-3, r"expired at \d{4}-.* UTC; .* certs init"),
        (3, "valid from .* only; check this machine's clock"),
    ],
)
def test_authority_of_the_past_or_future_issues_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, words: str
) -> None:
    then = datetime.now(UTC) + timedelta(days=days)
    with monkeypatch.context() as patched:
        patched.setattr(ca_module, "_now", lambda: then)
        authority = make_authority(tmp_path, days=2)
    with pytest.raises(InputError, match=f"ca.pem: {words}"):
        issued_by(authority)
    assert names_in(tmp_path) == {"ca.pem", "ca.key"}
