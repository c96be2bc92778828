"""The way in: commands of the first pages are valid; those of the tutorial print what it says."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from msgspec import Struct

from skipring.testing import Cluster
from tests.house.test_docs import ROOT, commands
from tests.house.test_operations import is_refused
from tests.support.processes import MARK, left_of, nothing_left

PAGE = ROOT / "docs" / "tutorial.md"
PAGES = [ROOT / "README.md", PAGE, ROOT / "docs" / "dashboard.md", ROOT / "docs" / "spark.md"]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORT = "7400"
MINUS = "\N{MINUS SIGN}"
PATIENCE_S = 400.0
SET_UP = "make setup"  # what has been done before any test runs


class Step(Struct, frozen=True):
    """A command of the page and what it prints; a program to be saved is a command, too."""

    command: str
    output: str = ""


def steps(text: str) -> Iterator[Step]:
    """What a reader of a page does, in order."""
    for kind, block in FENCE.findall(text):
        match kind:
            case "python":
                name = block.partition("\n")[0].removeprefix("# ")
                yield Step(f"cat > {name} << 'END'\n{block}END")
            case "console":
                for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                    command, _, output = part.partition("\n")
                    yield Step(command, output)


def is_as_told(output: str, told: str) -> bool:
    """True if an output is the one of the page, in which … stands for anything, also for lines."""
    pattern = "".join(
        "(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + "\n"
        for line in told.splitlines()
    )
    return re.fullmatch(pattern, output) is not None


@pytest.mark.parametrize(
    ("output", "told"),
    [("4\n", "4\n"), ("", "…\n"), ("a\nb\n", "…\n"), ("label 01\nx\n", "label …\n…\n")],
)
def test_an_output_that_is_told_is_recognised(output: str, told: str) -> None:
    assert is_as_told(output, told)


@pytest.mark.parametrize(
    ("output", "told"),
    [("5\n", "4\n"), ("", "4\n"), ("4\nmore\n", "4\n"), ("nobody\n", "label …\n")],
)
def test_an_output_that_is_another_is_noticed(output: str, told: str) -> None:
    assert not is_as_told(output, told)


def test_no_block_of_the_page_is_overlooked() -> None:
    text = PAGE.read_text("utf-8")
    kinds = [kind for kind, _ in FENCE.findall(text)]
    assert text.count("```") == 2 * len(kinds)
    (set_up,) = (block for kind, block in FENCE.findall(text) if kind not in ("console", "python"))
    assert set_up.startswith(SET_UP)
    assert len(list(steps(text))) > 20


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def printed(told: list[Step], directory: Path, mark: str) -> list[str]:
    """What each step prints, all of them in one shell."""
    between = token_hex(8)
    script = "\n".join(f"{step.command}\necho {between}" for step in told)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {MARK: mark, "PATH": path}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SKIPRING_")}
    said, errors = directory / "said", directory / "errors"
    with said.open("w") as stdout, errors.open("w") as stderr:
        subprocess.run(
            ["bash", "-c", script],
            cwd=directory,
            env=kept | variables,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            timeout=PATIENCE_S,
            check=False,
        )
    return said.read_text("utf-8").split(f"{between}\n")


@pytest.mark.heavy
def test_every_command_of_the_page_prints_what_it_says(tmp_path: Path) -> None:
    told = list(steps(PAGE.read_text("utf-8").replace(PORT, free_port())))
    mark = token_hex(8)
    with nothing_left(mark):
        outputs = printed(told, tmp_path, mark)
        for step, output in zip(told, outputs, strict=False):
            complaints = (tmp_path / "errors").read_text("utf-8")
            assert is_as_told(output, step.output), (step.command, output, complaints)
        assert len(outputs) == len(told) + 1
        assert left_of(mark) == []
    assert not (tmp_path / "ring").exists()


@pytest.mark.heavy
def test_a_command_that_prints_something_else_is_noticed(tmp_path: Path) -> None:
    (output, _) = printed([Step("skipring --version")], tmp_path, token_hex(8))
    assert is_as_told(output, "…\n")
    assert not is_as_told(output, "skipring 99\n")


# --- other first pages ------------------------------------------------------------------


COMMANDS = [(page.name, command) for page in PAGES for command in commands(page.read_text("utf-8"))]


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_every_command_of_the_first_pages_is_accepted(
    page: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SKIPRING_SUPERVISOR", "127.0.0.1:7400")
    words = re.split(r" [|&>]", command)[0].replace("$1", "ann").replace("lost.json", "README.md")
    assert not is_refused(words), page


def test_commands_of_every_page_are_found() -> None:
    assert {page for page, _ in COMMANDS} == {page.name for page in PAGES}
    assert len(COMMANDS) > 20


async def first_of(code: str, url: str, directory: Path) -> list[object]:
    """What the program of the README prints first in a ring; it would go on for ever."""
    printed_first = asyncio.get_running_loop().create_future()
    names: dict[str, Any] = {"print": lambda *words: printed_first.set_result(list(words))}
    here = code.replace(f'"skipring://127.0.0.1:{PORT}"', f'"{url}", tick_s=0.05')
    exec(here.replace("~/.skipring", str(directory)), names)
    running = asyncio.create_task(names["main"]())
    try:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait([running, printed_first], return_when=asyncio.FIRST_COMPLETED)
        return await printed_first
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_the_program_of_the_readme_reads_what_it_publishes(tmp_path: Path) -> None:
    (code,) = (
        block
        for kind, block in FENCE.findall((ROOT / "README.md").read_text("utf-8"))
        if kind == "python" and "skipring.connect" in block
    )

    async def scene() -> list[object]:
        async with Cluster(n=2, topic="news") as ring:
            return await first_of(code, ring.url, tmp_path)

    _, payload, _ = asyncio.run(scene())
    assert payload == b"hello"


def test_the_keys_of_the_dashboard_are_on_its_page() -> None:
    html = (ROOT / "src/skipring/web/static/index.html").read_text("utf-8")
    keys = set(re.findall(r"<kbd>(.+?)</kbd>", html))
    page = (ROOT / "docs" / "dashboard.md").read_text("utf-8").partition("## Keys")[2]
    assert len(keys) > 5
    assert {key for key in keys if f"`{key.replace(MINUS, '-')}`" not in page} == set()
