"""One run of one system: its processes, and what they have cost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Final
from urllib.request import urlopen

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from skipring.errors import SkipringError
from skipring.lab.bench.board import Board, Moment, Slot, cpu_ns
from skipring.lab.bench.memory import MIB, resident_bytes_of
from skipring.lab.bench.peers.catalogue import OURS, OURS_SECURED, SYSTEMS
from skipring.lab.bench.peers.run import FIRST, STALLED_S, BenchRun
from skipring.lab.bench.player import BOARD_FILE, RUN_S, write_run
from skipring.lab.bench.servers import (
    Server,
    broker,
    ending_in_order,
    free_address,
    last_line,
    process,
    skipring_process,
    stop,
)
from skipring.security.ca import issue_each, make_authority

PLAYER: Final = "skipring.lab.bench.player"
FIRST_PLAYER: Final = "skipring.lab.bench.peers.first"
WATCH_S: Final = 0.01  # Our guess: how often we look at a run.
CERTIFICATES: Final = ("supervisor", "bench")
CERTIFICATE_DAYS: Final = 2
SCRAPE_S: Final = 5.0
FRAMES: Final = "skipring_received_frames_total"


class RunResult(Struct, frozen=True, kw_only=True):
    """What one run has cost; times are seconds."""

    wall_s: float
    cpu_s: dict[str, float]  # by part, from the first publication until the last delivery
    cpu_settled_s: dict[str, float]  # and until all that follows from it was done
    settled_s: float
    figures: dict[str, float]  # what the processes have counted

    @property
    def cpu_total_s(self) -> float:
        """Of all processes, until the last delivery."""
        return sum(self.cpu_s.values())

    @property
    def cpu_settled_total_s(self) -> float:
        """Of all processes, until nothing was left to be done."""
        return sum(self.cpu_settled_s.values())


def rss_of(part: str) -> str:
    """The figure that says how much memory the process of a part has when all is done."""
    return f"rss_mib_{part}"


def hold(run: BenchRun) -> RunResult:
    """Let a system run once, in a directory and with processes of its own."""
    with ending_in_order(), ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="skipring-bench-")))
        run = replace(run, directory=directory)
        board = Board(directory / BOARD_FILE)
        if run.system == OURS_SECURED:
            run = replace(run, certificates=make_certificates(directory))
        server = stack.enter_context(_server(run))
        run = replace(run, address=server.address if server else free_address())
        supervision = _Supervision(server)
        cast = _cast(run, stack)
        pids = {role: player.pid for role, player in cast.players.items()}
        if server is not None:
            pids["broker"] = server.pid
        board.set_pids(list(pids.values()))
        return _WorkerWatch(board, cast, list(pids), supervision).result()


@contextmanager
def _server(run: BenchRun) -> Iterator[Server | None]:
    """The broker of a system, for ours the supervisor; None if it has none."""
    if run.system in (OURS, OURS_SECURED):
        with supervisor(run.directory, run.certificates) as server:
            yield server
    elif SYSTEMS[run.system].server is not None:
        with broker(run.system, run.directory) as server:
            yield server
    else:
        yield None


@contextmanager
def supervisor(
    directory: Path, certificates: Path | None = None, *options: str
) -> Iterator[Server]:
    """A supervisor that shows how it is."""
    options += ("--data", str(directory / "supervisor"), *secured(certificates, "supervisor"))
    log, metrics = directory / "supervisor.log", free_address()
    with skipring_process("supervisor", *options, log=log, metrics=metrics) as server:
        yield server


def make_certificates(directory: Path) -> Path:
    """The certificates of a ring, in a directory of their own."""
    authority = make_authority(directory / "certs", days=CERTIFICATE_DAYS)
    issue_each(authority, CERTIFICATES, authority, days=CERTIFICATE_DAYS, hosts=())
    return authority


def secured(certificates: Path | None, name: str) -> list[str]:
    """The options of a process that shows a certificate."""
    if certificates is None:
        return []
    files = {"ca": "ca.pem", "cert": f"{name}.pem", "key": f"{name}.key"}
    return [
        word
        for option, file in files.items()
        for word in (f"--tls-{option}", str(certificates / file))
    ]


_ROLES: Final = ("publisher", "subscribers")


class Workers:
    """The processes of a run, by role: whether they live, and what they have to tell."""

    def __init__(self, run: BenchRun, module: str, roles: Iterable[str], stack: ExitStack) -> None:
        self._run = run
        self._deadline = monotonic() + RUN_S
        write_run(run)
        self.players = {role: stack.enter_context(self._started(module, role)) for role in roles}

    @contextmanager
    def _started(self, module: str, role: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", module, role, str(self._run.directory)]
        with process(command, self._log(role), is_killed=True) as player:
            yield player

    def _log(self, role: str) -> Path:
        return self._run.directory / f"{role}.log"

    def kill(self, role: str) -> None:
        """End a process at once."""
        stop(self.players.pop(role), is_killed=True)

    def pause(self) -> None:
        """Wait a little; SkipringError if a process has ended, or time is up."""
        for role, player in self.players.items():
            if player.poll() is not None:
                said = last_line(self._log(role))
                raise SkipringError(f"the {role} of {self._run.system} ended early: {said}")
        if monotonic() > self._deadline:
            raise SkipringError(f"a run of {self._run.system} took longer than {RUN_S:.0f} s")
        sleep(WATCH_S)

    def figures(self) -> dict[str, float]:
        """What those who live have counted."""
        found: dict[str, float] = {}
        for role in self.players:
            told = (self._run.directory / f"{role}.json").read_bytes()
            found |= msgspec.json.decode(told, type=dict[str, float])
        return found


def _cast(run: BenchRun, stack: ExitStack) -> Workers:
    if run.is_first_apart:
        return Workers(run, FIRST_PLAYER, (FIRST, *_ROLES), stack)
    return Workers(run, PLAYER, _ROLES, stack)


class _Supervision:
    """What a supervisor has heard and done in each phase of a run; nothing, if there is none."""

    def __init__(self, server: Server | None) -> None:
        self.figures: dict[str, float] = {}
        self._server = server
        self._before = self._counts()

    @property
    def is_there(self) -> bool:
        """True if there is a supervisor."""
        return self._server is not None and bool(self._server.metrics)

    def look(self, phase: str) -> None:
        """A phase is over."""
        now = self._counts()
        for name, count in now.items():
            self.figures[f"{phase}_{name}"] = count - self._before[name]
        self._before = now

    def _counts(self) -> dict[str, float]:
        if self._server is None or not self._server.metrics:
            return {}
        with urlopen(f"http://{self._server.metrics}/metrics", timeout=SCRAPE_S) as page:
            lines = page.read().decode().splitlines()
        frames = next(float(line.split()[1]) for line in lines if line.startswith(FRAMES))
        return {"frames": frames, "cpu_us": cpu_ns(self._server.pid) / 1e3}


class _WorkerWatch:
    """Looks at a run from outside: when it may begin, whether it goes on, when it is over."""

    def __init__(
        self, board: Board, cast: Workers, parts: Sequence[str], supervision: _Supervision
    ) -> None:
        self._board = board
        self._cast = cast
        self._parts = parts
        self._supervision = supervision

    def result(self) -> RunResult:
        """Let the run begin, wait for its end, and return what it has cost."""
        board, heard = self._board, self._supervision
        self._until_set(Slot.PUBLISHER_CALM, Slot.SUBSCRIBERS_CALM, first=Slot.FIRST_CALM)
        heard.look("joining")
        began = monotonic()
        board[Slot.BEGIN] = 1
        self._watch_deliveries()
        while board.noted(Moment.SETTLED) is None:
            self._cast.pause()
        heard.look("run")
        memory = self._memory()
        ended = monotonic()
        while heard.is_there and monotonic() < ended + (ended - began):
            self._cast.pause()  # what does a supervisor hear if nobody publishes?
        heard.look("idle")
        board[Slot.STOP] = 1
        self._until_set(Slot.PUBLISHER_DONE, Slot.SUBSCRIBERS_DONE, first=Slot.FIRST_DONE)
        return self._outcome(memory)

    def _watch_deliveries(self) -> None:
        """Wait for the last delivery; if nothing more comes, the last that came was it."""
        board = self._board
        seen, clocks, since = -1, board.clocks(), monotonic()
        while board.noted(Moment.ENDED) is None:
            delivered = board[Slot.DELIVERED]
            if delivered != seen:
                seen, clocks, since = delivered, board.clocks(), monotonic()
            elif monotonic() - since > STALLED_S:
                board.note(Moment.ENDED, clocks)
            self._cast.pause()

    def _until_set(self, *slots: Slot, first: Slot) -> None:
        if FIRST in self._parts:
            slots += (first,)
        while not all(self._board[slot] for slot in slots):
            self._cast.pause()

    def _memory(self) -> dict[str, float]:
        """What each process has now."""
        sizes = (resident_bytes_of(pid) / MIB for pid in self._board.pids)
        return {rss_of(part): size for part, size in zip(self._parts, sizes, strict=True)}

    def _outcome(self, memory: dict[str, float]) -> RunResult:
        began, ended, settled = (self._board.noted(moment) for moment in Moment)
        assert began is not None
        assert ended is not None
        assert settled is not None
        return RunResult(
            wall_s=(ended[0] - began[0]) / 1e9,
            settled_s=(settled[0] - began[0]) / 1e9,
            cpu_s=self._by_part(began, ended),
            cpu_settled_s=self._by_part(began, settled),
            figures=self._cast.figures() | self._supervision.figures | memory,
        )

    def _by_part(self, before: list[int], after: list[int]) -> dict[str, float]:
        spent = [(late - early) / 1e9 for early, late in zip(before[1:], after[1:], strict=True)]
        return dict(zip(self._parts, spent, strict=True))
