"""Fan-out to n subscribers, compared with other systems (``skipring bench fanout``).

Each system has one process that publishes, one with all subscribers, and its broker if it has one.
The jobs are parameter sets of the same run; the systems run several times, in rotation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from msgspec.structs import replace

from skipring.core.limits import PAYLOAD_BYTES_MAX
from skipring.lab.bench.harness import Job, RunResult, compare, delivery_figures, rss_figure
from skipring.lab.bench.report import Figures, Row
from skipring.lab.bench.run import BenchRun, apart_roles
from skipring.lab.bench.servers import BROKER
from skipring.lab.bench.systems.catalog import OURS, RELAY, SYSTEMS

SIZES: Final = (64, 256)
REPEATS: Final = 3
THROUGHPUT: Final = "throughput"
SUSTAINED: Final = "sustained"
LATENCY: Final = "latency"
BUSY: Final = "busy"
HOPS: Final = "hops"
HOTTEST: Final = "hottest"


# -- jobs ------------------------------------------------------------------------------------


def hottest_figures(run: BenchRun, result: RunResult) -> Figures:
    """Return the costs of the broker, or of the member that joined first, per publication."""
    (part,) = apart_roles(run) or (BROKER,)
    given, scale, size = result.figures, 1e6 / run.count, run.count * run.size
    figures = {
        "cpu_us_per_publication": scale * result.cpu_s[part],
        "cpu_us_per_publication_settled": scale * result.cpu_settled_s[part],
        "rss_mib": given[rss_figure(part)],
    }
    if not run.apart:
        return figures | {"copies_per_publication": run.n}
    return figures | {
        "copies_per_publication": given[f"{part}_bytes_sent"] / size,
        "copies_per_publication_others": given["hottest_bytes"] / size,
    }


def hop_figures(run: BenchRun, result: RunResult) -> Figures:
    """Return the latency of members with processes of their own, by hops from the publisher."""
    figures, given, roles = delivery_figures(run, result), result.figures, apart_roles(run)
    p50_ms = [given[f"{role}_p50_ms"] for role in roles]
    hops = [given[f"{role}_hops"] for role in roles]
    per_hop = [value / distance for value, distance in zip(p50_ms, hops, strict=True)]
    own = {"p50_ms": median(p50_ms), "p50_ms_per_hop": median(per_hop), "hops_max": max(hops)}
    return {"cpu_us_per_delivery": figures["cpu_us_per_delivery"], **own}


_WITH_TOPICS: Final = (OURS, "nats")  # their drivers have topics
_RUN: Final = BenchRun(n=64)
JOBS: Final[Mapping[str, Job]] = {
    THROUGHPUT: Job(_RUN),
    # Guess: more than 3 s, so the run includes indexing and several commits. Slow systems run with
    # fewer publications, so their runs are not sustained.
    SUSTAINED: Job(
        replace(_RUN, count=32_000),
        tuple(name for name, system in SYSTEMS.items() if system.deliveries_max is None),
    ),
    LATENCY: Job(replace(_RUN, rate=200.0)),
    BUSY: Job(replace(_RUN, rate=200.0, is_busy=True), (OURS, "nats", RELAY)),
    HOPS: Job(BenchRun(n=1, apart=7, rate=200.0), (OURS,), hop_figures),
    HOTTEST: Job(
        BenchRun(n=63, apart=1),
        (OURS, *(name for name, system in SYSTEMS.items() if system.broker is not None)),
        hottest_figures,
    ),
    "size-16": Job(replace(_RUN, size=16), _WITH_TOPICS),
    "size-1024": Job(replace(_RUN, size=1024), _WITH_TOPICS),
    # Limit: 8 MiB of payloads; each member stores them.
    "size-16384": Job(replace(_RUN, size=16_384, count=512), _WITH_TOPICS),
    # Limit: 32 MiB of payloads, of the largest size.
    "size-524288": Job(BenchRun(n=16, size=PAYLOAD_BYTES_MAX, count=64), _WITH_TOPICS),
    "topics-1": Job(BenchRun(n=4), _WITH_TOPICS),
    "topics-16": Job(BenchRun(n=4, topics=16), _WITH_TOPICS),
    "topics-128": Job(BenchRun(n=4, topics=128), _WITH_TOPICS),
}


def job_of(name: str, n: int, **given: float | Path | None) -> Job:
    """Return a job with at most ``n`` subscribers, and with the parameters that are not None."""
    job = JOBS[name]
    own, apart = job.run.n, min(job.run.apart, n - 1)
    changed = {key: value for key, value in given.items() if value is not None}
    changed["n"] = n if name == THROUGHPUT else min(own, n - apart)
    return replace(job, run=replace(job.run, apart=apart, **changed))


def measure(  # noqa: PLR0913  (keyword arguments with defaults)
    sizes: Sequence[int] = SIZES,
    *,
    size: int | None = None,
    count: int | None = None,
    rate: float | None = None,
    repeats: int = REPEATS,
    systems: Sequence[str] = tuple(SYSTEMS),
    jobs: Iterable[str] = tuple(JOBS),
    profiles: Path | None = None,
) -> Iterator[Row]:
    """Yield one row per measurement."""
    for name in jobs:
        for n in sizes if name == THROUGHPUT else [max(sizes)]:
            job = job_of(name, n, size=size, count=count, rate=rate, profiles=profiles)
            yield from compare(name, job, systems, repeats)
