"""The examples run by one command, say what their pages promise, end and leave nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

import pytest

from tests.support.processes import MARK, left_of, nothing_left

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PAGE = EXAMPLES.parent / "docs" / "examples.md"
NAMES = ["configuration", "cache_invalidation", "events_into_spark"]
PATIENCE_S = 300.0

AGREED = "{'cache': 'off', 'colour': 'green', 'timeout_s': 30}"
CONFIGURATION = [
    "operator: timeout_s = 10",
    "operator: cache = on",
    "operator: timeout_s = 30",
    "operator: colour = green",
    "operator: cache = off",
    *(f"worker-{number}: {AGREED}" for number in range(1, 5)),
    f"late-joiner: {AGREED}",
    "all five agree",
]
INVALIDATION = [
    "before: [[4, 6, 5], [4, 6, 5], [4, 6, 5]]",
    "writer: tea costs 5 now",
    "writer: cocoa costs 7 now",
    "after:  [[5, 6, 7], [5, 6, 7], [5, 6, 7]]",
    "rows asked for: [5, 5, 5] (three to begin, two since)",
]
EVENTS = [
    "as a table: {'basket': 500, 'buy': 500, 'look': 2000}",
    "in Parquet: 3000",
    "and later:  4000",
]


def told(name: str, directory: Path, *options: str) -> list[str]:
    """The lines that an example prints; it ends by itself, without a complaint or a process."""
    mark = token_hex(8)
    said, errors = directory / "said", directory / "errors"
    variables = {MARK: mark, "TMPDIR": str(directory)}
    with nothing_left(mark):
        with said.open("w") as stdout, errors.open("w") as stderr:
            done = subprocess.run(
                [sys.executable, str(EXAMPLES / f"{name}.py"), *options],
                cwd=directory,
                env=os.environ | variables,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                timeout=PATIENCE_S,
                check=False,
            )
        assert done.returncode == 0, errors.read_text("utf-8")
        assert left_of(mark) == []
    assert sorted(directory.glob("skipring-*")) == []
    return said.read_text("utf-8").splitlines()


@contextmanager
def supervisor() -> Iterator[str]:
    """The address of a supervisor that runs, as the examples' second command wants it."""
    command = [sys.executable, "-m", "skipring", "supervisor", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        try:
            assert running.stdout is not None
            yield running.stdout.readline().split()[1]
        finally:
            running.kill()


@pytest.mark.heavy
def test_every_worker_gets_every_change_and_a_late_one_gets_all_of_them(tmp_path: Path) -> None:
    assert told("configuration", tmp_path) == CONFIGURATION


@pytest.mark.heavy
def test_no_cache_serves_an_old_row_once_it_has_heard_of_the_change(tmp_path: Path) -> None:
    assert told("cache_invalidation", tmp_path) == INVALIDATION


@pytest.mark.heavy
def test_spark_has_every_event_as_a_table_and_once_in_parquet(tmp_path: Path) -> None:
    assert told("events_into_spark", tmp_path) == EVENTS


@pytest.mark.heavy
def test_the_examples_also_run_in_a_ring_that_runs_already(tmp_path: Path) -> None:
    with supervisor() as address:
        for name, expected in (
            ("configuration", CONFIGURATION),
            ("cache_invalidation", INVALIDATION),
        ):
            assert told(name, tmp_path, "--supervisor", address) == expected


@pytest.mark.parametrize("name", NAMES)
def test_an_example_says_how_it_is_run_and_is_short(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text("utf-8")
    commands = re.findall(r"^    python (\S+)(?: --supervisor \S+)? +#", text, re.MULTILINE)
    assert commands == [f"examples/{name}.py"] * 2
    assert len(text.splitlines()) < 130


def test_no_example_is_overlooked() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(NAMES)


@pytest.mark.parametrize(
    ("name", "lines"),
    list(zip(NAMES, (CONFIGURATION, INVALIDATION, EVENTS), strict=True)),
)
def test_the_page_shows_what_an_example_prints(name: str, lines: list[str]) -> None:
    shown = "\n".join([f"$ python examples/{name}.py", *lines])
    assert f"```console\n{shown}\n```" in PAGE.read_text("utf-8")
