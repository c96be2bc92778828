"""Brokers, supervisors and nodes as processes on free ports, and stores for nodes to start with."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from time import monotonic, sleep
from typing import Final

import msgspec

from skipring.admin.dev_cluster import ANY_PORT
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.peers import SUPERVISOR
from skipring.errors import SkipringError
from skipring.lab.bench import worker
from skipring.lab.bench.report import Figures
from skipring.lab.bench.run import (
    CALM,
    RUN_S,
    TOPIC,
    BenchRun,
    Board,
    Slot,
    figures_file,
    flag_file,
)
from skipring.lab.bench.worker import history_payload
from skipring.lab.processes import Processes
from skipring.net.addresses import LOOPBACK
from skipring.security.ca import issue_each, make_authority
from skipring.storage.store import LogStore
from skipring.wire.rpc import Address

STARTING_S: Final = 20.0  # Guess: a server that does not listen by then has failed.
POLL_S: Final = 0.01  # Guess.
WORKER: Final = str(worker.__file__)
BROKER: Final = "broker"  # the part of a run that is the broker, or the supervisor of a ring
COMPETITOR: Final = "competitor-"
ATTEMPTS: Final = 3  # another process may have bound a port that was free
CERTIFICATE_DAYS: Final = 2
CERTIFICATES: Final = ("supervisor", "bench")
PUBLISHER: Final = "bench"
RARE_PUBLISHER: Final = "rare"
RARE_SHARE: Final = 100  # batches of all publishers for one of the rare publisher
KEYS: Final = 1000
BATCH: Final = 250  # records, as the worker publishes them
COMMITTED_AT_ONCE: Final = 5000  # Guess: batches that fit in memory.
FIRST_US: Final = 1_700_000_000_000_000


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


class BenchProcesses(Processes):
    """Brokers, supervisors, nodes and workers of a benchmark, inside a ``with`` block.

    Each has its own interpreter, because its memory is measured.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, environment={})
        self._deadline = monotonic() + RUN_S

    def start_broker(self, broker: str) -> Address:
        """Start a broker that is configured not to drop messages; return its address."""
        program, arguments = BROKERS[broker]
        found = shutil.which(program)
        assert found is not None, "systems whose broker is missing are skipped"
        for _ in range(ATTEMPTS):
            address = free_address()
            self.fork(BROKER, [found, *arguments(self.directory, address.rpartition(":")[2])])
            if self._is_accepting(address):
                return address
        raise SkipringError(f"{program} does not start: {self.last_log_line(BROKER)}")

    def _is_accepting(self, address: Address) -> bool:
        """Wait until the broker accepts connections; return False if it ends or on timeout."""
        host, _, port = address.rpartition(":")
        deadline = monotonic() + STARTING_S
        while self.status(BROKER) is None:
            with suppress(OSError), closing(socket.create_connection((host, int(port)))):
                return True
            if monotonic() > deadline:
                self.kill(BROKER)
                break
            sleep(POLL_S)
        return False

    def start_supervisor(self, certificates: Path | None = None, *options: str) -> Address:
        """Start a supervisor that serves metrics; return its address."""
        tls = tls_options(certificates, "supervisor")
        self.fork_supervisor((*options, *tls, "--metrics", ANY_PORT))
        self.until_listening(SUPERVISOR)
        return self.running[SUPERVISOR].address

    def start_node(self, name: str, certificates: Path | None = None) -> None:
        """Start a member of the topic."""
        self.fork_node(name, TOPIC, options=tls_options(certificates, "bench"))
        self.until_listening(name)

    def start_workers(self, run: BenchRun, roles: Iterable[str]) -> None:
        """Start the worker processes of a run."""
        run.save()
        for role in roles:
            self.fork(role, [WORKER, role, str(run.directory)])

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait for a condition; raise SkipringError if a process ends or on timeout."""
        while not condition():
            self.pass_time()

    def wait_set(self, board: Board, slot: Slot) -> None:
        """Wait until a slot of the board is set."""
        self.wait(lambda: board[slot])

    def wait_calm(self, roles: Iterable[str]) -> None:
        """Wait until workers are connected, and the work of joining is done."""
        for role in roles:
            self.wait(flag_file(self.directory, role, CALM).exists)

    def wait_figures(self, roles: Iterable[str]) -> Figures:
        """Wait until workers have written their figures; return those of all."""
        found: Figures = {}
        for file in (figures_file(self.directory, role) for role in roles):
            self.wait(file.exists)
            found |= msgspec.json.decode(file.read_bytes(), type=Figures)
        return found

    def start_competitors(self) -> None:
        """Start a process that is always busy on each core."""
        for core in sorted(os.sched_getaffinity(0)):
            program = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
            self.fork(f"{COMPETITOR}{core}", [sys.executable, "-c", program])

    def kill_competitors(self) -> None:
        """End the processes of ``start_competitors``."""
        self.kill(*(name for name in self.running if name.startswith(COMPETITOR)))

    def kill(self, *names: str) -> None:
        """Send SIGKILL to processes; return once they have ended."""
        for name in names:
            self.send_signal(name, signal.SIGKILL)
        for name in names:
            while self.status(name) is None:  # pass_time would report that the process has ended
                sleep(POLL_S)

    def pass_time(self) -> None:
        """Sleep for one poll; raise SkipringError if a process has ended or on timeout."""
        for name, process in self.running.items():
            if process.poll() is not None:
                raise SkipringError(f"the {name} ended early: {self.last_log_line(name)}")
        if monotonic() > self._deadline:
            raise SkipringError(f"a run took longer than {RUN_S:.0f} s")
        sleep(POLL_S)


# -- certificates and stores -----------------------------------------------------------------


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


def fill_store(
    directory: Path, count: int, size: int, batch: int = BATCH, *, has_keys: bool = False
) -> None:
    """Write the data directory of a node that does not run; every call writes the same records.

    With keys, another publisher has published one of RARE_SHARE batches.
    """
    records = (
        BatchRecord(
            history_payload(n, size), FIRST_US + n, b"%d" % (n % KEYS) if has_keys else None
        )
        for n in range(count)
    )
    with LogStore.open(directory) as store:
        log, first = store.log(TOPIC), 0
        while some := list(islice(records, batch)):
            is_rare = has_keys and first // batch % RARE_SHARE == 0
            publisher = RARE_PUBLISHER if is_rare else PUBLISHER
            for part in RecordBatch.split(some, publisher=publisher, first=first, topic=TOPIC):
                log.append(part)
            first += len(some)
            if first % (batch * COMMITTED_AT_ONCE) == 0:
                store.commit()
        store.commit()
