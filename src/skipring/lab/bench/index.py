"""How fast and how small the index of publications is (``skipring bench index``).

The trie of the core is measured beside one that has an object for every node, in one interleaved
run, so that their ratio does not depend on the machine; both must give the same root.
"""

from __future__ import annotations

import gc
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from statistics import median, quantiles
from time import process_time, process_time_ns
from typing import Any, Final, TypeAlias

from skipring.core.config import ProtocolConfig
from skipring.core.publications import ID_BYTES
from skipring.core.trie import PublicationTrie
from skipring.lab.bench.goals import at_least, at_most
from skipring.lab.bench.memory import alone, resident_bytes
from skipring.lab.bench.reference import ReferenceTrie

# What we want at n = 10^6.
INSERTS_PER_S: Final = 250_000
BYTES_PER_PUBLICATION: Final = 70
FRESH_ROOT_US: Final = 60
STALL_MS: Final = 20

N: Final = 1_000_000
BATCH: Final = 1000
SMALL_BATCH: Final = 100
REPEATS: Final = 3
SINGLE_INSERTS: Final = 3000
CHECKED_N: Final = 50_000  # roots are compared at this size too, every batch of it

Trie: TypeAlias = PublicationTrie | ReferenceTrie
SYSTEMS: Final[Mapping[str, Callable[[], Trie]]] = {
    "skipring": PublicationTrie,
    "reference": ReferenceTrie,
}


def measure(n: int = N, *, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield one row a measurement, the ratios last."""
    memory = [alone(_measure_memory, system, n, seed) for system in SYSTEMS]
    yield from memory
    inserts = _measure_inserts(SYSTEMS, n, BATCH, seed)
    yield from inserts
    yield from _measure_inserts(["skipring"], n, SMALL_BATCH, seed)
    roots = _measure_fresh_roots(n, seed)
    yield from roots
    stall = _measure_stall(n, seed)
    yield stall
    yield _compare_roots(min(n, CHECKED_N), seed)
    yield {"ratios": _ratios(memory, inserts, roots, stall)}


def _ratios(
    memory: list[dict[str, Any]],
    inserts: list[dict[str, Any]],
    roots: list[dict[str, Any]],
    stall: dict[str, Any],
) -> dict[str, float | None]:
    """How far the index reaches what is wanted, and how it compares with the reference."""
    ratios: dict[str, float | None] = {}
    speed, plain_speed = (row["inserts_per_s"] for row in inserts)
    ratios |= at_least("inserts_per_s", speed, INSERTS_PER_S)
    ratios["inserts_per_s_skipring_over_reference"] = round(speed / plain_speed, 2)
    for rows, name, wanted in (
        (memory, "bytes_per_publication", BYTES_PER_PUBLICATION),
        (memory, "bytes_per_publication_hashed", BYTES_PER_PUBLICATION),
        (roots, "fresh_root_us", FRESH_ROOT_US),
    ):
        own, reference = (row[name] for row in rows)
        ratios |= at_most(name, own, wanted)
        # So few that they fit into memory which was there before: nothing to compare with.
        ratios[f"{name}_reference_over_skipring"] = round(reference / own, 2) if own else None
    return ratios | at_most("stall_ms", stall["stall_ms"], STALL_MS)


def _batches(n: int, size: int, seed: int) -> Iterator[list[tuple[bytes, int]]]:
    """Random ids, as hashes are, with their offsets."""
    rng = Random(seed)
    for start in range(0, n, size):
        offsets = range(start, min(start + size, n))
        yield [(rng.randbytes(ID_BYTES), offset) for offset in offsets]


def _grown(system: str, n: int, seed: int) -> Trie:
    trie = SYSTEMS[system]()
    for batch in _batches(n, BATCH, seed):
        trie.add_many(batch)
    return trie


def _measure_memory(system: str, n: int, seed: int) -> dict[str, Any]:
    """Resident memory that a publication adds, before and after all digests are known."""
    baseline = resident_bytes()
    trie = _grown(system, n, seed)
    gc.collect()
    used = resident_bytes() - baseline
    trie.root  # noqa: B018 - works out all digests
    gc.collect()
    return {
        "job": "memory",
        "system": system,
        "n": n,
        "bytes_per_publication": round(used / n, 1),
        "bytes_per_publication_hashed": round((resident_bytes() - baseline) / n, 1),
    }


def _measure_inserts(systems: Iterable[str], n: int, size: int, seed: int) -> list[dict[str, Any]]:
    """Inserts per second of CPU from nothing to n, in batches, the systems in turns."""
    taken: dict[str, list[list[float]]] = {system: [] for system in systems}
    for repeat in range(REPEATS):
        # One trie at a time: the garbage collector would charge each for the other's objects.
        for system, seconds in taken.items():
            seconds.append(_seconds_per_batch(system, n, size, seed + repeat))
    return [_insert_row(system, n, size, seconds) for system, seconds in taken.items()]


def _seconds_per_batch(system: str, n: int, size: int, seed: int) -> list[float]:
    trie = SYSTEMS[system]()
    seconds = []
    for batch in _batches(n, size, seed):
        begin = process_time()
        trie.add_many(batch)
        seconds.append(process_time() - begin)
    return seconds


def _insert_row(system: str, n: int, size: int, repeats: list[list[float]]) -> dict[str, Any]:
    speeds = [n / sum(seconds) for seconds in repeats]
    batches = max(1, len(repeats[0]) // 10)
    late = [min(n, size * batches) / sum(seconds[-batches:]) for seconds in repeats]
    return {
        "job": "inserts",
        "system": system,
        "n": n,
        "batch": size,
        "inserts_per_s": round(median(speeds)),
        "inserts_per_s_min": round(min(speeds)),
        "inserts_per_s_max": round(max(speeds)),
        "inserts_per_s_last_tenth": round(median(late)),
        "repeats": REPEATS,
        "python": platform.python_version(),
    }


def _measure_fresh_roots(n: int, seed: int) -> list[dict[str, Any]]:
    """Microseconds of CPU for one insert into n publications and the root after it."""
    tries = {system: _grown(system, n, seed) for system in SYSTEMS}
    are_equal = len({trie.root for trie in tries.values()}) == 1
    taken: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    rng = Random(f"{seed}/single")
    for offset in range(n, n + SINGLE_INSERTS):
        key = rng.randbytes(ID_BYTES)
        for system, trie in tries.items():
            begin = process_time_ns()
            trie.add(key, offset)
            trie.root  # noqa: B018 - works out the digests that the insert has changed
            taken[system].append((process_time_ns() - begin) / 1000)
    are_equal &= len({trie.root for trie in tries.values()}) == 1
    return [
        {
            "job": "fresh root",
            "system": system,
            "n": n,
            "fresh_root_us": round(median(values), 1),
            "fresh_root_us_p99": round(quantiles(values, n=100)[-1], 1),
            "repeats": SINGLE_INSERTS,
            "equal": are_equal,
        }
        for system, values in taken.items()
    ]


def _measure_stall(n: int, seed: int) -> dict[str, Any]:
    """The longest that a single call takes, in milliseconds of CPU, from nothing to n."""
    config, trie = ProtocolConfig(), PublicationTrie()
    longest = {"insert_ms": 0.0, "freshen_ms": 0.0, "scrub_ms": 0.0}

    def call(name: str, action: Callable[[], object]) -> object:
        begin = process_time()
        result = action()
        longest[name] = max(longest[name], 1000 * (process_time() - begin))
        return result

    for batch in _batches(n, BATCH, seed):
        call("insert_ms", lambda batch=batch: trie.add_many(batch))  # type: ignore[misc]
        call("freshen_ms", lambda: trie.freshen(config.hashed_ids))
        call("scrub_ms", lambda: trie.scrub(config.scrubbed_ids))
    while not call("freshen_ms", lambda: trie.freshen(config.hashed_ids)):
        pass
    return {
        "job": "stall",
        "system": "skipring",
        "n": n,
        "stall_ms": round(max(longest.values()), 2),
        **{name: round(value, 2) for name, value in longest.items()},
    }


def _compare_roots(n: int, seed: int) -> dict[str, Any]:
    """Whether both tries have the same root after every batch."""
    tries = [make() for make in SYSTEMS.values()]
    compared = equal = 0
    for batch in _batches(n, BATCH, seed):
        for trie in tries:
            trie.add_many(batch)
        compared += 1
        equal += len({trie.root for trie in tries}) == 1
    return {
        "job": "roots",
        "system": "skipring",
        "n": n,
        "roots_compared": compared,
        "roots_equal": equal,
    }
