"""``python -m faults.soak``: growth of processes while others are restarted."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import linear_regression
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Final

import click
from msgspec import Struct

from faults.trial import FaultRing, FaultTrial
from skipring.core.peers import SUPERVISOR
from skipring.lab.usage import MIB, resident_bytes_of

LASTING: Final = ("a", "b", "c")  # these and the supervisor are measured
CHURNING: Final = ("x", "y", "z")
SAMPLE_S: Final = 5.0
CHURN_S: Final = 10.0  # between two churned processes
PAUSE_S: Final = 0.4  # for each of four writers: 10 publications a second
WARM_SHARE: Final = 0.25  # share of the run that is not measured, because caches fill
HOUR_S: Final = 3600.0
# Guesses: growth within a run, along the fitted slope. The index of the 36,000 publications of an
# hour takes about 4 MiB.
LIMITS: Final[Mapping[str, float]] = {"rss_mib": 32.0, "descriptors": 8.0, "files_mib": 64.0}


class SoakSample(Struct, frozen=True):
    """Figures of one process at one moment."""

    at_s: float
    rss_mib: float
    descriptors: float
    files_mib: float


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the line that fits best (least squares); 0 if all x are equal."""
    if len({x for x, _ in points}) < 2:  # noqa: PLR2004  (a line has two points)
        return 0.0
    return linear_regression(*zip(*points, strict=True)).slope


class Soak:
    """Ring under churn, and the samples of the processes that keep running."""

    def __init__(self, ring: FaultRing, seed: int) -> None:
        self._ring = ring
        self._rng = Random(seed)
        self._begun = monotonic()
        self.samples: dict[str, list[SoakSample]] = {name: [] for name in (SUPERVISOR, *LASTING)}
        self.deaths = 0

    def run(self, seconds: float) -> None:
        """Publish, sample and churn for ``seconds``."""
        next_sample = next_churn = 0.0
        # Publish only through nodes that keep their disks: an acknowledgement covers one disk.
        with self._ring.load(*LASTING, pause_s=PAUSE_S):
            while (now := monotonic() - self._begun) < seconds:
                if now >= next_sample:
                    next_sample = now + SAMPLE_S
                    self._sample(now)
                if now >= next_churn:
                    next_churn = now + CHURN_S
                    self._churn()
                self._ring.pass_time()

    def _sample(self, at_s: float) -> None:
        for name, samples in self.samples.items():
            pid = self._ring.running[name].pid
            paths = self._ring.data(name).rglob("*")
            sizes = (path.stat().st_size for path in paths if path.is_file())
            samples.append(
                SoakSample(
                    at_s,
                    resident_bytes_of(pid) / MIB,
                    len(list(Path(f"/proc/{pid}/fd").iterdir())),
                    sum(sizes) / MIB,
                )
            )

    def _churn(self) -> None:
        """End a process in one of several ways, then start it again."""
        name = self._rng.choice(CHURNING)
        match self._rng.randrange(3):
            case 0:
                self._ring.kill(name)
            case 1:
                self._ring.stop(name)
            case _:
                self._ring.kill(name)
                self._ring.delete_data(name)
        self._ring.restart(name)
        self.deaths += 1

    def growth(self) -> Iterator[tuple[str, str, float, float]]:
        """Return process, figure, slope per hour and growth along the slope, after the warm-up."""
        for name, samples in self.samples.items():
            late = samples[int(len(samples) * WARM_SHARE) :]
            span_s = late[-1].at_s - late[0].at_s if late else 0.0
            for figure in LIMITS:
                found = slope([(each.at_s, getattr(each, figure)) for each in late])
                yield name, figure, found * HOUR_S, found * span_s


@click.command()
@click.option("--minutes", type=click.FloatRange(0.1, 1440), default=60.0, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def main(minutes: float, seed: int) -> None:
    """Measure growth under churn; exit with 1 if a figure grows beyond its limit."""
    with TemporaryDirectory(prefix="skipring-soak-") as directory:
        trial = FaultTrial(Path(directory), 1)
        with trial.ring(*LASTING, *CHURNING) as ring:
            soak = Soak(ring, seed)
            soak.run(minutes * 60)
            published = len(ring.ledger.acknowledged)
    is_over = False
    for name, figure, per_hour, grown in soak.growth():
        verdict = "ok" if grown <= LIMITS[figure] else "TOO MUCH"
        is_over |= verdict != "ok"
        click.echo(
            f"{name}: {figure} {per_hour:+.2f} per hour, {grown:+.2f} in this run: {verdict}"
        )
    found = trial.judgement
    click.echo(
        f"{published} publications, {soak.deaths} deaths, lost {found.lost}, "
        f"duplicated {found.duplicated}, invented {found.invented}, "
        f"longest pause {trial.pause_s:.2f} s"
    )
    sys.exit(bool(is_over or found.reasons))


if __name__ == "__main__":
    main()
