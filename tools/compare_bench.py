"""Comparison of the costs of two checkouts: medians and ratios of ``skipring bench``.

``python tools/compare_bench.py OLD NEW`` runs the benchmark of both checkouts in turns, each with
its own ``.venv``, and prints a Markdown table. The order alternates between turns, so a busy
minute of the machine affects both checkouts alike.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

TURN_S: Final = 600.0  # Guess: a turn takes about half a minute.
FANOUT: Final = ("fanout", "--job", "throughput,latency", "--n", "64", "--against", "skipring")
HISTORY: Final = ("history", "--n", "100000", "--against", "skipring")
MEASURES: Final = {
    "cpu_us_per_delivery": "CPU per delivery, µs",
    "cpu_us_per_delivery_settled": "CPU per delivery until stored and indexed, µs",
    "p50_ms": "p50, ms",
    "supervisor_cpu_us_per_join": "supervisor CPU per join, µs",
    "supervisor_messages_per_join": "supervisor messages per join",
    "rss_kib_per_subscriber": "memory of a subscriber, KiB",
    "cpu_s": "CPU of a backfill, s",
    "cpu_us_per_publication": "CPU per publication, µs",
}


class Reading(NamedTuple):
    """One measured value: the job and the key of its JSON line."""

    job: str
    key: str
    value: float


Samples = dict[tuple[str, str], list[float]]


def readings(lines: Iterable[str]) -> Iterator[Reading]:
    """Yield the measures in the JSON lines of ``skipring bench``."""
    for line in lines:
        row: dict[str, Any] = json.loads(line)
        job = row.get("job", "history")
        for key in MEASURES:
            if isinstance(row.get(key), (int, float)):
                yield Reading(job, key, row[key])


def measure(checkout: Path, command: Sequence[str]) -> list[Reading]:
    """Run one benchmark command in a checkout and return its measures."""
    program = checkout / ".venv" / "bin" / "skipring"
    done = subprocess.run(  # noqa: S603  (a checkout that the caller names)
        [program, "bench", *command, "--repeats", "1", "--json"],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=TURN_S,
        check=True,
    )
    return list(readings(done.stdout.splitlines()))


def compare(old: Path, new: Path, rounds: int, commands: Sequence[Sequence[str]]) -> str:
    """Measure both checkouts in turns and return the table."""
    samples: dict[Path, Samples] = {old: defaultdict(list), new: defaultdict(list)}
    for turn in range(rounds):
        for command in commands:
            for checkout in (old, new) if turn % 2 == 0 else (new, old):
                for reading in measure(checkout, command):
                    samples[checkout][reading.job, reading.key].append(reading.value)
        sys.stderr.write(f"round {turn + 1} of {rounds} done\n")
    return table(samples[old], samples[new])


def table(old: Samples, new: Samples) -> str:
    """Return medians and their ratios as a Markdown table; a measure needs samples of both."""
    lines = ["| measure | old | new | new/old |", "|---|---|---|---|"]
    for job, key in sorted(old.keys() & new.keys()):
        before, after = median(old[job, key]), median(new[job, key])
        ratio = f"{after / before:.2f}" if before else ""
        lines.append(f"| {job}: {MEASURES[key]} | {before:.4g} | {after:.4g} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", type=Path, help="checkout before the change, with its .venv")
    parser.add_argument("new", type=Path, help="checkout after the change, with its .venv")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--skip-history", action="store_true", help="measure only fan-out and joins"
    )
    options = parser.parse_args()
    commands = [FANOUT] if options.skip_history else [FANOUT, HISTORY]
    found = compare(options.old.absolute(), options.new.absolute(), options.rounds, commands)
    sys.stdout.write(f"{found}\n")


if __name__ == "__main__":
    main()
