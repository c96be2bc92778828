"""Rows of peers that exhaust connections, names and addresses."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Event, Thread
from typing import Final

from faults.frames import greeting, send_stream, send_streams, source_of
from faults.matrix import fault_row
from faults.requests import TOPIC
from faults.rows.messages import GROWTH_BYTES_MAX, addresses_of, bounded_growth
from faults.trial import NAMES, FaultRing, FaultTrial
from skipring.core.labels import Label
from skipring.core.messages import GetConfiguration, Introduce, Subscribe
from skipring.core.peers import SUPERVISOR, EdgeKind, Peer
from skipring.lab.usage import MIB, resident_bytes_of
from skipring.node.process import allow_files
from skipring.wire.codec import encode
from skipring.wire.handshake import Role
from skipring.wire.rpc import Address

IDLE: Final = 4_200
HALF_FRAMES: Final = 400
HALF_FRAME_BYTES: Final = 1 << 20
TOPICS: Final = 12_000
INVENTED: Final = 300_000
GHOSTS: Final = 200
DIALS_MAX: Final = 40  # 16 at once, then one a second for 10 s, and a few more by back-off
HALF_REQUESTS: Final = 300
HEAD: Final = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
HUNG_UP_S: Final = 30.0
REPORTED_S: Final = 20.0  # Guess: 80 ticks, for a line in a log.


# -- connections -------------------------------------------------------------------------------


@contextmanager
def _open_connections(
    address: Address, streams: Iterator[bytes], source: str = ""
) -> Iterator[list[socket.socket]]:
    """Open connections, send bytes on each, and keep them open."""
    allow_files(IDLE + 2048)
    host, _, port = address.rpartition(":")
    with ExitStack() as stack:
        opened = []
        for stream in streams:
            made = stack.enter_context(socket.socket())
            made.settimeout(HUNG_UP_S)
            try:
                if source:
                    made.bind((source, 0))
                made.connect((host, int(port)))
                made.setblocking(False)
                made.send(stream)
            except OSError:
                continue  # refused, as expected
            opened.append(made)
        yield opened


@fault_row(
    "idle",
    "4,200 idle connections of one client (P4)",
    "opened at a node; others still publish through it",
)
def _idle_connections(trial: FaultTrial) -> None:
    with trial.ring() as ring:
        for _ in range(trial.repeats):
            streams = (greeting("idler", Role.CLIENT) for _ in range(IDLE))
            # From another address: handshakes are limited by address, and this row tests slots.
            with _open_connections(ring.running["a"].address, streams, source_of(0)):
                acknowledged = ring.publish_some(10, "a")
                assert acknowledged == 10, f"{acknowledged} of 10 were acknowledged"  # noqa: PLR2004
                ring.heal()


@fault_row(
    "half-frames",
    "400 unfinished frames of 1 MiB (P4)",
    "opened at a node; RSS grows by 64 MiB at most",
)
def _half_frames(trial: FaultTrial) -> None:
    head = HALF_FRAME_BYTES.to_bytes(4, "big") + b"\1"
    half = head + bytes(HALF_FRAME_BYTES - 100)
    with trial.ring() as ring, bounded_growth(ring, "a"):
        for _ in range(trial.repeats):
            hellos = (greeting(f"half{number}", Role.CLIENT) for number in range(HALF_FRAMES))
            pid = ring.running["a"].pid
            before = resident_bytes_of(pid)
            with _open_connections(ring.running["a"].address, hellos) as opened:
                for made in opened:
                    made.settimeout(1.0)
                    try:
                        made.sendall(half)
                    except OSError:
                        continue
                growth = resident_bytes_of(pid) - before
                assert growth <= GROWTH_BYTES_MAX, f"a holds {growth / MIB:.0f} MiB"
                ring.publish_some(10, "a")


@fault_row(
    "half-requests",
    "300 half-sent requests to the dashboard (P11)",
    "all are closed within 30 s",
)
def _half_requests(trial: FaultTrial) -> None:
    with trial.ring(*NAMES[:3]) as ring:
        for number in range(trial.repeats):
            name = f"dashboard{number}"
            ring.run(name, "dashboard", "--supervisor", ring.running[SUPERVISOR].address)
            ring.until_printed(name, 1)
            found = re.search(r"127\.0\.0\.1:\d+", " ".join(ring.lines(name)))
            assert found, f"the dashboard printed {ring.lines(name)}"
            with _open_connections(found[0], (HEAD for _ in range(HALF_REQUESTS))) as opened:
                waiting = [made for made in opened if not _is_hung_up(made)]
            assert not waiting, f"{len(waiting)} half requests are still open"
            ring.kill(name)


def _is_hung_up(made: socket.socket) -> bool:
    """Return True once the peer has closed the connection."""
    made.settimeout(HUNG_UP_S)
    try:
        while made.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


# -- names and addresses -----------------------------------------------------------------------


@fault_row(
    "clone",
    "a second process with a copy of a member's data directory (P7)",
    "its log names the other one, and the doctor reports it",
    repeats=3,
)
def _clone(trial: FaultTrial) -> None:
    with trial.ring() as ring:
        for number in range(trial.repeats):
            original, copy = NAMES[number % len(NAMES)], f"copy{number}"
            ring.publish_some(20)
            ring.heal()
            ring.stop(original)
            shutil.copytree(ring.data(original), ring.data(copy))
            ring.restart(original)
            ring.heal()
            ring.start(copy, options=("--name", original))
            addresses = {name: ring.running[name].address for name in (original, copy)}
            with ring.load() as load:
                ring.await_load(load, 50)
                ring.until(
                    lambda: _is_named(ring, copy, addresses[original]),  # noqa: B023
                    lambda: "the log of the clone does not name the other process",
                    REPORTED_S,
                )
            is_hidden = ring.diagnosis().is_healthy
            ring.kill(copy)
            ring.heal()
            assert not is_hidden, "the doctor reported a healthy topic beside a clone"


def _is_named(ring: FaultRing, name: str, address: Address) -> bool:
    """Return True if the log of a process contains an address."""
    return address in ring.log(name).read_text(encoding="utf-8")


@fault_row(
    "impostor",
    "a handshake under the name of a member from another address (P7)",
    "the connection stays open for 10 ticks; the member stays reachable",
    repeats=3,
)
def _impostor(trial: FaultTrial) -> None:
    with trial.ring() as ring:
        for number in range(trial.repeats):
            victim = NAMES[number % len(NAMES)]
            lie = greeting(victim, address="127.0.0.1:9")
            with (
                _open_connections(ring.running[SUPERVISOR].address, iter([lie])),
                ring.load() as load,
            ):
                ring.wait_ticks(10)
                ring.await_load(load, 5)
                silent = ring.diagnosis().silent
                assert victim not in silent, f"the doctor reports the living {victim} as silent"
            ring.heal()
        ring.check_none_evicted()


@fault_row(
    "topics",
    "a member subscribes to 12,000 topics (P8)",
    "others join new topics; RSS grows by 64 MiB at most",
)
def _many_topics(trial: FaultTrial) -> None:
    with trial.ring(*NAMES[:3]) as ring:
        for number in range(trial.repeats):
            name = f"greedy{number}"
            topics = (f"topic{number}.{each}" for each in range(TOPICS))
            stream = greeting(name) + b"".join(encode(topic, Subscribe(name)) for topic in topics)
            at = ring.running[SUPERVISOR].address
            with bounded_growth(ring, SUPERVISOR):
                asyncio.run(send_stream(at, stream, source_of(number)))
            late = f"late{number}"
            ring.fork_node(late, f"new{number}")
            ring.until_listening(late)
            ring.until(
                lambda: ring.not_ready(late) == "",  # noqa: B023
                lambda: ring.not_ready(late),  # noqa: B023
                REPORTED_S,
            )
            ring.kill(late)


@fault_row(
    "names",
    "a member asks the supervisor about 300,000 invented nodes (P8)",
    "GetConfiguration; a node joins, and RSS grows by 64 MiB at most",
)
def _invented_names(trial: FaultTrial) -> None:
    with trial.ring(*NAMES[:3]) as ring:
        for number in range(trial.repeats):
            name, late = f"inventor{number}", f"late{number}"
            ghosts = (f"ghost{number}.{each}" for each in range(INVENTED))
            stream = greeting(name) + b"".join(
                encode(TOPIC, GetConfiguration(ghost)) for ghost in ghosts
            )
            with bounded_growth(ring, SUPERVISOR):
                at = ring.running[SUPERVISOR].address
                assert asyncio.run(send_stream(at, stream, source_of(number))), "no name arrived"
                ring.start(late)
                ring.heal()
            ring.kill(late)


@fault_row(
    "addresses",
    "a peer introduces 200 nodes at the address of a foreign process (P9)",
    "Introduce with hints to a node; it is dialled 40 times at most in 10 s",
)
def _unproven_addresses(trial: FaultTrial) -> None:
    with trial.ring() as ring, _counting_listener() as (address, dials):
        for number in range(trial.repeats):
            stream = greeting(f"liar{number}")
            for each in range(GHOSTS):
                ghost = f"ghost{number}.{each}"
                lie = Introduce(Peer(Label.nth(each), ghost), EdgeKind.LINE, first_hand=False)
                stream += encode(TOPIC, lie, {ghost: address})
            asyncio.run(send_streams(addresses_of(ring, "a"), [stream]))
            ring.wait_ticks(40)
        count, limit = dials(), DIALS_MAX * trial.repeats
        assert count <= limit, f"a foreign process was dialled {count} times"


@contextmanager
def _counting_listener() -> Iterator[tuple[Address, Callable[[], int]]]:
    """Listen on a free port and count the connections that arrive."""
    accepted = 0
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        is_over = Event()

        def run() -> None:
            nonlocal accepted
            while not is_over.is_set():
                try:
                    server.accept()[0].close()
                except OSError:
                    continue
                accepted += 1

        thread = Thread(target=run, name="listener")
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}", lambda: accepted
        finally:
            is_over.set()
            thread.join()
