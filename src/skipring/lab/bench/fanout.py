"""Publishing to n subscribers, ours beside its peers (``skipring bench fanout``).

Every system has one process that publishes, one that holds all subscribers, each with a connection
of its own, and its broker if it has one. They take turns, each several times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from skipring.lab.bench import growth, hottest, loss
from skipring.lab.bench.goals import at_most, beside
from skipring.lab.bench.jobs import Job, compared
from skipring.lab.bench.peers.catalogue import BARE, OURS, SYSTEMS, missing
from skipring.lab.bench.turns import Row, is_measured

SIZES: Final = (64, 256)
PAYLOAD_BYTES: Final = 128
REPEATS: Final = 3
LATENCY_N: Final = 64
LATENCY_RATE: Final = 200.0
LATENCY_S: Final = 2.0
SUSTAINED_N: Final = 64
# More than 16,384 publications, and more than 3 s: what is kept late is kept inside the run.
SUSTAINED_COUNT: Final = 32_000
THROUGHPUT: Final = "throughput"
SUSTAINED: Final = "sustained"
LATENCY: Final = "latency"
JOBS: Final = (THROUGHPUT, SUSTAINED, LATENCY, hottest.JOB, growth.JOB, loss.JOB)

# How many times the processor time of ours a peer has to need at least.
CPU_WANTED: Final[Mapping[str, float]] = {"nats": 2.5, "zenoh": 1.0, "zeromq": 1 / 3}
P50_WANTED: Final[Mapping[str, float]] = {"nats": 1.5}
MESSAGES_WANTED: Final = 1.2  # per delivery, at most
SUPERVISOR_MESSAGES_WANTED: Final = 0.0  # per publication


def measure(  # noqa: PLR0913  (each is named, and all can be left out)
    sizes: Sequence[int] = SIZES,
    *,
    size: int = PAYLOAD_BYTES,
    count: int | None = None,
    rate: float = 0.0,
    repeats: int = REPEATS,
    systems: Iterable[str] = tuple(SYSTEMS),
    jobs: Iterable[str] = JOBS,
    profiles: Path | None = None,
) -> Iterator[Row]:
    """Yield one row a measurement, the ratios last."""
    rows: list[Row] = []
    chosen, names = list(systems), list(jobs)
    asked = Job(
        name="", n=max(sizes), size=size, count=count, rate=rate, repeats=repeats, profiles=profiles
    )
    for row in _rows(asked, sizes, chosen, names):
        rows.append(row)
        yield row
    yield {"ratios": ratios(rows)}


def _rows(
    asked: Job, sizes: Sequence[int], systems: Sequence[str], names: Sequence[str]
) -> Iterator[Row]:
    for job, able in _jobs(asked, sizes, systems, names):
        yield from compared(job, able)
    if hottest.JOB in names:
        yield from hottest.measure(_at(asked, hottest.JOB, hottest.N), systems)
    if growth.JOB in names:
        yield from growth.measure(replace(asked, name=growth.JOB), systems)
    if loss.JOB in names and OURS in systems:
        yield loss.measured(min(max(sizes), loss.N))


def _jobs(
    asked: Job, sizes: Sequence[int], systems: Sequence[str], names: Sequence[str]
) -> Iterator[tuple[Job, list[str]]]:
    """What is to be done in which all systems take part, and by whom."""
    if THROUGHPUT in names:
        for n in sizes:
            yield replace(asked, name=THROUGHPUT, n=n), _able(systems, n)
        yield from _smaller(replace(asked, name=THROUGHPUT), min(sizes), systems)
    if SUSTAINED in names:
        job = _at(asked, SUSTAINED, SUSTAINED_N)
        # Of what is slow less is asked, and that would not be sustained.
        able = [each for each in _able(systems, job.n) if SYSTEMS[each].deliveries_max is None]
        yield replace(job, count=asked.count or SUSTAINED_COUNT), able
    if LATENCY in names:
        job, rate = _at(asked, LATENCY, LATENCY_N), asked.rate or LATENCY_RATE
        count = asked.count or round(rate * LATENCY_S)
        yield replace(job, count=count, rate=rate), _able(systems, job.n)


def _at(asked: Job, name: str, n: int) -> Job:
    """A job of a size of its own, or of the largest that was asked for."""
    return replace(asked, name=name, n=min(n, asked.n))


def _smaller(job: Job, n_min: int, systems: Sequence[str]) -> Iterator[tuple[Job, list[str]]]:
    """What is too slow for all of the sizes, beside ours."""
    for system in systems:
        n_max = SYSTEMS[system].n_max
        if n_max is not None and n_max < n_min:
            is_there = missing(SYSTEMS[system]) is None
            beside = [OURS] if OURS in systems and is_there else []
            yield replace(job, n=n_max), [*beside, system]


def _able(systems: Iterable[str], n: int) -> list[str]:
    """Those that are measured with so many subscribers."""
    bounds = {system: SYSTEMS[system].n_max for system in systems}
    return [system for system, bound in bounds.items() if bound is None or n <= bound]


# -- ratios ----------------------------------------------------------------------------------


def ratios(rows: Iterable[Row]) -> dict[str, float]:
    """How the peers compare with ours, and both with what is wanted: 1 or more is reached."""
    rows, found = list(rows), dict[str, float]()
    shared = [row for row in rows if row["job"] in (THROUGHPUT, SUSTAINED, LATENCY)]
    ours = {(row["job"], row["n"]): row for row in shared if _is_ours(row)}
    for row in shared:
        own = ours.get((row["job"], row["n"]))
        if own is not None and row is not own and is_measured(row):
            found |= _against(row, own)
    found |= _of_the_bare(shared)
    for row in ours.values():
        found |= _own_ratios(row)
    return found | hottest.ratios(rows) | growth.ratios(rows) | loss.ratios(rows)


def _is_ours(row: Row) -> bool:
    return row["system"] == OURS and is_measured(row)


def _against(row: Row, own: Row) -> dict[str, float]:
    system, n = row["system"], row["n"]
    if row["job"] == LATENCY:
        ratio = row["p50_ms"] / own["p50_ms"]
        return beside(f"p50_{system}_over_skipring_n{n}", ratio, P50_WANTED.get(system))
    where = f"{SUSTAINED}_n{n}" if row["job"] == SUSTAINED else f"n{n}"
    name, cost = f"cpu_{system}_over_skipring_{where}", row["cpu_us_per_delivery"]
    wanted = CPU_WANTED.get(system)
    settled = row["cpu_us_per_delivery_settled"] / own["cpu_us_per_delivery_settled"]
    return {
        **beside(name, cost / own["cpu_us_per_delivery"], wanted),
        f"{name}_settled": round(settled, 2),
    }


def _of_the_bare(rows: Iterable[Row]) -> dict[str, float]:
    """How the latency of those who are compared with ours is to that of a bare relay."""
    p50 = {(row["system"], row["n"]): row["p50_ms"] for row in rows if _is_timed(row)}
    return {
        f"p50_{system}_over_{BARE}_n{n}": round(found / p50[BARE, n], 2)
        for (system, n), found in p50.items()
        if system in P50_WANTED and (BARE, n) in p50
    }


def _is_timed(row: Row) -> bool:
    return row["job"] == LATENCY and is_measured(row)


def _own_ratios(row: Row) -> dict[str, float]:
    job, n = row["job"], row["n"]
    said = row["supervisor_messages_per_publication"]
    found = {
        **at_most(
            f"messages_per_delivery_{job}_n{n}", row["messages_per_delivery"], MESSAGES_WANTED
        ),
        **at_most(
            f"supervisor_messages_per_publication_{job}_n{n}", said, SUPERVISOR_MESSAGES_WANTED
        ),
    }
    if job != LATENCY:
        settled = row["cpu_us_per_delivery_settled"] / row["cpu_us_per_delivery"]
        found[f"cpu_settled_over_delivered_{job}_n{n}"] = round(settled, 2)
    return found
