"""How far a matrix is, told to a person: a bar on a terminal, a line now and then on a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from skipring.lab.experiments.runner import TrialProgress

LINE_S: Final = 10.0  # between two lines on a pipe
MINUTE_S: Final = 60
HOUR_S: Final = 3600

Tell = Callable[[TrialProgress], None]


@contextmanager
def shown(console: Console, title: str) -> Iterator[Tell]:
    """Show progress as long as it lasts."""
    if not console.is_terminal:
        yield _TrialLines(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, TextColumn("{task.fields[pace]}"), console=console, transient=True) as bar:
        task = bar.add_task(title, total=None, pace="Spark starts")
        clock = Clock()

        def tell(progress: TrialProgress) -> None:
            pace = clock.pace(progress)
            bar.update(task, completed=progress.done, total=progress.total, pace=pace)

        yield tell


class _TrialLines:
    """Progress as lines of text."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._clock = Clock()
        self._told = monotonic()

    def __call__(self, progress: TrialProgress) -> None:
        """Tell it, unless it was told a moment ago."""
        pace = self._clock.pace(progress)
        if monotonic() - self._told >= LINE_S:
            self._told = monotonic()
            line = f"{progress.done} of {progress.total} runs, {pace}"
            self._console.print(line, highlight=False, soft_wrap=True)


class Clock:
    """Works out how fast it goes and how long it will take."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._begin: tuple[float, int] | None = None

    def pace(self, progress: TrialProgress) -> str:
        """Runs a second, and the time that is left by the share of the work that is done."""
        if self._begin is None:
            self._begin = self._now(), progress.done
        begin, done = self._begin
        passed = self._now() - begin
        if passed <= 0 or progress.share <= 0:
            return "just begun"
        rate = (progress.done - done) / passed
        left = passed * (1 - progress.share) / progress.share
        return f"{rate:.1f} a second, {_duration(left)} left"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < MINUTE_S:
        return f"{whole} s"
    if whole < HOUR_S:
        return f"{whole // MINUTE_S} min {whole % MINUTE_S} s"
    return f"{whole // HOUR_S} h {whole % HOUR_S // MINUTE_S} min"
