"""Run of a row: rings of processes, the load during the fault, and the judgement."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from itertools import cycle, islice
from pathlib import Path
from time import monotonic
from typing import Final, TypeVar
from urllib.error import HTTPError

from faults import requests
from faults.judge import Judgement, Ledger, judge
from faults.load import PAUSE_S, Load, fill_history, publish_some
from faults.processes import LiveProcesses
from faults.requests import PATIENCE_S, TOPIC, Place
from skipring.admin.diagnosis import Diagnosis, wait_healthy
from skipring.admin.inspector import open_inspector
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.errors import UnreachableError

TICK_S: Final = 0.25  # Guess: a quarter of the default, so rows take a quarter of the time.
HEALTHY_S: Final = 60.0  # deadline after which the row has failed
READER_S: Final = 30.0  # deadline for the last lines of a reader
READER: Final = "reader"
HOLDER: Final = "a"  # the node with the history
NAMES: Final[tuple[NodeId, ...]] = ("a", "b", "c", "d", "e")  # the samples name "a" and "b"
PAUSE_METRIC: Final = "skipring_loop_pause_seconds_max"
SHOWN_MAX: Final = 3
PROGRAMS: Final = str(Path(__file__).with_name("programs.py"))

Ring = TypeVar("Ring", bound="FaultRing")
Before = Callable[["FaultRing"], None]


class FaultRing(LiveProcesses):
    """Ring of processes, its ledger, and a reader (``skipring sub``)."""

    def __init__(
        self,
        directory: Path,
        *,
        tick_s: float = TICK_S,
        environment: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(
            directory, tick_s=tick_s, has_metrics=True, environment=environment, options=options
        )
        self.ledger = Ledger()
        self.healing_s = 0.0
        self.pause_s = 0.0
        self.members_beside = 0  # programs that have joined the ring
        self._loads = 0
        self._untimed: set[str] = set()  # stopped by a signal: their pause is the fault

    def form(self, *names: NodeId) -> None:
        """Start a supervisor, nodes and a reader; return when the ring is healthy."""
        self.start_supervisor()
        self.start(*names)
        self.start_reader()
        self.heal()
        self.healing_s = 0.0

    def run_program(self, name: str, program: str, *words: str) -> None:
        """Start a program of ``programs.py``."""
        self.run(name, PROGRAMS, program, *words)

    def start_member(self, name: NodeId, program: str) -> None:
        """Start a program with the arguments of a node; it joins as a node."""
        whom = ("--supervisor", self.running[SUPERVISOR].address, "--topic", TOPIC)
        self.run_program(name, program, "node", *whom, "--name", name, *self._place(name))
        self.until_listening(name)
        self.members_beside += 1

    def start_reader(self) -> None:
        """Start a reader that is not a member."""
        self.run(READER, "sub", TOPIC, "--supervisor", self.running[SUPERVISOR].address)

    # -- publishing --------------------------------------------------------------------------

    def places(self) -> list[Place]:
        """Return the nodes that run, with their addresses."""
        return [self.place(name) for name in self.nodes if self.running[name].address]

    def load(self, *names: NodeId, pause_s: float = PAUSE_S) -> Load:
        """Return publishers that run inside their block, through the named nodes or all."""
        self._loads += 1
        places = self.places if not names else lambda: [self.place(name) for name in names]
        return Load(places, self.ledger, f"load{self._loads}", pause_s)

    @contextmanager
    def disturbed(self) -> Iterator[Load]:
        """Publish through all nodes inside the block; then wait for a healthy ring."""
        with self.load() as load:
            yield load
        self.heal()

    def publish_some(self, count: int, *names: NodeId) -> int:
        """Publish through the named nodes or all; return the number of acknowledgements."""
        self._loads += 1
        payloads = [f"some{self._loads}.{number}".encode() for number in range(count)]
        places = [self.place(name) for name in names] or self.places()
        return publish_some(places, payloads, self.ledger)

    def await_load(self, load: Load, count: int) -> None:
        """Wait until ``count`` more publications are acknowledged."""
        wanted = load.acknowledged + count
        self.until(lambda: load.acknowledged >= wanted, lambda: f"{load.acknowledged} of {wanted}")

    def start_publisher(
        self, name: str, place: str, count: int, called: str | None = None, replicas: int = 0
    ) -> None:
        """Start a program that joins and publishes, with a data directory or "-"."""
        url = f"skipring://{self.running[SUPERVISOR].address}"
        words = (url, called or name, name, str(count), str(replicas))
        self.run_program(name, "publisher", "--data", place, *words)

    def record_publisher(self, name: str, *, is_acknowledged: bool = True) -> None:
        """Record the attempts and publications that a program has printed."""
        for line in self.lines(name):
            verb, _, payload = line.partition(" ")
            if verb == "tries":
                self.ledger.attempt(payload.encode())
            elif verb == "published" and is_acknowledged:
                self.ledger.acknowledge(payload.encode())

    def run_publisher(self, name: str, place: str, count: int, called: str | None = None) -> None:
        """Run a program that publishes to its end, and record its publications."""
        self.start_publisher(name, place, count, called)
        assert self.exit_status(name) == 0, self.last_log_line(name)
        self.record_publisher(name)

    # -- faults --------------------------------------------------------------------------------

    def kill(self, *names: str) -> None:
        """Read the pauses of processes, then send SIGKILL to all at once."""
        for name in names:
            self.read_pause(name)
        super().kill(*names)

    def stop(self, *names: str) -> None:
        """Send SIGTERM; return once the processes have ended, with their pauses read."""
        self.end(*names)

    def end(self, *names: str) -> dict[str, int]:
        """Send SIGTERM; read the pauses until the processes have ended; return the statuses."""
        for name in names:
            self.read_pause(name)
        for name in names:
            self.send_signal(name, signal.SIGTERM)
        statuses: dict[str, int] = {}

        def have_ended() -> bool:
            for name in names:
                if name not in statuses and (status := self.status(name)) is not None:
                    statuses[name] = status
                elif name not in statuses:
                    with suppress(OSError):  # the metrics server ends before the process
                        self.read_pause(name)
            return len(statuses) == len(names)

        self.until(have_ended, lambda: f"{set(names) - set(statuses)} still run")
        return statuses

    def pause(self, *names: str) -> None:
        """Stop processes; exclude them from the measurement of pauses."""
        for name in names:
            self.read_pause(name)
        self._untimed.update(names)
        super().pause(*names)

    def wait_ticks(self, count: int) -> None:
        """Wait for ``count`` ticks of the supervisor."""
        end = self.ticks(SUPERVISOR) + count
        self.until(lambda: self.ticks(SUPERVISOR) >= end)

    # -- observations --------------------------------------------------------------------------

    def read_pause(self, name: str) -> None:
        """Read the longest pause of a process that serves metrics.

        If the event loop is frozen, the server answers 503 after a few seconds, which count as a
        pause; if the loop has ended, it answers 503 at once.
        """
        if name in self._untimed or self.running[name].is_paused:
            return
        shown = self.events(name, "metrics_started")
        if not shown:
            return
        begun = monotonic()
        try:
            pause_s = requests.metric(shown[-1]["address"], PAUSE_METRIC)
        except HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            pause_s = monotonic() - begun
        self.pause_s = max(self.pause_s, pause_s)

    def read_pauses(self) -> None:
        """Read the longest pause of all processes."""
        for name in list(self.running):
            self.read_pause(name)

    def diagnosis(self, wait_s: float = 0.0, members_min: int = 1) -> Diagnosis:
        """Wait for a healthy topic; return the diagnosis of the doctor."""

        async def scene() -> Diagnosis:
            supervisors = [self.running[SUPERVISOR].address]
            async with open_inspector(supervisors, TOPIC, patience_s=PATIENCE_S) as inspector:
                return await wait_healthy(inspector, wait_s, members_min)

        return asyncio.run(scene())

    def check_none_evicted(self) -> None:
        """Fail if the supervisor has evicted a node."""
        assert not self.evicted(), f"evicted: {self.evicted()}"

    def heal(self) -> None:
        """Wait until the doctor finds a healthy topic of all running nodes; record the seconds."""
        begun = monotonic()
        wanted = len(self.nodes) + self.members_beside
        try:
            found = self.diagnosis(HEALTHY_S, wanted)
        except UnreachableError as error:
            raise AssertionError(f"not healthy after {HEALTHY_S:.0f} s: {error}") from None
        wrong = [str(each) for each in found.violations[:SHOWN_MAX]]
        if found.members < wanted:
            wrong.append(f"{found.members} of {wanted} members")
        is_healthy = found.is_healthy and found.members >= wanted
        assert is_healthy, f"not healthy after {HEALTHY_S:.0f} s: {'; '.join(wrong)}"
        self.healing_s = max(self.healing_s, monotonic() - begun)

    def until_complete(self, name: NodeId) -> None:
        """Wait until a node holds all acknowledged publications, readable and with right ids.

        A healthy node may have damaged ones, which it finds when it reads or scrubs them.
        """
        self.until(
            lambda: self.ledger.acknowledged <= set(self.payloads(name)),
            lambda: f"{name} lacks publications",
        )

    def delivered(self) -> list[bytes]:
        """Return the payloads that the reader has printed, in order."""
        return [_payload(json.loads(line)) for line in self.lines(READER)]

    def payloads(self, name: NodeId) -> list[bytes]:
        """Return the payloads that a node holds."""
        return requests.payloads_at(self.place(name))

    def numbers(self, name: NodeId, publisher: NodeId) -> list[int]:
        """Return the sequence numbers of a publisher that a node holds."""
        found = requests.batches_at(self.place(name))
        return [
            number
            for each in found
            if each.publisher == publisher
            for number in range(each.first, each.end)
        ]

    def conclude(self) -> Judgement:
        """Wait for a healthy ring; judge the publications of its nodes and of the reader."""
        self.heal()
        holders = {name: self.payloads(name) for name in self.nodes}
        if READER in self.running:
            self._await_reader()
            holders[READER] = self.delivered()
        self.read_pauses()
        return judge(self.ledger, holders)

    def _await_reader(self) -> None:
        """Wait until the reader has all acknowledged publications, or until the deadline."""
        deadline = monotonic() + READER_S
        while monotonic() < deadline and self.ledger.acknowledged - set(self.delivered()):
            self.pass_time()


def _payload(line: dict[str, str]) -> bytes:
    if "payload" in line:
        return line["payload"].encode()
    return base64.b64decode(line["payload_base64"])


class FaultTrial:
    """Run of a row, and the results of its rings."""

    def __init__(self, directory: Path, repeats: int) -> None:
        self.directory = directory
        self.repeats = repeats
        self.judgement = Judgement()
        self.healing_s = 0.0
        self.pause_s = 0.0
        self._rings = 0

    def add(self, judgement: Judgement) -> None:
        """Add the judgement of a ring or of a reader."""
        self.judgement += judgement

    def victims(self) -> Iterator[NodeId]:
        """Return the node to damage in each repetition, in turn."""
        return islice(cycle(NAMES), self.repeats)

    def new_directory(self) -> Path:
        """Create the directory of another ring."""
        self._rings += 1
        directory = self.directory / f"ring{self._rings}"
        directory.mkdir(parents=True)
        return directory

    @contextmanager
    def ring(
        self,
        *names: NodeId,
        tick_s: float = TICK_S,
        environment: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        before: Before | None = None,
    ) -> Iterator[FaultRing]:
        """Form a ring of the named nodes or all; judge it at the end of the block."""
        directory = self.new_directory()
        made = FaultRing(directory, tick_s=tick_s, environment=environment, options=options)
        with self.judged(made, *(names or NAMES), before=before) as ring:
            yield ring

    @contextmanager
    def judged(
        self, ring: Ring, *names: NodeId, before: Callable[[Ring], None] | None = None
    ) -> Iterator[Ring]:
        """Form a ring; judge it at the end of the block, unless the block has failed."""
        with ring:
            try:
                if before is not None:
                    before(ring)
                ring.form(*names)
                yield ring
                self.add(ring.conclude())
            finally:
                self.healing_s = max(self.healing_s, ring.healing_s)
                self.pause_s = max(self.pause_s, ring.pause_s)
        shutil.rmtree(ring.directory)


def history(
    count: int, size: int = 64, *, records: int = 1, holders: Sequence[NodeId] = (HOLDER,)
) -> Before:
    """Return an action that writes a history into the stores of nodes before the ring forms."""

    def fill(ring: FaultRing) -> None:
        for name in holders:
            ring.ledger.acknowledge_all(fill_history(ring.data(name), count, size, records))

    return fill
