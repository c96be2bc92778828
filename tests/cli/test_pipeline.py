"""``skipring pipeline``: refusals before Spark starts, and their messages."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from skipring.cli import skipring
from skipring.errors import InputError, StorageError, UnreachableError
from skipring.spark import session
from skipring.spark.pipeline import runner as runner_module
from skipring.spark.pipeline.manifest import Manifest, write_manifest
from skipring.testing import Cluster

UNUSED_ADDRESS = "127.0.0.1:1"


def invoked(*words: str) -> Result:
    return CliRunner().invoke(skipring, ["pipeline", *words], standalone_mode=False)


def run(lake: Path, *words: str, supervisor: str = UNUSED_ADDRESS) -> Result:
    given = ("--supervisor", supervisor, "--subscribe", "orders", "--lake", str(lake))
    return invoked("run", *given, *words)


# -- refusals ----------------------------------------------------------------------------------


def test_unreachable_supervisor_is_reported_and_nothing_is_written(tmp_path: Path) -> None:
    result = run(tmp_path / "lake")
    assert isinstance(result.exception, UnreachableError)
    assert "nothing listens on 127.0.0.1:1" in str(result.exception)
    assert not (tmp_path / "lake").exists()


def test_topic_without_members_or_without_disks_is_reported(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(n=2) as cluster:
            at = cluster.url.removeprefix("skipring://")
            nobody = await asyncio.to_thread(run, tmp_path / "lake", supervisor=at)
            assert isinstance(nobody.exception, UnreachableError)
            assert "'orders' has no members" in str(nobody.exception)
            words = ("--subscribe", cluster.topic)
            diskless = await asyncio.to_thread(run, tmp_path / "lake", *words, supervisor=at)
            assert isinstance(diskless.exception, UnreachableError)
            assert "start a node with a data directory" in str(diskless.exception)

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--subscribe", "invoices"), "has topics orders, not invoices"),
        (("--supervisor", "127.0.0.1:2"), "belongs to the ring of 127.0.0.1:1"),
        (("--window", "2m"), "has windows 60 s, not 120 s"),
        (("--format", "json"), "has values auto, not json"),
    ],
)
def test_lake_of_another_pipeline_is_refused(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    write_manifest(tmp_path, Manifest(supervisors=(UNUSED_ADDRESS,), topics=("orders",)))
    result = run(tmp_path, *words)
    assert isinstance(result.exception, InputError)
    assert said in str(result.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--trigger", "5s", "--available-now"), "not both"),
        (("--trigger", "soon"), "not a duration"),
        (("--window", "1500ms"), "whole number of seconds"),
        (("--window", "2d"), "from 1 s to 86400 s"),
        (("--starting", "yesterday"), "is not one of"),
        (("--conf", "memory=1g"), "not of the form spark"),
        (("--max-offsets", "0"), "is not in the range"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    result = run(tmp_path / "lake", *words)
    assert isinstance(result.exception, click.UsageError)
    assert said in str(result.exception.message)


def test_lake_that_cannot_be_created_is_reported_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr(runner_module, "rooted", lambda plan: plan)
    monkeypatch.setattr(session, "start", lambda **given: started.append(given))
    (tmp_path / "file").write_text("")
    lake = tmp_path / "file" / "lake"
    result = run(lake)
    assert isinstance(result.exception, StorageError)
    assert str(result.exception).startswith(f"{lake}: Not a directory; check")
    assert started == []


def test_report_on_a_directory_without_lake_is_refused(tmp_path: Path) -> None:
    result = invoked("report", str(tmp_path))
    assert isinstance(result.exception, InputError)
    assert "is no lake" in str(result.exception)


def test_error_is_one_sentence_with_an_exit_status(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "skipring", "pipeline", "run", "--subscribe", "orders"]
    command += ["--supervisor", UNUSED_ADDRESS, "--lake", str(tmp_path / "lake")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 4
    assert done.stderr.startswith("Error: nothing listens on")
    assert len(done.stderr.splitlines()) == 1
