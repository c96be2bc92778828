"""``skipring pipeline``: projects, refusals before Spark starts, and their messages."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from skipring.cli import skipring
from skipring.errors import InputError, UnreachableError
from skipring.testing import Cluster

UNUSED_ADDRESS = "127.0.0.1:1"


def invoked(*words: str) -> Result:
    return CliRunner().invoke(skipring, ["pipeline", *words], standalone_mode=False)


def project(directory: Path, *words: str) -> Path:
    assert invoked("init", str(directory), *words).exception is None
    return directory


def run(directory: Path, *words: str, supervisor: str = UNUSED_ADDRESS) -> Result:
    return invoked("run", str(directory), "--supervisor", supervisor, *words)


def test_init_prints_the_files_that_it_writes(tmp_path: Path) -> None:
    result = invoked("init", str(tmp_path / "p"), "--topics", "orders,news")
    written = sorted(path for path in (tmp_path / "p").rglob("*") if path.is_file())
    assert sorted(result.output.split()) == [str(path) for path in written]
    assert 'topics = ["orders", "news"]' in (tmp_path / "p" / "pipeline.toml").read_text()
    again = invoked("init", str(tmp_path / "p"))
    assert isinstance(again.exception, InputError)


def test_init_writes_the_project_of_telemetry(tmp_path: Path) -> None:
    project(tmp_path / "p", "--telemetry")
    assert "deliveries = true" in (tmp_path / "p" / "pipeline.toml").read_text()


# -- refusals ----------------------------------------------------------------------------------


def test_unreachable_supervisor_is_reported_and_nothing_is_written(tmp_path: Path) -> None:
    result = run(project(tmp_path / "p"))
    assert isinstance(result.exception, UnreachableError)
    assert "nothing listens on 127.0.0.1:1" in str(result.exception)
    assert not (tmp_path / "p" / "lake").exists()


def test_topic_without_members_or_without_disks_is_reported(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(n=2) as cluster:
            at = cluster.url.removeprefix("skipring://")
            absent = project(tmp_path / "absent")
            result = await asyncio.to_thread(run, absent, supervisor=at)
            assert isinstance(result.exception, UnreachableError)
            assert "'orders' has no members" in str(result.exception)
            present = project(tmp_path / "present", "--topics", cluster.topic)
            result = await asyncio.to_thread(run, present, supervisor=at)
            assert isinstance(result.exception, UnreachableError)
            assert "start a node with a data directory" in str(result.exception)

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("words", "reason"),
    [(("--conf", "memory=1g"), "not of the form spark"), (("--trigger", "5s"), "No such option")],
)
def test_invalid_options_are_refused(tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    result = run(project(tmp_path / "p"), *words)
    assert isinstance(result.exception, click.UsageError)
    assert reason in str(result.exception.message)


@pytest.mark.parametrize("command", ["run", "report", "optimize"])
def test_directory_without_project_is_refused(tmp_path: Path, command: str) -> None:
    result = invoked(command, str(tmp_path))
    assert isinstance(result.exception, InputError)
    assert "is no project" in str(result.exception)
