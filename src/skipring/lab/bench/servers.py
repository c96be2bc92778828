"""Brokers, supervisors and nodes as processes on free ports, and stores for nodes to start with."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from msgspec import Struct

from skipring.core.publications import Publication
from skipring.errors import SkipringError
from skipring.lab.bench.processes import last_line, process
from skipring.lab.bench.run import TOPIC
from skipring.lab.bench.worker import history_payload
from skipring.security.ca import issue_each, make_authority
from skipring.storage.store import PublicationStore

LOOPBACK: Final = "127.0.0.1"
STARTING_S: Final = 20.0  # Guess: a server that does not listen by then never does.
POLL_S: Final = 0.02
ATTEMPTS: Final = 3  # another process may have bound a port that was free
CERTIFICATE_DAYS: Final = 2
CERTIFICATES: Final = ("supervisor", "bench")
WRITTEN_AT_ONCE: Final = 1000
_FIRST_TIME: Final = 1_700_000_000_000_000


class Server(Struct, frozen=True):
    """A process that listens."""

    pid: int
    address: str
    metrics: str = ""  # address of its metrics, if it serves any


def free_address() -> str:
    """Return a loopback address that no process listens on now."""
    with closing(socket.socket()) as found:
        found.bind((LOOPBACK, 0))
        return f"{LOOPBACK}:{found.getsockname()[1]}"


# -- brokers ---------------------------------------------------------------------------------


def _nats(directory: Path, port: str) -> list[str]:
    config = directory / "nats.conf"
    config.write_text(
        f"listen: {LOOPBACK}:{port}\n"
        'max_pending: 4GB\nwrite_deadline: "60s"\n',  # do not disconnect slow clients
        encoding="utf-8",
    )
    return ["-c", str(config)]


def _jetstream(directory: Path, port: str) -> list[str]:
    return [*_nats(directory, port), "--jetstream", "--store_dir", str(directory)]


def _redis(directory: Path, port: str) -> list[str]:
    return [
        *("--port", port, "--bind", LOOPBACK, "--dir", str(directory)),
        *("--save", "", "--appendonly", "no", "--daemonize", "no"),
        *("--client-output-buffer-limit", "pubsub 0 0 0"),  # no limit
    ]


def _mosquitto(directory: Path, port: str) -> list[str]:
    config = directory / "mosquitto.conf"
    config.write_text(
        f"listener {port} {LOOPBACK}\nallow_anonymous true\nset_tcp_nodelay true\n"
        "max_queued_messages 0\nmax_queued_bytes 0\n",  # no limit
        encoding="utf-8",
    )
    return ["-c", str(config)]


# The program of each broker, and its arguments for a directory and a port.
BROKERS: Final[Mapping[str, tuple[str, Callable[[Path, str], list[str]]]]] = {
    "nats": ("nats-server", _nats),
    "jetstream": ("nats-server", _jetstream),
    "redis": ("redis-server", _redis),
    "mosquitto": ("mosquitto", _mosquitto),
}


@contextmanager
def running_broker(name: str, directory: Path) -> Iterator[Server]:
    """Run a broker, configured not to drop messages."""
    program, arguments = BROKERS[name]
    found, log = shutil.which(program), directory / f"{program}.log"
    assert found is not None, "systems whose broker is missing are skipped"
    for _ in range(ATTEMPTS):
        address = free_address()
        command = [found, *arguments(directory, address.rpartition(":")[2])]
        with process(command, log) as running:
            if _is_listening(running, address):
                yield Server(running.pid, address)
                return
    raise SkipringError(f"{program} does not start: {last_line(log)}")


def _is_listening(running: subprocess.Popen[bytes], address: str) -> bool:
    """Wait until an address accepts connections; False if the process ends or time is up."""
    host, _, port = address.rpartition(":")
    deadline = monotonic() + STARTING_S
    while running.poll() is None and monotonic() < deadline:
        with suppress(OSError), closing(socket.create_connection((host, int(port)))):
            return True
        sleep(POLL_S)
    return False


# -- skipring --------------------------------------------------------------------------------


@contextmanager
def skipring_process(command: str, *options: str, log: Path, metrics: str = "") -> Iterator[Server]:
    """Run ``skipring supervisor`` or ``skipring node`` with some options."""
    words = [sys.executable, "-m", "skipring", command, "--listen", f"{LOOPBACK}:0", *options]
    if metrics:
        words += ["--metrics", metrics]
    printed = log.with_suffix(".address")
    with printed.open("wb") as out, process(words, log, out=out.fileno()) as running:
        deadline = monotonic() + STARTING_S
        while not (line := printed.read_text(encoding="utf-8")).endswith("\n"):
            if running.poll() is not None or monotonic() > deadline:
                raise SkipringError(f"skipring {command} does not start: {last_line(log)}")
            sleep(POLL_S)
        yield Server(running.pid, line.removeprefix("listening ").strip(), metrics)


@contextmanager
def running_supervisor(
    directory: Path, certificates: Path | None = None, *options: str
) -> Iterator[Server]:
    """Run a supervisor that serves metrics."""
    options += ("--data", str(directory / "supervisor"), *tls_options(certificates, "supervisor"))
    log, metrics = directory / "supervisor.log", free_address()
    with skipring_process("supervisor", *options, log=log, metrics=metrics) as server:
        yield server


@contextmanager
def running_node(
    directory: Path, name: str, supervisor: str, certificates: Path | None = None
) -> Iterator[Server]:
    """Run a member of the topic with the data directory ``directory / name``."""
    options = [
        *("--supervisor", supervisor, "--topic", TOPIC),
        *("--name", name, "--data", str(directory / name)),
        *tls_options(certificates, "bench"),
    ]
    with skipring_process("node", *options, log=directory / f"{name}.log") as server:
        yield server


def make_certificates(directory: Path) -> Path:
    """Create the certificates of a ring; return their directory."""
    authority = make_authority(directory / "certs", days=CERTIFICATE_DAYS)
    issue_each(authority, CERTIFICATES, authority, days=CERTIFICATE_DAYS, hosts=())
    return authority


def tls_options(certificates: Path | None, name: str) -> list[str]:
    """Return the command-line options of a process with the certificate ``name``."""
    if certificates is None:
        return []
    files = {"ca": "ca.pem", "cert": f"{name}.pem", "key": f"{name}.key"}
    return [
        word
        for option, file in files.items()
        for word in (f"--tls-{option}", str(certificates / file))
    ]


def fill_store(directory: Path, count: int, size: int) -> None:
    """Write publications into a data directory; the same ones into each."""
    with PublicationStore.open(directory) as store:
        log = store.archive(TOPIC)
        numbers = iter(range(count))
        while some := list(islice(numbers, WRITTEN_AT_ONCE)):
            log.write(some[0], *(_publication(number, size) for number in some))
        store.commit()


def _publication(number: int, size: int) -> Publication:
    payload, time = history_payload(number, size), _FIRST_TIME + number
    return Publication(publisher="bench", seq=number, payload=payload, time=time).with_id(TOPIC)
