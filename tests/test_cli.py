"""The command line as a whole: help, version, exit status and no traceback."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement

from skipring.cli import main, options, skipring
from skipring.cli.options import Exit
from skipring.errors import InputError, StorageError, UnreachableError

ROOT = Path(__file__).parents[1]


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command, including those in groups."""
    for name, command in group.commands.items():
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


def start(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the program as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "skipring", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


ALL = list(commands(skipring))


@pytest.mark.parametrize("words", [(), *ALL], ids=" ".join)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_has_help(words: tuple[str, ...], option: str) -> None:
    result = CliRunner().invoke(skipring, [*words, option], prog_name="skipring")
    assert result.exit_code == 0
    usage, *rest = result.output.splitlines()
    assert usage.startswith(f"Usage: {' '.join(['skipring', *words])} ")
    assert len([line for line in rest if line.strip()]) >= 3
    assert max(len(line) for line in rest) <= 80


def test_help_lists_every_command_with_a_sentence() -> None:
    result = CliRunner().invoke(skipring, ["--help"])
    for name in skipring.commands:
        assert re.search(rf"^  {name} +\w+\W+\w+", result.output, re.MULTILINE)


def test_help_and_version_work_as_a_program() -> None:
    helped = start("--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert helped.stdout.startswith("Usage: skipring ")

    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    asked = start("--version")
    assert (asked.returncode, asked.stdout, asked.stderr) == (
        0,
        f"skipring, version {version}\n",
        "",
    )


@pytest.mark.parametrize(
    ("words", "last"),
    [
        (("nonsense",), "Error: No such command 'nonsense'."),
        (("--nonsense",), "Error: No such option '--nonsense'."),
        (("bench", "nonsense"), "Error: No such command 'nonsense'."),
        (("simulate", "--nonsense"), "Error: No such option '--nonsense'."),
    ],
)
def test_unknown_commands_and_options_are_refused(words: tuple[str, ...], last: str) -> None:
    result = start(*words)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: skipring ")
    assert result.stderr.splitlines()[-1].startswith(last)


@pytest.mark.parametrize("words", [("simulate", "--n", "4"), ("--help",)], ids=" ".join)
def test_closed_output_pipe_prints_no_error(words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "skipring", *words],
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (1, "")


# --- exit status -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UnreachableError("no answer"), Exit.UNREACHABLE, "Error: no answer"),
        (StorageError("no room"), Exit.NO, "Error: no room"),
        (InputError("w.json: that is no world"), Exit.BAD_INPUT, "Error: w.json: that is no world"),
        (click.UsageError("leave out --n"), Exit.BAD_INPUT, "Error: leave out --n"),
        (click.ClickException("no"), Exit.NO, "Error: no"),
        (KeyboardInterrupt(), Exit.INTERRUPTED, "interrupted"),
        (click.Abort(), Exit.INTERRUPTED, "interrupted"),
        (BrokenPipeError(), Exit.NO, ""),
    ],
)
def test_error_is_one_sentence_and_an_exit_status(
    error: BaseException,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setitem(skipring.commands, "fail", click.Command("fail", callback=fail))
    monkeypatch.setattr(sys, "argv", ["skipring", "fail"])
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code == status
    printed, heard = capsys.readouterr()
    *usage, last = heard.splitlines() or [""]
    assert (printed, last) == ("", said)
    assert "Traceback" not in heard
    assert not any(usage) or isinstance(error, click.UsageError)


def test_unexpected_exception_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an unexpected exception propagate; only expected errors become a sentence."""

    def fail() -> None:
        raise AssertionError

    monkeypatch.setitem(skipring.commands, "fail", click.Command("fail", callback=fail))
    monkeypatch.setattr(sys, "argv", ["skipring", "fail"])
    with pytest.raises(AssertionError):
        main()


def test_exit_statuses_have_the_documented_values() -> None:
    assert {status.name: int(status) for status in Exit} == {
        "YES": 0,
        "NO": 1,
        "BAD_INPUT": 2,
        "NOT_CONVERGED": 3,
        "UNREACHABLE": 4,
        "INTERRUPTED": 130,
    }


# --- extras ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("dashboard",), "dashboard"),
        (("dev", "--dashboard"), "dashboard"),
        (("lab", "run", "m.toml", "--out", "o"), "spark"),
        (("lab", "report", "o"), "spark"),
        (("pipeline", "init", "o"), "spark"),
        (("pipeline", "run", "o"), "spark"),
        (("pipeline", "report", "o"), "spark"),
        (("bench", "spark"), "spark"),
    ],
    ids=lambda each: each if isinstance(each, str) else " ".join(each),
)
def test_command_without_its_extra_exits_with_2_and_the_install_command(
    words: tuple[str, ...],
    extra: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(options, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["skipring", *words])
    with pytest.raises(SystemExit) as exited:
        main()
    printed, errors = capsys.readouterr()
    assert exited.value.code == Exit.BAD_INPUT
    assert (printed, errors) == (
        "",
        f"skipring {words[0]} needs: pip install 'skipring[{extra}]'\n",
    )


def test_packages_of_extras_are_declared_by_the_project() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    for extra, packages in options.EXTRAS.items():
        declared = {Requirement(each).name for each in extras[extra]}
        assert set(packages) <= declared
