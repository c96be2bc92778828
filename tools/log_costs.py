"""CPU time of the segment log: opening it, reading it, building the trie, and a lone commit.

``python tools/log_costs.py`` writes a million records in batches of 250 and of one, and opens each
store again. CPU time is that of the process, user and system.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.log import ANY_BYTE, PageLimits
from skipring.core.trie import PublicationTrie
from skipring.storage.store import LogStore

TOPIC: Final = "costs"
PUBLISHER: Final = "costs.publisher"
PAYLOAD_BYTES: Final = 128
TIME_US: Final = 1_700_000_000_000_000
SLICE: Final = 4096  # ids that are indexed at once. Measured: 22 ms.
COMMIT_BATCHES: Final = 5_000
LONE: Final = 400
PAGE: Final = PageLimits(1 << 19, 16_384, 4 << 20, 65_536)
ONE_OF_256: Final = range(1)


def batches(records: int, count: int, first: int = 0) -> Iterator[RecordBatch]:
    """Yield batches of ``count`` records with different payloads."""
    for start in range(first, first + records, count):
        rows = [
            BatchRecord(number.to_bytes(8, "big").ljust(PAYLOAD_BYTES, b"x"), TIME_US + number)
            for number in range(start, start + count)
        ]
        yield RecordBatch.of(rows, publisher=PUBLISHER, first=start, topic=TOPIC)


def fill(directory: Path, records: int, count: int) -> float:
    """Write a store; return the CPU time of appends and commits in microseconds per record."""
    spent = 0.0
    with LogStore.open(directory) as store:
        log, rest = store.log(TOPIC), batches(records, count)
        while part := list(islice(rest, COMMIT_BATCHES)):
            before = time.process_time()
            for batch in part:
                log.append(batch)
            store.commit()
            spent += time.process_time() - before
    return spent / records * 1e6


def opened(directory: Path) -> tuple[float, float, float]:
    """Return the CPU time of opening a store, of indexing it, and the longest slice of it."""
    before = time.process_time()
    with LogStore.open(directory) as store:
        after = time.process_time()
        trie, entries, longest = PublicationTrie(), store.log(TOPIC).entries(), 0.0
        while True:
            begin = time.process_time()
            part = list(islice(entries, SLICE))
            trie.add_many(part)
            longest = max(longest, time.process_time() - begin)
            if not part:
                break
        return after - before, time.process_time() - after, longest


def paged(directory: Path, firsts: range = ANY_BYTE) -> float:
    """Return the CPU time of reading a log page by page in microseconds per record."""
    with LogStore.open(directory) as store:
        log, start = store.log(TOPIC), 0
        before = time.process_time()
        while start < log.end:
            start = log.read_page(start, log.end, PAGE, firsts).next
        return (time.process_time() - before) / log.records * 1e6


def written_bytes() -> int:
    """Return the bytes that this process has caused to be written to disks."""
    rows = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(rows["write_bytes"])


def lone(directory: Path) -> tuple[float, float]:
    """Return the median CPU time of a commit of one record, and its written bytes."""
    with LogStore.open(directory) as store:
        log = store.log(TOPIC)
        times: list[float] = []
        written = written_bytes()
        for batch in batches(LONE, 1):
            before = time.process_time()
            log.append(batch)
            store.commit()
            times.append(time.process_time() - before)
        return median(times) * 1e6, (written_bytes() - written) / LONE


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    for count in (250, 1):
        with TemporaryDirectory() as directory:
            cost = fill(Path(directory), given.records, count)
            sys.stdout.write(
                f"{given.records} records in batches of {count}: write {cost:.2f} us\n"
            )
            for _ in range(given.repeats):
                open_s, index_s, longest_s = opened(Path(directory))
                sys.stdout.write(
                    f"  open {open_s:.3f} s, index {index_s:.3f} s, a slice {longest_s:.3f} s\n"
                )
            whole, some = paged(Path(directory)), paged(Path(directory), ONE_OF_256)
            sys.stdout.write(f"  read all {whole:.2f} us, one id of 256 {some:.2f} us a record\n")
    for _ in range(given.repeats):
        with TemporaryDirectory() as directory:
            cost, size = lone(Path(directory))
            sys.stdout.write(f"lone commit: {cost:.0f} us, {size:.0f} bytes written\n")


if __name__ == "__main__":
    os.nice(5)
    main()
