"""Speed and memory of the index of publications (``skipring bench index``).

The trie of the core and a trie with one object per node run alternately, so their ratio does not
depend on the machine; both must have the same root.
"""

from __future__ import annotations

import gc
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from random import Random
from statistics import median, quantiles
from time import process_time, process_time_ns
from typing import Final, TypeAlias

from skipring.core.config import ProtocolConfig
from skipring.core.publications import ID_BYTES
from skipring.core.trie import PublicationTrie
from skipring.lab.bench.report import Figures, Row, at_least, at_most, spread
from skipring.lab.usage import resident_bytes, run_alone

# Goals at n = 10^6.
INSERTS_PER_S: Final = 250_000
BYTES_PER_PUBLICATION: Final = 70
FRESH_ROOT_US: Final = 60
STALL_MS: Final = 20

N: Final = 1_000_000
BATCH: Final = 1000
SMALL_BATCH: Final = 100
REPEATS: Final = 3
SINGLE_INSERTS: Final = 3000
CHECKED_N: Final = 50_000  # up to this size roots are compared after each batch
_ID_BITS: Final = 8 * ID_BYTES


# -- the baseline ------------------------------------------------------------------------------


class _Leaf:
    __slots__ = ("digest", "key", "offset")

    def __init__(self, key: int, offset: int) -> None:
        self.key = key
        self.offset = offset
        self.digest: bytes | None = None


class _Inner:
    __slots__ = ("bit", "digest", "one", "zero")

    def __init__(self, bit: int, zero: _Node, one: _Node) -> None:
        self.bit = bit  # where its children diverge, counted from the end of an id
        self.zero = zero
        self.one = one
        self.digest: bytes | None = None


_Node: TypeAlias = _Leaf | _Inner


class ReferenceTrie:
    """Hashed Patricia trie with one object per node (section 4.2).

    Baseline of the index and oracle of its digests; the two share only the ids.
    """

    __slots__ = ("_count", "_root")

    def __init__(self) -> None:
        self._root: _Node | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add_many(self, entries: Iterable[tuple[bytes, int]]) -> int:
        """Insert ids with their offsets; return how many are new."""
        return sum(self.add(key, offset) for key, offset in entries)

    def add(self, key: bytes, offset: int) -> bool:
        """Insert one id; return False if it is present."""
        new = _Leaf(int.from_bytes(key, "big"), offset)
        if self._root is None:
            self._root = new
            self._count = 1
            return True
        bit = (new.key ^ _nearest(self._root, new.key).key).bit_length() - 1
        if bit < 0:
            return False
        self._insert(new, bit)
        self._count += 1
        return True

    def _insert(self, new: _Leaf, bit: int) -> None:
        """Insert a leaf at the bit where its id diverges; clear the digests above it."""
        key, above, node = new.key, None, self._root
        while isinstance(node, _Inner) and node.bit > bit:
            node.digest = None
            above, node = node, node.one if key >> node.bit & 1 else node.zero
        assert node is not None
        inner = _Inner(bit, node, new) if key >> bit & 1 else _Inner(bit, new, node)
        if above is None:
            self._root = inner
        elif key >> above.bit & 1:
            above.one = inner
        else:
            above.zero = inner

    def root(self) -> bytes:
        """Return the digest of all ids; a constant if there are none (T2)."""
        if self._root is None:
            return blake2b(digest_size=16, person=b"skipring empty").digest()
        return _digest(self._root)

    def node(self, prefix: str = "") -> tuple[str, bytes] | None:
        """Return prefix, in bits, and digest of the node with all ids under a prefix."""
        node = self._root
        while isinstance(node, _Inner) and _ID_BITS - 1 - node.bit < len(prefix):
            node = node.one if prefix[_ID_BITS - 1 - node.bit] == "1" else node.zero
        if node is None:
            return None
        label = _label(node)
        return (label, _digest(node)) if label.startswith(prefix) else None

    def nodes(self) -> Iterator[tuple[str, bytes]]:
        """Yield all nodes in any order."""
        waiting = [self._root] if self._root is not None else []
        while waiting:
            node = waiting.pop()
            yield _label(node), _digest(node)
            if isinstance(node, _Inner):
                waiting += (node.zero, node.one)


def _nearest(node: _Node, key: int) -> _Leaf:
    """Return a leaf with the longest common prefix."""
    while isinstance(node, _Inner):
        node = node.one if key >> node.bit & 1 else node.zero
    return node


def _label(node: _Node) -> str:
    length = _ID_BITS - 1 - node.bit if isinstance(node, _Inner) else _ID_BITS
    return format(_nearest(node, 0).key, f"0{_ID_BITS}b")[:length]


def _digest(node: _Node) -> bytes:
    """Return the digest of a node, computing it if unknown; an inner one has no label (T1)."""
    if node.digest is None:
        if isinstance(node, _Leaf):
            data, person = node.key.to_bytes(_ID_BITS // 8, "big"), b"skipring leaf"
        else:
            data, person = _digest(node.zero) + _digest(node.one), b"skipring inner"
        node.digest = blake2b(data, digest_size=16, person=person).digest()
    return node.digest


# -- measurements ------------------------------------------------------------------------------

Trie: TypeAlias = PublicationTrie | ReferenceTrie
SYSTEMS: Final[Mapping[str, Callable[[], Trie]]] = {
    "skipring": PublicationTrie,
    "reference": ReferenceTrie,
}


def measure(n: int = N, *, seed: int = 0) -> Iterator[Row]:
    """Yield one row per measurement, the ratios last."""
    memory = [run_alone(_measure_memory, system, n, seed) for system in SYSTEMS]
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
    memory: list[Row],
    inserts: list[Row],
    roots: list[Row],
    stall: Row,
) -> dict[str, float | None]:
    """Compare the index with its goals and with the reference."""
    ratios: dict[str, float | None] = {}
    speed, plain_speed = (row["inserts_per_s"] for row in inserts)
    ratios |= at_least("inserts_per_s", speed, INSERTS_PER_S)
    ratios["inserts_per_s_skipring_over_reference"] = round(speed / plain_speed, 2)
    for rows, name, goal in (
        (memory, "bytes_per_publication", BYTES_PER_PUBLICATION),
        (memory, "bytes_per_publication_hashed", BYTES_PER_PUBLICATION),
        (roots, "fresh_root_us", FRESH_ROOT_US),
    ):
        own, reference = (row[name] for row in rows)
        ratios |= at_most(name, own, goal)
        # With few publications the resident memory does not grow.
        ratios[f"{name}_reference_over_skipring"] = round(reference / own, 2) if own else None
    return ratios | at_most("stall_ms", stall["stall_ms"], STALL_MS)


def id_batches(n: int, size: int, seed: int) -> Iterator[list[tuple[bytes, int]]]:
    """Yield random ids with their offsets."""
    rng = Random(seed)
    for start in range(0, n, size):
        offsets = range(start, min(start + size, n))
        yield [(rng.randbytes(ID_BYTES), offset) for offset in offsets]


def _grown(system: str, n: int, seed: int) -> Trie:
    trie = SYSTEMS[system]()
    for batch in id_batches(n, BATCH, seed):
        trie.add_many(batch)
    return trie


def _measure_memory(system: str, n: int, seed: int) -> Row:
    """Measure the memory per publication, before and after hashing."""
    baseline = resident_bytes()
    trie = _grown(system, n, seed)
    gc.collect()
    used = resident_bytes() - baseline
    trie.root()  # computes all digests
    gc.collect()
    return {
        "job": "memory",
        "system": system,
        "n": n,
        "bytes_per_publication": round(used / n, 1),
        "bytes_per_publication_hashed": round((resident_bytes() - baseline) / n, 1),
    }


def _measure_inserts(systems: Iterable[str], n: int, size: int, seed: int) -> list[Row]:
    """Measure inserts per CPU second from 0 to n in batches, alternating between the tries."""
    taken: dict[str, list[list[float]]] = {system: [] for system in systems}
    for repeat in range(REPEATS):
        # One trie at a time: each collection would traverse the objects of both.
        for system, seconds in taken.items():
            seconds.append(_seconds_per_batch(system, n, size, seed + repeat))
    return [_insert_row(system, n, size, seconds) for system, seconds in taken.items()]


def _seconds_per_batch(system: str, n: int, size: int, seed: int) -> list[float]:
    trie = SYSTEMS[system]()
    seconds = []
    for batch in id_batches(n, size, seed):
        begin = process_time()
        trie.add_many(batch)
        seconds.append(process_time() - begin)
    return seconds


def insert_figures(n: int, seed: int = 0) -> Figures:
    """Measure inserts per CPU second into the index of the core, from 0 to n."""
    return {"inserts_per_s": n / sum(_seconds_per_batch("skipring", n, BATCH, seed))}


def _insert_row(system: str, n: int, size: int, repeats: list[list[float]]) -> Row:
    speeds = [n / sum(seconds) for seconds in repeats]
    batches = max(1, len(repeats[0]) // 10)
    late = [min(n, size * batches) / sum(seconds[-batches:]) for seconds in repeats]
    return {
        "job": "inserts",
        "system": system,
        "n": n,
        "batch": size,
        **spread("inserts_per_s", speeds, None),
        "inserts_per_s_last_tenth": round(median(late)),
        "repeats": REPEATS,
        "python": platform.python_version(),
    }


def _measure_fresh_roots(n: int, seed: int) -> list[Row]:
    """Measure the CPU time of one insert into n publications and the root after it."""
    tries = {system: _grown(system, n, seed) for system in SYSTEMS}
    are_equal = len({trie.root() for trie in tries.values()}) == 1
    taken: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    rng = Random(f"{seed}/single")
    for offset in range(n, n + SINGLE_INSERTS):
        key = rng.randbytes(ID_BYTES)
        for system, trie in tries.items():
            begin = process_time_ns()
            trie.add(key, offset)
            trie.root()  # computes the digests that the insert has changed
            taken[system].append((process_time_ns() - begin) / 1000)
    are_equal &= len({trie.root() for trie in tries.values()}) == 1
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
        "system": "skipring",
        "n": n,
        "stall_ms": round(max(longest.values()), 2),
        **{name: round(value, 2) for name, value in longest.items()},
    }


def _compare_roots(n: int, seed: int) -> Row:
    """Compare the roots of both tries after each batch."""
    tries = [make() for make in SYSTEMS.values()]
    compared = equal = 0
    for batch in id_batches(n, BATCH, seed):
        for trie in tries:
            trie.add_many(batch)
        compared += 1
        equal += len({trie.root() for trie in tries}) == 1
    return {
        "job": "roots",
        "system": "skipring",
        "n": n,
        "roots_compared": compared,
        "roots_equal": equal,
    }
