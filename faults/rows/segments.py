"""Rows of damaged files: changed bytes, torn tails, and missing segments."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

from faults.load import segments_of
from faults.matrix import fault_row
from faults.trial import NAMES, FaultRing, FaultTrial, history
from skipring.core.peers import NodeId
from skipring.lab.demo.cluster import flip_bits

STORED: Final = 2_000  # publications in 3 segments; their 200 batches are scrubbed in 4 s
RECORDS: Final = 10  # of each of their batches
FLIPS: Final = 50  # changed bytes in each repetition
TAIL_BYTES: Final = 600  # Guess: a torn tail has some entries.


@contextmanager
def _crashed(ring: FaultRing, name: NodeId, count: int = 20) -> Iterator[list[Path]]:
    """Kill a node after publications; restart it after the block, and wait until it has all."""
    ring.publish_some(count)
    ring.heal()
    ring.kill(name)
    yield segments_of(ring.data(name))
    ring.restart(name)
    ring.until_complete(name)


@fault_row(
    "bit-flips",
    "bits of all files of a node are flipped",
    "SIGKILL, every 512th byte is changed, restart",
    repeats=10,
)
def _bit_flips(trial: FaultTrial) -> None:
    rng = Random(3)
    with trial.ring() as ring:
        for name in trial.victims():
            with _crashed(ring, name, 200):
                assert flip_bits(ring.data(name), rng) > 0


@fault_row(
    "flipped-places",
    "500 bytes of segment files are changed, 50 at a time",
    "SIGKILL, 50 random bytes of all segments are changed, restart",
    repeats=10,
    short=1,
)
def _flipped_places(trial: FaultTrial) -> None:
    rng = Random(23)
    with trial.ring(before=history(STORED, records=RECORDS, holders=NAMES)) as ring:
        for name in trial.victims():
            with _crashed(ring, name) as segments:
                flip_places(segments, FLIPS, rng)


def flip_places(paths: list[Path], count: int, rng: Random) -> None:
    """Change bytes at ``count`` different places of files."""
    sizes = [path.stat().st_size for path in paths]
    places = rng.sample(range(sum(sizes)), count)
    for path, size in zip(paths, sizes, strict=True):
        content = bytearray(path.read_bytes())
        for place in places:
            if 0 <= place < size:
                content[place] ^= rng.randrange(1, 256)
        path.write_bytes(content)
        places = [place - size for place in places]


@fault_row(
    "torn-tail",
    "the last write of a node is torn",
    "SIGKILL under load, the end of the last segment is cut off, or bytes follow it, restart",
    repeats=20,
    short=2,
)
def _torn_tail(trial: FaultTrial) -> None:
    rng = Random(29)
    with trial.ring() as ring:
        for name in trial.victims():
            # Publish through others: an acknowledgement covers the disk of one node.
            with ring.load(*(each for each in NAMES if each != name)) as load:
                ring.await_load(load, 20 + rng.randrange(20))
                ring.until(lambda: segments_of(ring.data(name)))  # noqa: B023
                ring.kill(name)
            tear_tail(segments_of(ring.data(name))[-1], rng)
            ring.restart(name)
            ring.heal()
            ring.until_complete(name)


def tear_tail(path: Path, rng: Random) -> None:
    """Cut a file off within its last bytes, or append a part of it, zeros or random bytes."""
    content = path.read_bytes()
    tail = content[-rng.randrange(1, TAIL_BYTES) :]
    torn = (b"", tail, bytes(len(tail)), rng.randbytes(len(tail)))[rng.randrange(4)]
    path.write_bytes(content + torn if torn else content[: -len(tail)])


@fault_row(
    "segments-lost",
    "files of a store with several segments are missing or cut off",
    "SIGKILL; a footer, a segment, the record of the topic or all of them are removed; restart",
    repeats=6,
    short=1,
)
def _segments_lost(trial: FaultTrial) -> None:
    rng = Random(31)
    with trial.ring(before=history(STORED, records=RECORDS, holders=NAMES)) as ring:
        for number, name in enumerate(trial.victims()):
            with _crashed(ring, name) as segments:
                LOSSES[number % len(LOSSES)](segments, rng)


def _lose_footer(segments: list[Path], rng: Random) -> None:
    path = rng.choice(segments[:-1])
    path.write_bytes(path.read_bytes()[: -rng.randrange(1, TAIL_BYTES)])


def _lose_segment(segments: list[Path], rng: Random) -> None:
    rng.choice(segments).unlink()


def _lose_first(segments: list[Path], _: Random) -> None:
    segments[0].unlink()


def _lose_content(segments: list[Path], rng: Random) -> None:
    rng.choice(segments).write_bytes(b"")


def _lose_record(segments: list[Path], _: Random) -> None:
    for path in segments[0].parent.iterdir():
        if path not in segments and path.is_file():
            path.unlink()


def _lose_all(segments: list[Path], _: Random) -> None:
    shutil.rmtree(segments[0].parent)
    segments[0].parent.mkdir()


LOSSES: Final[tuple[Callable[[list[Path], Random], None], ...]] = (
    _lose_segment,
    _lose_footer,
    _lose_first,
    _lose_content,
    _lose_record,
    _lose_all,
)
