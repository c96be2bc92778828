"""Brokers and supervisors as processes: started on a free port, stopped in any case."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Final, NoReturn

from msgspec import Struct

from skipring.errors import SkipringError
from skipring.lab.bench.peers.catalogue import JETSTREAM_STORED, REDIS_STREAMS_STORED

LOOPBACK: Final = "127.0.0.1"
STARTING_S: Final = 20.0  # Our guess: a server that has not begun to listen by then never does.
STOPPING_S: Final = 5.0  # Our guess: then it is killed.
POLL_S: Final = 0.02
SIGNALLED: Final = 128  # what a shell adds to the number of the signal that ended a process
ATTEMPTS: Final = 3  # somebody else may have taken a port that was free


class Server(Struct, frozen=True):
    """A process that listens."""

    pid: int
    address: str
    metrics: str = ""  # where it shows how it is, if it does


def free_address() -> str:
    """An address of this machine at which nobody listens now."""
    with closing(socket.socket()) as found:
        found.bind((LOOPBACK, 0))
        return f"{LOOPBACK}:{found.getsockname()[1]}"


# -- brokers ---------------------------------------------------------------------------------


def _nats(directory: Path, port: str) -> list[str]:
    config = directory / "nats.conf"
    config.write_text(
        f"listen: {LOOPBACK}:{port}\n"
        'max_pending: 4GB\nwrite_deadline: "60s"\n',  # a slow client is waited for
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


# A system's program, and its arguments for a directory and a port.
BROKERS: Final[Mapping[str, tuple[str, Callable[[Path, str], list[str]]]]] = {
    "nats": ("nats-server", _nats),
    "jetstream": ("nats-server", _jetstream),
    JETSTREAM_STORED: ("nats-server", _jetstream),
    "redis": ("redis-server", _redis),
    "redis-streams": ("redis-server", _redis),
    REDIS_STREAMS_STORED: ("redis-server", _redis),
    "mosquitto": ("mosquitto", _mosquitto),
}


@contextmanager
def broker(system: str, directory: Path) -> Iterator[Server]:
    """The broker of a system, without limits that make it drop something; until the end."""
    program, arguments = BROKERS[system]
    found, log = shutil.which(program), directory / f"{program}.log"
    assert found is not None, "who asks for a broker has looked whether it is there"
    for _ in range(ATTEMPTS):
        address = free_address()
        command = [found, *arguments(directory, address.rpartition(":")[2])]
        with process(command, log) as running:
            if _is_listening(running, address):
                yield Server(running.pid, address)
                return
    raise SkipringError(f"{program} does not start: {last_line(log)}")


def _is_listening(running: subprocess.Popen[bytes], address: str) -> bool:
    """Wait until somebody listens at an address; False if its process ends or time is up."""
    host, _, port = address.rpartition(":")
    deadline = monotonic() + STARTING_S
    while running.poll() is None and monotonic() < deadline:
        with suppress(OSError), closing(socket.create_connection((host, int(port)))):
            return True
        sleep(POLL_S)
    return False


# -- ours ------------------------------------------------------------------------------------


@contextmanager
def skipring_process(command: str, *options: str, log: Path, metrics: str = "") -> Iterator[Server]:
    """A process of ours (``supervisor`` or ``node``) with some options; until the end."""
    words = [sys.executable, "-m", "skipring", command, "--listen", f"{LOOPBACK}:0", *options]
    if metrics:
        words += ["--metrics", metrics]
    told = log.with_suffix(".address")
    with told.open("wb") as out, process(words, log, out=out.fileno()) as running:
        deadline = monotonic() + STARTING_S
        while not (line := told.read_text(encoding="utf-8")).endswith("\n"):
            if running.poll() is not None or monotonic() > deadline:
                raise SkipringError(f"skipring {command} does not start: {last_line(log)}")
            sleep(POLL_S)
        yield Server(running.pid, line.removeprefix("listening ").strip(), metrics)


# -- processes -------------------------------------------------------------------------------


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does: otherwise it would leave processes behind."""

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(SIGNALLED + number)

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is told of signals
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def process(
    command: Sequence[str], log: Path, *, out: int | None = None, is_killed: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes its complaints into a log; it is stopped at the end."""
    with ExitStack() as stack:
        with _signals_held_back(), log.open("wb") as complaints:
            running = subprocess.Popen(  # noqa: S603  (programs that we have chosen)
                command,
                stdin=subprocess.DEVNULL,
                stdout=complaints if out is None else out,
                stderr=complaints,
            )
            stack.callback(stop, running, is_killed=is_killed)
        yield running


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Let signals wait: between a process's start and our knowing of it, they would leave it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _: held.append(got))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for got in held:
            signal.raise_signal(got)


def stop(running: subprocess.Popen[bytes], *, is_killed: bool = False) -> None:
    """Ask a process to end, and make it end if it does not."""
    if not is_killed:
        running.terminate()
        with suppress(subprocess.TimeoutExpired):
            running.wait(STOPPING_S)
    running.kill()
    running.wait()


def last_line(log: Path) -> str:
    """What a process has said last."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    # A line without letters is the end of a drawing, such as those of exception groups.
    told = (line.strip(" |") for line in reversed(lines) if any(map(str.isalpha, line)))
    return next(told, "it said nothing")
