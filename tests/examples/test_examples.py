"""The examples: each runs with one command, prints the output of its page and ends cleanly."""

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
from tests.support.spark_session import quick_programs

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
    "queries: [5, 5, 5] (three at first, two after the changes)",
]
EVENTS = [
    "as a table: {'basket': 500, 'buy': 500, 'look': 2000}",
    "in Parquet: 3000",
    "after more: 4000",
]


def told(name: str, directory: Path, *options: str) -> list[str]:
    """Return the output of an example; assert that it ends without errors or processes."""
    mark = token_hex(8)
    said, errors = directory / "said", directory / "errors"
    variables = {MARK: mark, "TMPDIR": str(directory), **quick_programs(directory)}
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
    """Run a supervisor; yield its address as the second command of the examples needs it."""
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
def test_every_worker_gets_every_change_and_a_late_one_gets_all(tmp_path: Path) -> None:
    assert told("configuration", tmp_path) == CONFIGURATION


@pytest.mark.heavy
def test_cache_serves_no_old_row_after_an_invalidation(tmp_path: Path) -> None:
    assert told("cache_invalidation", tmp_path) == INVALIDATION


@pytest.mark.heavy
def test_spark_has_every_event_as_a_table_and_once_in_parquet(tmp_path: Path) -> None:
    assert told("events_into_spark", tmp_path) == EVENTS


@pytest.mark.heavy
def test_examples_run_in_an_existing_ring(tmp_path: Path) -> None:
    with supervisor() as address:
        for name, expected in (
            ("configuration", CONFIGURATION),
            ("cache_invalidation", INVALIDATION),
        ):
            assert told(name, tmp_path, "--supervisor", address) == expected


@pytest.mark.parametrize("name", NAMES)
def test_example_states_its_commands_and_is_short(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text("utf-8")
    commands = re.findall(r"^    python (\S+)(?: --supervisor \S+)? +#", text, re.MULTILINE)
    assert commands == [f"examples/{name}.py"] * 2
    assert len(text.splitlines()) < 130


def test_list_of_examples_is_complete() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(NAMES)


@pytest.mark.parametrize(
    ("name", "lines"), list(zip(NAMES, (CONFIGURATION, INVALIDATION, EVENTS), strict=True))
)
def test_page_shows_the_output_of_each_example(name: str, lines: list[str]) -> None:
    shown = "\n".join([f"$ python examples/{name}.py", *lines])
    assert f"```console\n{shown}\n```" in PAGE.read_text("utf-8")
