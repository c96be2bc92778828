"""Scenario: all parameters of a simulated run, as one value or a TOML file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from skipring.core.batches import RECORDS_MAX
from skipring.core.config import Mode, Preset, ProtocolConfig, Rule, Spread
from skipring.core.peers import NodeId
from skipring.core.retention.charter import US, Policy
from skipring.errors import ScenarioError
from skipring.sim.network_faults import Delay, Duplication, Fault, Loss, Partition
from skipring.sim.process_faults import (
    Churn,
    ClockJump,
    CrashWave,
    DrainWave,
    Incident,
    OracleDetector,
    PublisherCrash,
    PublishLoad,
    SupervisorRestart,
    WrongSuspicion,
)
from skipring.sim.schedulers import SCHEDULERS
from skipring.world.adversaries import ADVERSARIES, scatter
from skipring.world.adversaries.retention_states import NOW, YEARS, with_charter
from skipring.world.snapshot import Snapshot

N_MAX: Final = 1_000_000  # Limit: fits into the memory of one process.
CRASH_SHARE: Final = 1 / 16  # share of the members, in each of an adversary's crash rounds
SENTENCE_MAX: Final = 200  # characters. Guess: the longest readable sentence.
PUBLICATIONS_MAX: Final = 100_000  # Limit: every subscriber stores all of them.

Share = Annotated[float, Meta(ge=0, le=1)]
Chance = Annotated[float, Meta(ge=0, lt=1)]  # below 1: a message must be able to get through
Rounds = Annotated[int, Meta(ge=0, le=10**9)]


class PartitionSpan(Struct, frozen=True, forbid_unknown_fields=True):
    """Cut between a share of the subscribers and the rest with the supervisor, for some rounds."""

    share: Share
    from_round: Rounds
    to_round: Rounds

    def __post_init__(self) -> None:
        """Raise ValueError if the span ends before it begins."""
        if self.from_round >= self.to_round:
            raise ValueError("from_round must come before to_round")

    def of(self, nodes: list[NodeId], seed: int) -> Partition:
        """Return the partition of these subscribers."""
        island = Random(f"partition/{seed}").sample(nodes, round(self.share * len(nodes)))
        return Partition(frozenset(island), self.from_round, self.to_round)


class DelaySpan(Struct, frozen=True, forbid_unknown_fields=True):
    """Delay of a share of the messages by up to ``rounds_max`` rounds."""

    share: Share
    rounds_max: Annotated[int, Meta(ge=1, le=1000)]


class WaveSpan(Struct, frozen=True, forbid_unknown_fields=True):
    """Crash or departure of a share of the subscribers in each of the given rounds."""

    rounds: tuple[Rounds, ...]
    share: Share


class SuspicionSpan(Struct, frozen=True, forbid_unknown_fields=True):
    """Suspicion of a share of the live subscribers, in each of the first rounds."""

    rounds: Rounds
    share: Share


class PublishSpan(Struct, frozen=True, forbid_unknown_fields=True):
    """Publications by random members, ``per_round`` in each of the first rounds."""

    rounds: Rounds
    per_round: Annotated[int, Meta(ge=1, le=1000)] = 1


class ClockSpan(Struct, frozen=True, forbid_unknown_fields=True):
    """Wall clocks that are off by up to ``off_s``, and two broken ones, off by years.

    In each of the rounds of ``jumps`` all clocks are set again. A round takes ``round_s``.
    """

    off_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    broken: bool = False
    jumps: tuple[Rounds, ...] = ()
    round_s: Annotated[float, Meta(gt=0, le=1e6)] = 1.0

    def offsets(self, nodes: Sequence[NodeId], rng: Random) -> dict[NodeId, int]:
        """Return an offset for each node; one broken clock is ahead, the other behind."""
        off = round(self.off_s * US)
        made = {node: rng.randint(-off, off) for node in nodes}
        broken = rng.sample(sorted(nodes), min(len(nodes), 2)) if self.broken else []
        return made | dict(zip(broken, (YEARS, -YEARS), strict=False))


class Scenario(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a run: options of ``skipring simulate``, and options that only files have."""

    n: Annotated[int, Meta(ge=1, le=N_MAX)] = 16
    adversary: str = "A00"
    mode: Mode = Mode.FAST
    without: tuple[Rule, ...] = ()
    scheduler: str = "random"
    loss: Chance = 0.0
    duplicate: Share = 0.0
    churn: Share = 0.0
    spread: Spread | None = None  # None: the default of the mode
    config: Preset = Preset.LIVE
    publications: Annotated[int, Meta(ge=0, le=PUBLICATIONS_MAX)] = 0
    seed: int = 0
    max_rounds: Rounds = 2000
    closure: Rounds = 20

    title: str = ""
    orders: tuple[int, ...] = ()  # of the first rounds: ``ListedOrder``
    batch: Annotated[int, Meta(ge=1, le=RECORDS_MAX)] = 1  # records of each publication
    detector_delay: Rounds | None = None  # an oracle suspects crashed nodes, this much later
    supervisor_restarts: tuple[Rounds, ...] = ()
    delay: DelaySpan | None = None
    partition: PartitionSpan | None = None
    crash: WaveSpan | None = None
    drain: WaveSpan | None = None
    publisher_crashes: tuple[Rounds, ...] = ()
    wrong_suspicion: SuspicionSpan | None = None
    publish: PublishSpan | None = None
    clocks: ClockSpan | None = None
    policy: Policy | None = None  # of the topic; its charter is at one member

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown adversary or scheduler."""
        _require("adversary", self.adversary, ADVERSARIES)
        _require("scheduler", self.scheduler, SCHEDULERS)
        if self.orders and self.scheduler != "random":
            raise ValueError("orders are for the scheduler random")

    @property
    def protocol(self) -> ProtocolConfig:
        """Return the protocol configuration of this scenario."""
        config = ProtocolConfig.of(self.mode, self.without, self.spread, self.config)
        if self.detector_delay is not None:
            config = replace(config, detects_failures=False)
        return config

    @property
    def warm_up_rounds(self) -> int:
        """Return the number of rounds before measurement starts: the rounds of churn."""
        return Churn(self.churn).last_round + 1

    @property
    def last_disturbed_round(self) -> int:
        """Return the last round with a fault or incident; a run does not end before it."""
        partition_end = self.partition.to_round - 1 if self.partition is not None else -1
        return max([partition_end, *(incident.last_round for incident in self.incidents())])

    def start(self, given: Snapshot | None = None) -> Snapshot:
        """Return the given state or the adversary's, with publications scattered over the nodes."""
        if given is None:
            chance = Random(f"{self.adversary}/{self.seed}")
            given = ADVERSARIES[self.adversary].build(self.n, chance, batch=self.batch)
        chance = Random(f"publications/{self.seed}")
        made = scatter(given, self.publications, chance, batch=self.batch)
        if self.policy is not None:
            made = with_charter(made, self.policy, Random(f"charter/{self.seed}"))
        return made if self.clocks is None else self._with_clocks(made, self.clocks)

    def _with_clocks(self, world: Snapshot, span: ClockSpan) -> Snapshot:
        """Return a world with the clocks of this scenario, at its own time if it has one."""
        offsets = span.offsets(list(world.subscribers), Random(f"clocks/{self.seed}"))
        step = round(span.round_s * US)
        clocks = replace(world.clocks, now=world.clocks.now or NOW, step=step, offsets=offsets)
        return replace(world, clocks=clocks)

    def faults(self, nodes: list[NodeId]) -> tuple[Fault, ...]:
        """Return the faults of messages between these subscribers."""
        found: list[Fault] = []
        if self.partition is not None:
            found.append(self.partition.of(nodes, self.seed))
        if self.duplicate > 0:
            found.append(Duplication(self.duplicate))
        if self.loss > 0:
            found.append(Loss(self.loss))
        if self.delay is not None:
            found.append(Delay(self.delay.share, self.delay.rounds_max))
        return tuple(found)

    def incidents(self) -> tuple[Incident, ...]:
        """Return the faults of processes; the detector is last, so it sees the round's crashes."""
        span = self.clocks or ClockSpan()
        found: list[Incident] = [ClockJump(span.jumps, span.offsets)] if span.jumps else []
        if self.churn > 0:
            found.append(Churn(self.churn))
        if self.crash is not None:
            found.append(CrashWave(self.crash.rounds, self.crash.share))
        if self.drain is not None:
            found.append(DrainWave(self.drain.rounds, self.drain.share))
        if ADVERSARIES[self.adversary].crash_rounds:
            found.append(CrashWave(ADVERSARIES[self.adversary].crash_rounds, CRASH_SHARE))
        if self.wrong_suspicion is not None:
            found.append(WrongSuspicion(self.wrong_suspicion.share, self.wrong_suspicion.rounds))
        if self.publish is not None:
            found.append(PublishLoad(self.publish.rounds, self.publish.per_round, self.batch))
        if self.publisher_crashes:
            found.append(PublisherCrash(self.publisher_crashes, self.batch))
        if self.supervisor_restarts:
            found.append(SupervisorRestart(self.supervisor_restarts))
        if not self.protocol.detects_failures:
            found.append(OracleDetector(self.detector_delay or 0))
        return tuple(found)


def make_scenario(values: Mapping[str, Any]) -> Scenario:
    """Build a scenario from plain values of a file or the command line."""
    for key in values:
        _require_key(key)
    try:
        return msgspec.convert(dict(values), Scenario)
    except msgspec.ValidationError as error:
        raise ScenarioError(_sentence(str(error), values)) from None


def read_scenario(path: Path) -> dict[str, Any]:
    """Read the values of a scenario file; ``make_scenario`` validates them."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read the scenario {path.name}: {_reason(error)}"
        raise ScenarioError(message) from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
        message = f"{path.name} is not valid TOML: {_short(str(error))}"
        raise ScenarioError(message) from None


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or "unknown error") if isinstance(error, OSError) else "not UTF-8"


def _require(name: str, value: str, choices: Mapping[str, object] | tuple[str, ...]) -> None:
    if value not in choices:
        message = f"{name}: {value[:40]!r} is not one of {', '.join(choices)}"
        raise ScenarioError(message)


_ENUMS: Final[Mapping[str, type[Mode] | type[Rule] | type[Spread] | type[Preset]]] = {
    "mode": Mode,
    "config": Preset,
    "without": Rule,
    "spread": Spread,
}


def _require_key(key: str) -> None:
    """Raise ScenarioError for an unknown key, with a similar known key."""
    known = Scenario.__struct_fields__
    if key not in known:
        close = get_close_matches(key[:40], known, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ScenarioError(_short(f"unknown key {key[:40]!r}{hint}"))


_WORDS: Final = {"int": "a whole number", "float": "a number", "str": "a text", "array": "a list"}


def _sentence(text: str, values: Mapping[str, Any]) -> str:
    """Reword msgspec's report: a sentence with the place and the actual value."""
    report, _, place = text.partition(" - at ")
    name = place.strip("`").removeprefix("$.").removeprefix("$")
    report = report[:1].lower() + report[1:]
    for word, words in _WORDS.items():
        report = report.replace(f"`{word}`", words)
    report = report.replace("`", "")
    choices = _ENUMS.get(name.partition("[")[0])
    if choices is not None and report.startswith("invalid enum value"):
        report = f"expected one of {', '.join(choices)}"
    if report.startswith("expected "):
        report = f"{report.partition(', got ')[0]}, got {_value_at(values, name)!r:.40}"
    report = re.sub(r"^object contains unknown field ", "unknown key ", report)
    return _short(f"{name}: {report}" if name else report)


def _value_at(values: Mapping[str, Any], place: str) -> object:
    """Return the value at a place such as ``crash.rounds[0]``."""
    value: Any = values
    for step in re.findall(r"\w+", place):
        value = value[int(step)] if isinstance(value, list | tuple) else value[step]
    return value


def _short(text: str) -> str:
    """Return the text on one line of limited length."""
    line = " ".join(text.split())
    return line if len(line) <= SENTENCE_MAX else line[: SENTENCE_MAX - 3] + "..."
