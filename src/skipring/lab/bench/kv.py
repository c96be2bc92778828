"""Key-value views, compared with NATS KV (``skipring bench kv``).

One client process writes, reads and watches; a second client in it watches from a connection of its
own, and a third one subscribes to the same writes. CPU time includes the servers: supervisor and
members, or nats-server. The systems take turns, each time with new servers. Members and nats-server
store on disk. Live records are the largest number that a member has once its number has stopped
falling, or that of the bucket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from time import perf_counter, perf_counter_ns, process_time
from typing import Final

from skipring.lab.bench.harness import run_directory
from skipring.lab.bench.report import Figures, Row, in_turns, spreads
from skipring.lab.bench.servers import BenchProcesses
from skipring.lab.bench.systems.catalog import OURS, STORED
from skipring.lab.bench.systems.tables import NATS, RING, Changes, KeyValueClient
from skipring.lab.bench.worker import percentiles_ms
from skipring.lab.usage import cpu_ns, run_alone
from skipring.net.event_loop import new_loop

JOB: Final = "kv"
NATS_KV: Final = "nats-kv"
KEYS: Final = 1000
PUTS: Final = 20_000
REPEATS: Final = 3
VALUE_BYTES: Final = 128
MEMBERS: Final = 3
LONE_SHARE: Final = 20  # of 20 values, one is put alone
LONE_MAX: Final = 1000
GROUP: Final = 250
GETS: Final = 20_000
READY_S: Final = 60.0
COMPACTION_S: Final = 3.0  # Members drop records at each tick, once a second.

# Systems, and the requirements of each in the catalog of stored histories.
REQUIREMENTS: Final[Mapping[str, str]] = {OURS: OURS, NATS_KV: "jetstream"}


def measure(
    *, keys: int = KEYS, puts: int = PUTS, repeats: int = REPEATS, systems: Iterable[str] = ()
) -> Iterator[Row]:
    """Yield one row per system, then the ratios."""
    chosen = list(systems) or list(REQUIREMENTS)
    able = [each for each in chosen if STORED[REQUIREMENTS[each]].missing is None]
    found = in_turns({each: partial(run_once, each, keys, puts) for each in able}, repeats)
    rows: dict[str, Row] = {}
    for system in chosen:
        results = found.get(system)
        row: Row = {"job": JOB, "system": system, "keys": keys, "puts": puts}
        if isinstance(results, list):
            rows[system] = row | spreads(results)
            yield rows[system]
        else:
            skipped = STORED[REQUIREMENTS[system]].skipped
            yield row | (skipped or {"failed": str(results)})
    if len(rows) == len(REQUIREMENTS):
        ours, theirs = rows[OURS], rows[NATS_KV]
        names = [name for name in ours if f"{name}_min" in ours and ours[name]]
        ratios = {f"{name}_nats_over_skipring": theirs[name] / ours[name] for name in names}
        yield {"ratios": {name: round(ratio, 3) for name, ratio in ratios.items()}}


def run_once(system: str, keys: int, puts: int) -> Figures:
    """Start the servers of a system, and measure its clients in a new process."""
    with run_directory() as directory, BenchProcesses(directory) as processes:
        if system == OURS:
            address = processes.start_supervisor()
            for number in range(MEMBERS):
                processes.start_node(f"bench.n{number}")
        else:
            address = processes.start_broker("jetstream")
        pids = [each.pid for each in processes.running.values()]
        return run_alone(_run, system, address, directory, pids, keys, puts)


def _run(
    system: str, address: str, directory: Path, pids: Sequence[int], keys: int, puts: int
) -> Figures:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_measure(system, address, directory, pids, keys, puts))


async def _measure(
    system: str, address: str, directory: Path, pids: Sequence[int], keys: int, puts: int
) -> Figures:
    table = RING if system == OURS else NATS
    figures: Figures = {}
    spent = partial(_spent_s, pids)
    async with table.opened(address, directory / "writer") as writer:
        began, before = perf_counter(), spent()
        for start in range(0, puts, GROUP):
            await writer.put_many(_pairs(range(start, min(start + GROUP, puts)), keys))
        figures["put_many_cpu_us"] = (spent() - before) / puts * 1e6
        figures["put_many_per_s"] = puts / (perf_counter() - began)
        began = perf_counter()
        async with table.opened(address, directory / "watcher") as watcher:
            await _seen(watcher.changes(), _pairs(range(max(puts - keys, 0), puts), keys))
            figures["newcomer_s"] = perf_counter() - began
            subscribed = table.subscribed(address, directory / "subscriber")
            figures |= await _lone_puts(writer, watcher, subscribed, spent, puts)
            figures["live_records"] = await _live_records(writer)
        figures |= await _get(writer, keys)
    return figures


def _pairs(numbers: range, keys: int) -> list[tuple[str, bytes]]:
    return [
        (f"key.{number % keys}", (b"%d" % number).ljust(VALUE_BYTES, b"x")) for number in numbers
    ]


async def _lone_puts(
    writer: KeyValueClient,
    watcher: KeyValueClient,
    subscribed: AbstractAsyncContextManager[Changes],
    spent: Callable[[], float],
    puts: int,
) -> Figures:
    """Put values one at a time, first with a watching client, then with a subscriber."""
    count = min(max(puts // LONE_SHARE, 1), LONE_MAX)
    before = spent()
    took, arrived = await _put_alone(writer, watcher.changes(), count)
    cpu_us = (spent() - before) / count * 1e6
    async with subscribed as deliveries:
        _, delivered = await _put_alone(writer, deliveries, count)
    found = {"put": took, "watch": arrived, "delivery": delivered}
    figures = {
        f"{kind}_{name}": value
        for kind, times in found.items()
        for name, value in percentiles_ms(times).items()
    }
    return figures | {"put_cpu_us": cpu_us}


async def _live_records(writer: KeyValueClient) -> float:
    """Return the number of live records once it does not fall any more."""
    before, found = None, await writer.live_records()
    async with asyncio.timeout(READY_S):
        while found != before:
            await asyncio.sleep(COMPACTION_S)
            before, found = found, await writer.live_records()
    return found


async def _seen(changes: Changes, pairs: Iterable[tuple[str, bytes]]) -> None:
    """Read changes until each key has its last value."""
    missing = dict(pairs)
    async with asyncio.timeout(READY_S):
        while missing:
            key, value = await anext(changes)
            if missing.get(key) == value:
                del missing[key]


async def _put_alone(
    writer: KeyValueClient, changes: Changes, count: int
) -> tuple[list[int], list[int]]:
    """Put values one at a time; return the times of puts, and until the other client has each."""
    took, arrived = list[int](), list[int]()
    async with asyncio.timeout(READY_S * 2):
        for number in range(count):
            value, began = b"alone%d" % number, perf_counter_ns()
            await writer.put("key.0", value)
            took.append(perf_counter_ns() - began)
            while (await anext(changes))[1] != value:
                pass
            arrived.append(perf_counter_ns() - began)
    return took, arrived


async def _get(table: KeyValueClient, keys: int) -> Figures:
    names = [f"key.{number % keys}" for number in range(GETS)]
    began = process_time()
    for name in names:
        await table.get(name)
    return {"get_us": (process_time() - began) / GETS * 1e6}


def _spent_s(pids: Sequence[int]) -> float:
    """Return the CPU time of this process and the servers."""
    return process_time() + sum(map(cpu_ns, pids)) / 1e9
