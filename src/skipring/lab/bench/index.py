"""Speed and memory of the index of publications (``skipring bench index``)."""

from __future__ import annotations

import gc
import platform
from collections.abc import Callable, Iterator
from random import Random
from statistics import median, quantiles
from time import process_time, process_time_ns
from typing import Final

from skipring.core.config import ProtocolConfig
from skipring.core.publications import ID_BYTES
from skipring.core.trie import PublicationTrie
from skipring.lab.bench.report import Figures, Row, spread
from skipring.lab.usage import resident_bytes, run_alone

N: Final = 1_000_000
BATCH: Final = 1000
SMALL_BATCH: Final = 100
REPEATS: Final = 3
SINGLE_INSERTS: Final = 3000


def measure(n: int = N, *, seed: int = 0) -> Iterator[Row]:
    """Yield one row per measurement."""
    yield run_alone(_measure_memory, n, seed)
    yield _measure_inserts(n, BATCH, seed)
    yield _measure_inserts(n, SMALL_BATCH, seed)
    yield _measure_fresh_roots(n, seed)
    yield _measure_stall(n, seed)


def id_batches(n: int, size: int, seed: int) -> Iterator[list[tuple[bytes, int]]]:
    """Yield random ids with their offsets."""
    rng = Random(seed)
    for start in range(0, n, size):
        offsets = range(start, min(start + size, n))
        yield [(rng.randbytes(ID_BYTES), offset) for offset in offsets]


def _grown(n: int, seed: int) -> PublicationTrie:
    trie = PublicationTrie()
    for batch in id_batches(n, BATCH, seed):
        trie.add_many(batch)
    return trie


def _measure_memory(n: int, seed: int) -> Row:
    """Measure the memory per publication, before and after hashing."""
    baseline = resident_bytes()
    trie = _grown(n, seed)
    gc.collect()
    used = resident_bytes() - baseline
    trie.root()  # computes all digests
    gc.collect()
    return {
        "job": "memory",
        "n": n,
        "bytes_per_publication": round(used / n, 1),
        "bytes_per_publication_hashed": round((resident_bytes() - baseline) / n, 1),
    }


def _measure_inserts(n: int, size: int, seed: int) -> Row:
    """Measure inserts per CPU second from 0 to n in batches."""
    repeats = [_seconds_per_batch(n, size, seed + repeat) for repeat in range(REPEATS)]
    batches = max(1, len(repeats[0]) // 10)
    late = [min(n, size * batches) / sum(seconds[-batches:]) for seconds in repeats]
    return {
        "job": "inserts",
        "n": n,
        "batch": size,
        **spread("inserts_per_s", [n / sum(seconds) for seconds in repeats], None),
        "inserts_per_s_last_tenth": round(median(late)),
        "repeats": REPEATS,
        "python": platform.python_version(),
    }


def _seconds_per_batch(n: int, size: int, seed: int) -> list[float]:
    trie = PublicationTrie()
    seconds = []
    for batch in id_batches(n, size, seed):
        begin = process_time()
        trie.add_many(batch)
        seconds.append(process_time() - begin)
    return seconds


def insert_figures(n: int) -> Figures:
    """Measure inserts per CPU second into the index, from 0 to n."""
    return {"inserts_per_s": n / sum(_seconds_per_batch(n, BATCH, seed=0))}


def _measure_fresh_roots(n: int, seed: int) -> Row:
    """Measure the CPU time of one insert into n publications and the root after it."""
    trie, rng, taken_us = _grown(n, seed), Random(f"{seed}/single"), list[float]()
    trie.root()
    for offset in range(n, n + SINGLE_INSERTS):
        key = rng.randbytes(ID_BYTES)
        begin = process_time_ns()
        trie.add(key, offset)
        trie.root()  # computes the digests that the insert has changed
        taken_us.append((process_time_ns() - begin) / 1000)
    return {
        "job": "fresh root",
        "n": n,
        "fresh_root_us": round(median(taken_us), 1),
        "fresh_root_us_p99": round(quantiles(taken_us, n=100)[-1], 1),
        "repeats": SINGLE_INSERTS,
    }


def _measure_stall(n: int, seed: int) -> Row:
    """Measure the longest single call from 0 to n, in milliseconds of CPU."""
    config, trie = ProtocolConfig.live(), PublicationTrie()
    longest = {"insert_ms": 0.0, "freshen_ms": 0.0, "scrub_ms": 0.0}

    def call(name: str, action: Callable[[], object]) -> object:
        begin = process_time()
        result = action()
        longest[name] = max(longest[name], 1000 * (process_time() - begin))
        return result

    for batch in id_batches(n, BATCH, seed):
        call("insert_ms", lambda batch=batch: trie.add_many(batch))  # type: ignore[misc]
        call("freshen_ms", lambda: trie.hash_some(config.hashed_ids))
        call("scrub_ms", lambda: trie.scrub(config.scrubbed_ids))
    while not call("freshen_ms", lambda: trie.hash_some(config.hashed_ids)):
        pass
    return {
        "job": "stall",
        "n": n,
        "stall_ms": round(max(longest.values()), 2),
        **{name: round(value, 2) for name, value in longest.items()},
    }
