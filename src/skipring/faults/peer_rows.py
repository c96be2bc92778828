"""Rows of peers that misbehave: frames, senders, requests, connections and names."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from threading import Event, Thread
from typing import Final

from msgspec.msgpack import encode as pack

from skipring.bench.memory import MIB, resident_bytes_of
from skipring.core.labels import Label
from skipring.core.messages import Introduce, PublishNew, Subscribe
from skipring.core.peers import SUPERVISOR, Link, Peer
from skipring.core.publications import Publication
from skipring.faults.frames import (
    bursts,
    forged_frames,
    greeting,
    hurl,
    hurl_all,
    mutations,
    source_of,
)
from skipring.faults.history import HOLDER, fill_history
from skipring.faults.requests import END, TOPIC, surveyed
from skipring.faults.row import Row
from skipring.faults.samples import PUBLICATION, SAMPLES
from skipring.faults.stop_rows import record_publisher, run_publisher
from skipring.faults.trial import NAMES, FaultRing, Trial
from skipring.runtime.limits import allow_files
from skipring.wire.codec import encode
from skipring.wire.framing import DATA, frame
from skipring.wire.greeting import Role
from skipring.wire.runtime_messages import Address, ListPublications, ReadStored

OTHERS: Final = ("v", "w", "x", "y", "z")  # no sample names them
GROWTH_BYTES_MAX: Final = 64 * MIB  # Requirement, for 100,000 mutated frames.
STRANGER: Final = "stranger"
FORGED: Final = 10_000
IDLE: Final = 4_200
HALF_FRAMES: Final = 400
HALF_FRAME_BYTES: Final = 1 << 20
TOPICS: Final = 12_000
GHOSTS: Final = 200
DIALS_MAX: Final = 40  # 16 at once and one a second, for 10 s; and some by back-off
REQUEST_BYTES: Final = 110_000
HISTORY: Final = 20_000
SCAN_BITS: Final = 8  # a scan for one publication in 256
HALF_REQUESTS: Final = 300
HEAD: Final = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
HUNG_UP_S: Final = 30.0
REPORTED_S: Final = 20.0  # Guess: 80 ticks, for a line in a log.


def _addresses(ring: FaultRing, *names: str) -> list[Address]:
    return [ring.running[name].address for name in names]


@contextmanager
def _bounded_growth(ring: FaultRing, *names: str) -> Iterator[None]:
    """Fail if the resident memory of a process grows by more than 64 MiB."""
    pids = {name: ring.running[name].pid for name in names}
    before = {name: resident_bytes_of(pid) for name, pid in pids.items()}
    yield
    for name, pid in pids.items():
        growth = resident_bytes_of(pid) - before[name]
        assert growth <= GROWTH_BYTES_MAX, f"{name} grew by {growth / MIB:.0f} MiB"


# -- frames ------------------------------------------------------------------------------------


def burst(trial: Trial) -> None:
    """Send 256 KiB of every valid message type to a node and to the supervisor."""
    with trial.ring(*OTHERS) as ring:
        ring.publish_some(200)
        ring.ledger.tolerate(PUBLICATION.payload or b"")  # some types publish it
        targets = _addresses(ring, OTHERS[0], SUPERVISOR)
        with _bounded_growth(ring, OTHERS[0], SUPERVISOR):
            for number, (_, data) in enumerate(list(bursts().items())[: trial.repeats]):
                for role in (Role.NODE, Role.CLIENT):
                    streams = [greeting("a", role) + data] * len(targets)
                    asyncio.run(hurl_all(targets, streams))
                if number % 10 == 0:
                    ring.publish_some(10)
        assert not set(ring.evicted()) & set(OTHERS), f"evicted: {ring.evicted()}"


def mutated_frames(trial: Trial) -> None:
    """Send mutated frames, each on its own connection, to a node and to the supervisor."""
    with trial.ring(*OTHERS) as ring:
        ring.ledger.tolerate(PUBLICATION.payload or b"")
        targets = _addresses(ring, OTHERS[0], SUPERVISOR)
        rng = Random(trial.repeats)
        with ring.load(), _bounded_growth(ring, OTHERS[0], SUPERVISOR):
            asyncio.run(hurl_all(targets, mutations(rng, trial.repeats)))
        _tolerate_mutations(ring)


def _tolerate_mutations(ring: FaultRing) -> None:
    """Record mutated publications as publications of a stranger."""
    ring.heal()
    for payload in ring.payloads(OTHERS[0]):
        if payload not in ring.ledger.tried:
            assert not payload.startswith(b"load"), f"no one published {payload!r}"
            ring.ledger.tolerate(payload)


def forged_senders(trial: Trial) -> None:
    """Send every message with a forged sender; the receiver drops and counts it."""
    with trial.ring() as ring:  # the samples name a and b, which are members here
        names = ("c", SUPERVISOR)
        stream = greeting(STRANGER) + forged_frames(STRANGER, trial.repeats)
        with ring.load(), _bounded_growth(ring, *names):
            asyncio.run(hurl_all(_addresses(ring, *names), [stream] * len(names)))
        for name in names:
            dropped = _dropped(ring, name, "speaks for another")
            assert dropped >= trial.repeats, f"{name} dropped {dropped} of {trial.repeats}"


def _dropped(ring: FaultRing, name: str, reason: str) -> int:
    address = ring.events(name, "metrics")[-1]["address"]
    with urllib.request.urlopen(f"http://{address}/metrics") as page:
        text = page.read().decode()
    found = re.search(rf'^skipring_dropped_total{{reason="{reason}"}} (\S+)$', text, re.MULTILINE)
    return int(float(found[1])) if found else 0


def wide_record(trial: Trial) -> None:
    """Publish a record with 900 KB in a field that no publication has."""
    with trial.ring() as ring:
        for number in range(trial.repeats):
            fields = [STRANGER, number, b"wide", 1, None, {}, b"", bytes(900_000)]
            stream = greeting(STRANGER) + frame(pack([[14, fields, 0], TOPIC]), DATA)
            asyncio.run(hurl_all(_addresses(ring, "a"), [stream]))
            ring.publish_some(10)


def forged_number(trial: Trial) -> None:
    """Publish under another publisher's name with a number near the largest number."""
    with trial.ring(*NAMES[:3]) as ring:
        place = str(ring.data("writer"))
        for number in range(trial.repeats):
            payload = f"forged{number}".encode()
            ring.ledger.attempt(payload)
            made = Publication(publisher="writer", seq=(1 << 62) - 1, payload=payload, time=1)
            stream = greeting(STRANGER) + encode(TOPIC, PublishNew(made))
            asyncio.run(hurl_all(_addresses(ring, "a"), [stream]))
            program = f"writer{number}"
            run_publisher(ring, program, place, 20, called="writer")
            assert ring.exit_status(program) == 0, ring.last_words(program)
            record_publisher(ring, program)
        ring.start("writer")
        ring.heal()
        numbers = [each for each in ring.numbers("a", "writer") if each < (1 << 62) - 1]
        assert len(numbers) == len(set(numbers)) == 20 * trial.repeats, "a number was issued twice"


def expensive_requests(trial: Trial) -> None:
    """Send 110 KB of requests that read everything, or scan everything and find nothing."""

    def before(ring: FaultRing) -> None:
        ring.ledger.acknowledge_all(fill_history(ring.data(HOLDER), HISTORY))

    with trial.ring(HOLDER, "b", "c", before=before) as ring:
        survey = surveyed(ring.place(HOLDER))
        scan = ReadStored(1, survey.store, survey.epoch, 0, survey.end, SCAN_BITS, 255, True)
        requests = {
            "list": encode(TOPIC, ListPublications(1, 0, END, payloads=True)),
            "scan": encode(TOPIC, scan),
        }
        target = _addresses(ring, HOLDER)
        for _ in range(trial.repeats):
            with ring.load() as load:
                for each in requests.values():
                    stream = greeting(STRANGER, Role.CLIENT) + each * (REQUEST_BYTES // len(each))
                    asyncio.run(hurl_all(target, [stream]))
                    ring.await_load(load, 5)
        assert not ring.evicted(), f"evicted: {ring.evicted()}"


# -- connections -------------------------------------------------------------------------------


@contextmanager
def _open_connections(address: Address, streams: Iterator[bytes]) -> Iterator[list[socket.socket]]:
    """Open connections, send bytes on each, and keep them open."""
    allow_files(IDLE + 2048)
    host, _, port = address.rpartition(":")
    with ExitStack() as stack:
        opened = []
        for stream in streams:
            made = stack.enter_context(socket.socket())
            made.settimeout(HUNG_UP_S)
            try:
                made.connect((host, int(port)))
                made.setblocking(False)
                made.send(stream)
            except OSError:
                continue  # refused, as expected
            opened.append(made)
        yield opened


def idle_connections(trial: Trial) -> None:
    """Open 4,200 connections of one client, and leave them idle."""
    with trial.ring() as ring:
        for _ in range(trial.repeats):
            streams = (greeting("idler", Role.CLIENT) for _ in range(IDLE))
            with _open_connections(ring.running["a"].address, streams):
                acknowledged = ring.publish_some(10, "a")
                assert acknowledged == 10, f"{acknowledged} of 10 were acknowledged"  # noqa: PLR2004
                ring.heal()


def half_frames(trial: Trial) -> None:
    """Begin 400 frames of 1 MiB and end none of them."""
    head = HALF_FRAME_BYTES.to_bytes(4, "big") + b"\1"
    half = head + bytes(HALF_FRAME_BYTES - 100)
    with trial.ring() as ring, _bounded_growth(ring, "a"):
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


def half_requests(trial: Trial) -> None:
    """Open 300 requests to the dashboard and send half a header of each."""
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


def clone(trial: Trial) -> None:
    """Start a second process with a copy of a member's data directory."""
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


def impostor(trial: Trial) -> None:
    """Shake hands with the supervisor under the name of a member, from another address."""
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
        assert not ring.evicted(), f"evicted: {ring.evicted()}"


def many_topics(trial: Trial) -> None:
    """Subscribe to more topics than a supervisor serves; others still join new topics."""
    with trial.ring(*NAMES[:3]) as ring:
        for number in range(trial.repeats):
            name = f"greedy{number}"
            topics = (f"topic{number}.{each}" for each in range(TOPICS))
            stream = greeting(name) + b"".join(encode(topic, Subscribe(name)) for topic in topics)
            at = ring.running[SUPERVISOR].address
            with _bounded_growth(ring, SUPERVISOR):
                asyncio.run(hurl(at, stream, source_of(number)))
            late = f"late{number}"
            ring.fork_node(late, f"new{number}")
            ring.until_listening(late)
            ring.until(
                lambda: _ready_text(ring, late) == "",  # noqa: B023
                lambda: _ready_text(ring, late),  # noqa: B023
                REPORTED_S,
            )
            ring.kill(late)


def _ready_text(ring: FaultRing, name: str) -> str:
    """Return why a process is not ready; an empty text if it is."""
    address = ring.events(name, "metrics")[-1]["address"]
    try:
        with urllib.request.urlopen(f"http://{address}/readyz"):
            return ""
    except urllib.error.HTTPError as error:
        return error.read().decode()


def unproven_addresses(trial: Trial) -> None:
    """Introduce invented nodes at the address of a process outside the system."""
    with trial.ring() as ring, _counting_listener() as (address, dials):
        for number in range(trial.repeats):
            stream = greeting(f"liar{number}")
            for each in range(GHOSTS):
                ghost = f"ghost{number}.{each}"
                lie = Introduce(Peer(Label.nth(each), ghost), Link.LINE, first_hand=False)
                stream += encode(TOPIC, lie, {ghost: address})
            asyncio.run(hurl_all(_addresses(ring, "a"), [stream]))
            ring.wait_ticks(40)
        count, limit = dials(), DIALS_MAX * trial.repeats
        assert count <= limit, f"a foreign process was dialled {count} times"


@contextmanager
def _counting_listener() -> Iterator[tuple[Address, Callable[[], int]]]:
    """Listen at a free port and count the connections that arrive."""
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


ROWS: Final = (
    Row(
        name="burst",
        fault="256 KiB of every valid message type, as a node and as a client",
        method="generated from the wire samples, to a node and to the supervisor",
        run=burst,
        repeats=len(SAMPLES),
    ),
    Row(
        name="mutated",
        fault="100,000 mutated frames",
        method="one connection each, to a node and to the supervisor; RSS grows by 64 MiB at most",
        run=mutated_frames,
        repeats=100_000,
        short=1_000,
    ),
    Row(
        name="forged",
        fault="10,000 frames with a forged sender, of every message that names one (P1)",
        method="to a node and to the supervisor; each is counted, RSS grows by 64 MiB at most",
        run=forged_senders,
        repeats=FORGED,
        short=1_000,
    ),
    Row(
        name="forged-number",
        fault="a publication under another name with the number 2^62-1 (D4)",
        method="PublishNew from a stranger; the publisher runs again",
        run=forged_number,
        repeats=3,
    ),
    Row(
        name="wide-record",
        fault="a record with 900 KB in an unknown field (P3)",
        method="PublishNew from a stranger",
        run=wide_record,
        repeats=5,
    ),
    Row(
        name="requests",
        fault="110 KB of requests that read everything, or scan and find nothing (P2)",
        method="ListPublications and ReadStored at a node with 20,000 publications",
        run=expensive_requests,
        repeats=3,
    ),
    Row(
        name="idle",
        fault="4,200 idle connections of one client (P4)",
        method="opened at a node; others still publish through it",
        run=idle_connections,
        repeats=1,
    ),
    Row(
        name="half-frames",
        fault="400 unfinished frames of 1 MiB (P4)",
        method="opened at a node; RSS grows by 64 MiB at most",
        run=half_frames,
        repeats=1,
    ),
    Row(
        name="half-requests",
        fault="300 half-sent requests to the dashboard (P11)",
        method="all are closed within 30 s",
        run=half_requests,
        repeats=1,
    ),
    Row(
        name="clone",
        fault="a second process with a copy of a member's data directory (P7)",
        method="its log names the other one, and the doctor reports it",
        run=clone,
        repeats=3,
    ),
    Row(
        name="impostor",
        fault="a handshake under the name of a member from another address (P7)",
        method="the connection stays open for 10 ticks; the member stays reachable",
        run=impostor,
        repeats=3,
    ),
    Row(
        name="topics",
        fault="a member subscribes to 12,000 topics (P8)",
        method="others join new topics; RSS grows by 64 MiB at most",
        run=many_topics,
        repeats=1,
    ),
    Row(
        name="addresses",
        fault="a peer introduces 200 nodes at the address of a foreign process (P9)",
        method="Introduce with hints to a node; it is dialled 40 times at most in 10 s",
        run=unproven_addresses,
        repeats=1,
    ),
)
