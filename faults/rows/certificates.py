"""Rows of a ring with certificates: handshakes without one, renewal, denial and expiry."""

from __future__ import annotations

import signal
import socket
import ssl
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from faults.judge import Judgement, judge
from faults.matrix import fault_row
from faults.processes import run_cli
from faults.requests import TOPIC
from faults.trial import HEALTHY_S, READER, FaultRing, FaultTrial
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.storage.store import LogStore
from skipring.wire.rpc import Address

OPERATOR: Final = "ops"
NAMES: Final = ("a", "b", "c")
FLOOD_PER_S: Final = 3_000
FLOODERS: Final = 2  # threads
KEPT: Final = 400  # connections that a thread keeps open before it closes the oldest
RATE_MIN: Final = 0.8  # Guess: the share of this rate that two threads reach on two cores.
JOIN_S_MAX: Final = 5.0
LIFE_S: Final = 20.0  # Guess: enough for a node to start and join.
RELOADED_S: Final = 30.0  # Guess: the reload follows a few seconds after a file has changed.


class SecureRing(FaultRing):
    """Ring with certificates; an operator's commands publish and inspect."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.authority = directory / "ca"
        run_cli("certs", "init", str(self.authority))
        self.issue(directory / "issued", SUPERVISOR, OPERATOR, *NAMES)
        self._published = 0

    def issue(self, into: Path, *names: str) -> None:
        """Create certificates."""
        run_cli("certs", "issue", *names, "--dir", str(self.authority), "--out", str(into))

    def deny(self, certificate: Path) -> None:
        """Put a certificate on the deny list."""
        run_cli("certs", "deny", str(certificate), "--dir", str(self.authority))

    def shorten(self, name: str, life_s: float) -> None:
        """Replace the certificate of a process with a certificate that expires within seconds."""
        path = self.certificate(name)
        old = x509.load_pem_x509_certificate(path.read_bytes())
        key = load_pem_private_key((self.authority / "ca.key").read_bytes(), None)
        assert isinstance(key, EllipticCurvePrivateKey)
        made = (
            x509.CertificateBuilder()
            .subject_name(old.subject)
            .issuer_name(old.issuer)
            .public_key(old.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(old.not_valid_before_utc)
            .not_valid_after(datetime.now(UTC) + timedelta(seconds=life_s))
        )
        for extension in old.extensions:
            made = made.add_extension(extension.value, extension.critical)
        path.write_bytes(made.sign(key, SHA256()).public_bytes(Encoding.PEM))

    def certificate(self, name: str) -> Path:
        """Return the certificate file of a process; its key is beside it."""
        return self.directory / "issued" / f"{name}.pem"

    def identity(self, name: str) -> tuple[str, ...]:
        """Return the options that give a process its certificate."""
        own = self.certificate(name)
        files = {"ca": self.authority / "ca.pem", "cert": own, "key": own.with_suffix(".key")}
        return tuple(word for each in files for word in (f"--tls-{each}", str(files[each])))

    def form(self, *names: NodeId) -> None:
        """Start a supervisor, nodes and a reader, all with certificates."""
        self.start_supervisor(self.identity(SUPERVISOR))
        for name in names:
            self.start(name, options=self.identity(name))
        whom = ("--supervisor", self.running[SUPERVISOR].address)
        self.run(READER, "sub", TOPIC, *whom, *self.identity(OPERATOR))
        self.heal()
        self.healing_s = 0.0

    def publish_by_command(self, count: int) -> None:
        """Publish with ``skipring pub``, which exits with 0 once a member has acknowledged."""
        for _ in range(count):
            self._published += 1
            payload = f"by command {self._published}"
            self.ledger.attempt(payload.encode())
            self._operate("pub", TOPIC, payload)
            self.ledger.acknowledge(payload.encode())

    def heal(self) -> None:
        """Wait until ``skipring doctor`` finds a healthy topic; record the seconds."""
        begun = monotonic()
        wait = ("--wait", f"{HEALTHY_S:.0f}s", "--members", str(len(self.nodes)))
        self._operate("doctor", TOPIC, *wait)
        self.healing_s = max(self.healing_s, monotonic() - begun)

    def conclude(self) -> Judgement:
        """Wait for a healthy ring and for the reader; stop the nodes and judge their stores."""
        self.heal()
        self.read_pauses()
        wanted, names = self.ledger.acknowledged, self.nodes
        self.until(lambda: wanted <= set(self.delivered()), deadline_s=HEALTHY_S)
        self.stop(*names)
        stored = {name: self._stored(name) for name in names}
        return judge(self.ledger, {READER: self.delivered(), **stored})

    def _stored(self, name: NodeId) -> list[bytes]:
        with LogStore.open(self.data(name)) as store:
            log = store.log(TOPIC)
            entries = log.read_range(0, log.end)
            return [record.payload for each in entries for record in each.batch.records()]

    def _operate(self, *words: str) -> None:
        """Run an operator's command; fail unless it succeeds."""
        whom = ("--supervisor", self.running[SUPERVISOR].address)
        run_cli(*words, *whom, *self.identity(OPERATOR))


def _ring(trial: FaultTrial, *names: NodeId) -> AbstractContextManager[SecureRing]:
    return trial.judged(SecureRing(trial.new_directory()), *names)


# -- rows --------------------------------------------------------------------------------------


@fault_row(
    "handshakes",
    "3,000 handshakes a second without a certificate, from one address (P5)",
    "a node joins from another address within 5 s",
    repeats=2,
)
def _handshakes(trial: FaultTrial) -> None:
    for _ in range(trial.repeats):
        with _ring(trial, *NAMES[:2]) as ring:
            late = NAMES[2]
            flooding = monotonic()
            with _flood(ring.running[SUPERVISOR].address) as counts:
                begun = monotonic()
                ring.start(late, options=ring.identity(late))
                ring.until(lambda: bool(ring.events(late, "joined")), deadline_s=HEALTHY_S)  # noqa: B023
                seconds = monotonic() - begun
                ring.publish_by_command(3)
            assert seconds <= JOIN_S_MAX, f"the join took {seconds:.1f} s"
            rate = sum(counts) / (monotonic() - flooding)
            assert rate >= RATE_MIN * FLOOD_PER_S, f"{rate:.0f} handshakes a second were begun"


@contextmanager
def _flood(address: Address) -> Iterator[list[int]]:
    """Begin TLS handshakes from 127.0.9.9, in threads; yield the count of each thread."""
    is_over, counts = Event(), [0] * FLOODERS
    hello = _client_hello()
    host, _, port = address.rpartition(":")

    def run(flooder: int) -> None:
        begun, made = monotonic(), 0
        with ExitStack() as stack:
            kept: deque[socket.socket] = deque()
            while not is_over.is_set():
                if made > FLOOD_PER_S / FLOODERS * (monotonic() - begun):
                    is_over.wait(0.001)
                    continue
                made += 1
                if len(kept) == KEPT:
                    kept.popleft().close()
                kept.append(stack.enter_context(socket.socket()))
                kept[-1].settimeout(1.0)
                with suppress(OSError):  # refused, as expected
                    kept[-1].bind(("127.0.9.9", 0))
                    kept[-1].connect((host, int(port)))
                    kept[-1].send(hello)
                    counts[flooder] += 1

    threads = [Thread(target=run, args=(each,), name="flood") for each in range(FLOODERS)]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def _client_hello() -> bytes:
    """Return the first bytes of a TLS handshake."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


@fault_row(
    "certificates",
    "a certificate is replaced, and another one is denied (P10)",
    "SIGHUP, files are replaced, skipring certs deny; the denied member is evicted",
)
def _certificates(trial: FaultTrial) -> None:
    for _ in range(trial.repeats):
        with _ring(trial, *NAMES) as ring:
            ring.publish_by_command(3)
            renewed, denied = NAMES[0], NAMES[2]
            _send_hangup(ring, renewed)
            ring.issue(ring.authority / "again", renewed)
            for suffix in (".pem", ".key"):
                fresh = ring.authority / "again" / f"{renewed}{suffix}"
                fresh.replace(ring.certificate(renewed).with_suffix(suffix))
            _await_event(ring, renewed, "credentials_reloaded", 2)
            ring.publish_by_command(3)
            ring.deny(ring.certificate(denied))
            _await_event(ring, SUPERVISOR, "credentials_reloaded")
            ring.until(lambda: denied in ring.evicted(), lambda: "not evicted", HEALTHY_S)  # noqa: B023
            ring.publish_by_command(3)
            ring.kill(denied)


def _send_hangup(ring: SecureRing, name: str) -> None:
    """Send SIGHUP, although no file has changed; wait until the process has read its files."""
    assert not ring.events(name, "credentials_reloaded")
    ring.send_signal(name, signal.SIGHUP)
    _await_event(ring, name, "credentials_reloaded")


@fault_row(
    "expiry",
    "the certificate of a member expires (P10)",
    "a certificate for 20 s; others close their connections, and publish",
)
def _expiry(trial: FaultTrial) -> None:
    for _ in range(trial.repeats):
        with _ring(trial, *NAMES) as ring:
            expired = NAMES[2]
            ring.kill(expired)
            ring.shorten(expired, LIFE_S)
            ring.restart(expired)
            ring.heal()
            ring.publish_by_command(3)
            ring.until(
                lambda: _has_expired(ring, expired),  # noqa: B023
                lambda: "no process has closed a connection with an expired certificate",
                HEALTHY_S,
            )
            ring.publish_by_command(3)
            ring.kill(expired)


def _has_expired(ring: SecureRing, expired: str) -> bool:
    """Return True if a process has closed a connection because of an expired certificate."""
    lines = [
        line
        for name in (SUPERVISOR, *NAMES)
        if name != expired
        for line in ring.events(name, "connection_refused")
    ]
    return any(line["reason"] == "certificate expired" for line in lines)


def _await_event(ring: SecureRing, name: str, event: str, count: int = 1) -> None:
    ring.until(
        lambda: len(ring.events(name, event)) >= count,
        lambda: f"{name} has not logged {event!r}",
        RELOADED_S,
    )
