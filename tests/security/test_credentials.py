"""Credentials: unusable files are refused when loaded, and contexts refuse foreign certificates."""

from __future__ import annotations

import socket
import ssl
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from shutil import copy
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from skipring.errors import InputError
from skipring.security.ca import issue, make_authority
from skipring.security.credentials import Credentials, may_act_as, peer_name, read_key

DEADLINE_S = 30.0
NOW = datetime.now(UTC)
DAY = timedelta(days=1)

Files = tuple[Path, Path, Path]
AnyKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an authority with certificates of ann and bob; tests do not change it."""
    directory = make_authority(tmp_path_factory.mktemp("cluster") / "certs", days=100)
    for name in ("ann", "bob"):
        issue(directory, name, directory, days=10, hosts=[])
    return directory


def files_of(directory: Path, name: str) -> Files:
    return directory / "ca.pem", directory / f"{name}.pem", directory / f"{name}.key"


@pytest.fixture
def files(cluster: Path, tmp_path: Path) -> Files:
    """Return copies of the files of ann, which a test may change."""
    for path in files_of(cluster, "ann"):
        copy(path, tmp_path)
    return files_of(tmp_path, "ann")


def write_pair(cert: Path, key: Path, certificate: x509.Certificate, secret: AnyKey) -> None:
    cert.write_bytes(certificate.public_bytes(Encoding.PEM))
    key.touch(0o600)
    key.chmod(0o600)
    key.write_bytes(secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def odd(
    authority: Path,
    directory: Path,
    *,
    names: tuple[str, ...] = ("ann",),
    starts: datetime = NOW - DAY,
    ends: datetime = NOW + DAY,
    purposes: tuple[x509.ObjectIdentifier, ...] = (),
    secret: AnyKey | None = None,
) -> Files:
    """Issue an unusual certificate, signed with the key in the directory."""
    issuer = x509.load_pem_x509_certificate((authority / "ca.pem").read_bytes())
    issuer_key = read_key(authority / "ca.key")
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    secret = secret or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    builder = (
        x509.CertificateBuilder(issuer.subject, subject, secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(starts)
        .not_valid_after(ends)
    )
    if purposes:
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    made = directory / "odd.pem", directory / "odd.key"
    write_pair(*made, builder.sign(issuer_key, SHA256()), secret)
    return authority / "ca.pem", *made


# --- loading ---------------------------------------------------------------------------


def test_credentials_have_name_and_expiry_of_their_certificate(cluster: Path) -> None:
    credentials = Credentials(*files_of(cluster, "ann"))
    assert credentials.name == "ann"
    assert timedelta(days=9) < credentials.expires - datetime.now(UTC) < timedelta(days=11)


def test_credentials_end_with_their_authority(cluster: Path, tmp_path: Path) -> None:
    files = odd(cluster, tmp_path, ends=NOW + 1000 * DAY)
    ca = x509.load_pem_x509_certificate(files[0].read_bytes())
    assert Credentials(*files).expires == ca.not_valid_after_utc


def test_repr_of_credentials_shows_no_secret(cluster: Path) -> None:
    text = repr(Credentials(*files_of(cluster, "ann")))
    assert text.startswith("Credentials(name='ann', expires=datetime")
    assert "SSLContext" not in text


@pytest.mark.parametrize("which", ["ca.pem", "ann.pem", "ann.key"])
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.unlink(), "cannot read {}: No such file or directory; check the path"),
        (lambda path: path.write_bytes(b""), "{}: no .* in PEM form can be read"),
        (lambda path: path.write_bytes(b"\xff" * 5000), "{}: no .* in PEM form can be read"),
        (lambda path: path.write_bytes(path.read_bytes()[:-60]), "{}: no .* in PEM form"),
    ],
    ids=["missing", "empty", "noise", "cut off"],
)
def test_missing_or_damaged_file_is_named(
    files: Files, which: str, spoil: Callable[[Path], object], words: str
) -> None:
    spoil(next(path for path in files if path.name == which))
    with pytest.raises(InputError, match=words.format(rf"\S+{which}")) as raised:
        Credentials(*files)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("which", ["ca.pem", "ann.pem", "ann.key"])
def test_flipped_bits_are_an_input_error_or_do_no_harm(files: Files, which: str) -> None:
    path = next(path for path in files if path.name == which)
    whole, rng = path.read_bytes(), Random(which)
    for _ in range(150):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        # The signature of an authority itself is not checked; warnings are about odd encodings.
        with suppress(InputError), warnings.catch_warnings(action="ignore"):
            assert Credentials(*files).name == "ann"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610, 0o602])
def test_key_readable_by_others_is_refused_with_the_remedy(files: Files, mode: int) -> None:
    files[2].chmod(mode)
    with pytest.raises(InputError, match=r"ann.key: other users .* with chmod 600 \S+/ann.key"):
        Credentials(*files)
    files[2].chmod(0o400)
    assert Credentials(*files).name == "ann"


def test_key_of_another_certificate_is_refused(cluster: Path) -> None:
    ca, cert, _ = files_of(cluster, "ann")
    with pytest.raises(InputError, match=r"bob.key: not the key of \S+ann.pem"):
        Credentials(ca, cert, cluster / "bob.key")


def test_encrypted_key_is_refused_without_a_prompt(files: Files) -> None:
    secret = read_key(files[2])
    encryption = BestAvailableEncryption(b"secret")
    files[2].write_bytes(secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    with pytest.raises(InputError, match=r"ann.key: no unencrypted private key in PEM form"):
        Credentials(*files)


def test_certificate_of_another_authority_is_refused(files: Files, tmp_path: Path) -> None:
    other = make_authority(tmp_path / "other", days=1) / "ca.pem"
    with pytest.raises(InputError, match=r"ann.pem: not signed by the authority in \S+ca.pem"):
        Credentials(other, *files[1:])


def test_authority_of_the_same_name_with_another_key_is_refused(
    files: Files, tmp_path: Path
) -> None:
    original = x509.load_pem_x509_certificate(files[0].read_bytes())
    fake_key = ec.generate_private_key(ec.SECP256R1())
    fake = (
        x509.CertificateBuilder(original.subject, original.subject, fake_key.public_key())
        .serial_number(original.serial_number)
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(fake_key, SHA256())
    )
    files[0].write_bytes(fake.public_bytes(Encoding.PEM))
    with pytest.raises(InputError, match=r"ann.pem: not signed by the authority"):
        Credentials(*files)


def test_node_certificate_cannot_sign_certificates(files: Files, cluster: Path) -> None:
    with pytest.raises(InputError, match=r"bob.pem: not an authority's certificate; use the ca"):
        Credentials(cluster / "bob.pem", *files[1:])
    with files[0].open("ab") as several:
        several.write((cluster / "bob.pem").read_bytes())
    with pytest.raises(InputError, match=r"ca.pem: not an authority's certificate"):
        Credentials(*files)


def test_expired_authority_is_refused(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    later = datetime.now(UTC) + 200 * DAY
    monkeypatch.setattr("skipring.security.credentials._now", lambda: later)
    with pytest.raises(InputError, match=r"ca.pem: expired at .* UTC; .* certs init"):
        Credentials(*files)


NO_NAME = "its common name is not a valid node name"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"starts": NOW - 2 * DAY, "ends": NOW - DAY},
            "expired at .* UTC; .* skipring certs issue",
        ),
        ({"starts": NOW + DAY, "ends": NOW + 2 * DAY}, "valid from .* UTC only; check .* clock"),
        ({"names": ()}, NO_NAME),
        ({"names": ("a b",)}, NO_NAME),
        ({"names": ("é",)}, NO_NAME),
        ({"names": ("ann", "bob")}, NO_NAME),
        ({"purposes": (ExtendedKeyUsageOID.SERVER_AUTH,)}, "not valid for both ends"),
        ({"purposes": (ExtendedKeyUsageOID.CLIENT_AUTH,)}, "not valid for both ends"),
        ({"purposes": (ExtendedKeyUsageOID.CODE_SIGNING,)}, "not valid for both ends"),
        (
            {"secret": rsa.generate_private_key(65537, 1024)},
            "cannot be used for TLS: .*; use a certificate of",
        ),
    ],
)
def test_unusable_certificate_is_refused(
    cluster: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=f"odd.pem: {words}"):
        Credentials(*odd(cluster, tmp_path, **changes))


@pytest.mark.parametrize(
    "make", [lambda: rsa.generate_private_key(65537, 2048), ed25519.Ed25519PrivateKey.generate]
)
def test_certificates_with_other_kinds_of_keys_are_accepted(
    cluster: Path, tmp_path: Path, make: Callable[[], AnyKey]
) -> None:
    ours = Credentials(*odd(cluster, tmp_path, secret=make()))
    assert shaken(ours.server_context(), ours.client_context()) == ("ann", "ann")


# --- names -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "node", "may"),
    [
        ("ann", "ann", True),
        ("ann", "ann.1", True),
        ("ann", "ann.1.2", True),
        ("ann", "ann.", True),
        ("ann", "anna", False),
        ("ann", "ann-1", False),
        ("ann", "Ann", False),
        ("ann", "bob", False),
        ("ann", "", False),
        ("ann.1", "ann", False),
        ("ann.1", "ann.11", False),
        ("supervisor", "supervisor", True),
        ("supervisor", "supervisor.2", True),
        ("supervisor.2", "supervisor", False),
        ("node", "supervisor", False),
        ("", "", False),
        ("", ".ann", False),
    ],
)
def test_name_covers_its_node_and_the_names_below(name: str, node: str, may: bool) -> None:
    assert may_act_as(name, node) is may


def subject(*names: str) -> dict[str, Any]:
    return {"subject": tuple((("commonName", name),) for name in names)}


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        (subject("ann"), "ann"),
        ({"subject": ((("countryName", "DE"), ("commonName", "ann")),)}, "ann"),
        (subject("ann", "supervisor"), None),
        ({"subject": ((("commonName", "ann"), ("commonName", "supervisor")),)}, None),
        (subject("ann\0.bob"), None),
        (subject("ann "), None),
        (subject(""), None),
        ({"subject": ((("organizationName", "ann"),),)}, None),
        ({"subject": ()}, None),
        ({}, None),
        (None, None),
    ],
)
def test_ambiguous_certificate_gives_no_peer_name(
    certificate: dict[str, Any] | None, name: str | None
) -> None:
    assert peer_name(certificate) == name


# --- handshakes ------------------------------------------------------------------------

Outcome = str | None  # the name of the other side, or the failure


def shown(secured: ssl.SSLSocket) -> Outcome:
    return peer_name(secured.getpeercert())


def shaken(
    server: ssl.SSLContext, client: ssl.SSLContext, look: Callable[[ssl.SSLSocket], Outcome] = shown
) -> tuple[Outcome, Outcome]:
    """Connect over loopback and exchange a byte; return the outcomes of server and client."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        ThreadPoolExecutor(max_workers=1) as other,
    ):
        listener.settimeout(DEADLINE_S)
        serving = other.submit(lambda: outcome(listener.accept()[0], server, shown, is_server=True))
        dialled = socket.create_connection(listener.getsockname(), timeout=DEADLINE_S)
        seen = outcome(dialled, client, look, is_server=False)
        return serving.result(DEADLINE_S), seen


def outcome(
    plain: socket.socket,
    context: ssl.SSLContext,
    look: Callable[[ssl.SSLSocket], Outcome],
    *,
    is_server: bool,
) -> Outcome:
    plain.settimeout(DEADLINE_S)
    try:
        with plain, context.wrap_socket(plain, server_side=is_server) as secured:
            # A client learns of a refusal only by reading: TLS 1.3 lets it send first.
            secured.sendall(b"x")
            if secured.recv(1) != b"x":
                return "closed"
            return look(secured)
    except ssl.SSLError as error:
        return f"refused: {error.reason} {error.strerror}"
    except ConnectionError:
        return "refused: reset"


def bare(side: int) -> ssl.SSLContext:
    """Return a context that checks nothing and has no certificate."""
    context = ssl.SSLContext(side)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def showing(side: int, files: Files) -> ssl.SSLContext:
    """Return a context that checks nothing and has a certificate."""
    context = bare(side)
    context.load_cert_chain(files[1], files[2])
    return context


@pytest.fixture
def ann(cluster: Path) -> Credentials:
    return Credentials(*files_of(cluster, "ann"))


@pytest.fixture
def bob(cluster: Path) -> Credentials:
    return Credentials(*files_of(cluster, "bob"))


def assert_refused(ours: Outcome, theirs: Outcome, words: str) -> None:
    assert ours is not None
    assert ours.startswith("refused: ")
    assert words in ours
    assert theirs is not None
    assert theirs.startswith(("refused: ", "closed"))


def test_both_ends_know_each_other_by_name(ann: Credentials, bob: Credentials) -> None:
    for _ in range(3):  # contexts serve many connections
        assert shaken(ann.server_context(), bob.client_context()) == ("bob", "ann")
    assert shaken(bob.server_context(), ann.client_context()) == ("ann", "bob")


def test_contexts_use_tls_1_3_and_trust_one_authority_only(ann: Credentials) -> None:
    for context in (ann.server_context(), ann.client_context()):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        assert context.maximum_version is ssl.TLSVersion.MAXIMUM_SUPPORTED
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname is False
        assert context.cert_store_stats() == {"x509": 1, "crl": 0, "x509_ca": 1}
        assert context.keylog_filename is None


def strangers(_: Path, tmp_path: Path) -> Files:
    """Issue a certificate of another authority under the name ann."""
    authority = trustme.CA()
    made = authority.issue_cert("ann.example.org", common_name="ann")
    ca, cert, key = (tmp_path / name for name in ("theirs.pem", "cert.pem", "cert.key"))
    authority.cert_pem.write_to_path(ca)
    made.cert_chain_pems[0].write_to_path(cert)
    made.private_key_pem.write_to_path(key)
    return ca, cert, key


def expired(cluster: Path, tmp_path: Path) -> Files:
    return odd(cluster, tmp_path, starts=NOW - 2 * DAY, ends=NOW - DAY)


def forged(cluster: Path, tmp_path: Path) -> Files:
    """Issue a certificate of a supervisor with the certificate of bob."""
    directory = tmp_path / "forged"
    directory.mkdir()
    copy(cluster / "bob.pem", directory / "ca.pem")
    copy(cluster / "bob.key", directory / "ca.key")
    files = odd(directory, tmp_path, names=("supervisor",))
    with files[1].open("ab") as chain:
        chain.write((cluster / "bob.pem").read_bytes())
    return files


@pytest.mark.parametrize("side", [ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (strangers, "CERTIFICATE_VERIFY_FAILED"),
        (expired, "certificate has expired"),
        (forged, "CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_peer_without_valid_certificate_is_refused_at_both_ends(
    ann: Credentials,
    cluster: Path,
    tmp_path: Path,
    make: Callable[[Path, Path], Files],
    words: str,
    side: int,
) -> None:
    peer = showing(side, make(cluster, tmp_path))
    assert_refused(*met(ann, peer, side), words)


@pytest.mark.parametrize(
    ("side", "words"),
    [
        (ssl.PROTOCOL_TLS_CLIENT, "UNSUPPORTED_PROTOCOL"),
        (ssl.PROTOCOL_TLS_SERVER, "PROTOCOL_VERSION"),
    ],
)
def test_peer_limited_to_tls_1_2_is_refused(
    ann: Credentials, cluster: Path, side: int, words: str
) -> None:
    peer = showing(side, files_of(cluster, "bob"))
    peer.maximum_version = ssl.TLSVersion.TLSv1_2
    assert_refused(*met(ann, peer, side), words)


def test_client_without_certificate_is_refused(ann: Credentials) -> None:
    peer = bare(ssl.PROTOCOL_TLS_CLIENT)
    assert_refused(*met(ann, peer, ssl.PROTOCOL_TLS_CLIENT), "PEER_DID_NOT_RETURN_A_CERTIFICATE")


def met(ours: Credentials, peer: ssl.SSLContext, side: int) -> tuple[Outcome, Outcome]:
    """Connect to a peer that is a client or a server; return our outcome and its outcome."""
    if side == ssl.PROTOCOL_TLS_CLIENT:
        return shaken(ours.server_context(), peer)
    theirs, own = shaken(peer, ours.client_context())
    return own, theirs


def test_session_cannot_be_resumed_without_a_certificate(ann: Credentials, cluster: Path) -> None:
    tickets = []

    def look(client: ssl.SSLSocket) -> Outcome:
        tickets.append(client.session is not None and client.session.has_ticket)
        return None

    client = showing(ssl.PROTOCOL_TLS_CLIENT, files_of(cluster, "bob"))
    assert shaken(ann.server_context(), client, look) == ("bob", None)
    assert tickets == [False]


# --- changing the authority ------------------------------------------------------------


def test_two_authorities_in_one_file_are_both_trusted(cluster: Path, tmp_path: Path) -> None:
    new = make_authority(tmp_path / "new", days=10)
    issue(new, "cat", new, days=5, hosts=[])
    both = tmp_path / "both.pem"
    both.write_bytes((cluster / "ca.pem").read_bytes() + (new / "ca.pem").read_bytes())
    ann = Credentials(both, *files_of(cluster, "ann")[1:])
    cat = Credentials(both, *files_of(new, "cat")[1:])
    assert shaken(ann.server_context(), cat.client_context()) == ("cat", "ann")
    assert shaken(cat.server_context(), ann.client_context()) == ("ann", "cat")
