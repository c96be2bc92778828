"""docs/troubleshooting.md: the likeliest mistakes, made for real, and the output they produce.

The page is rendered from the table below and from captured output. ``make golden`` rewrites it.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from difflib import unified_diff
from pathlib import Path
from secrets import token_hex
from textwrap import dedent, fill, indent

import pytest
from click.testing import CliRunner
from msgspec import Struct

from skipring.cli import skipring
from tests.house.test_docs import ROOT
from tests.house.test_operations import all_commands
from tests.support.processes import MARK, nothing_left

PAGE = ROOT / "docs" / "troubleshooting.md"
REWRITE = "SKIPRING_GOLDEN=rewrite pytest tests/house/test_troubleshooting.py"
DEADLINE_S = 60.0
AT_ONCE = 10  # Seven mistakes wait for seconds, so three run beside them.
POLL_S = 0.02
COLUMNS = 120

INTRO = """\
# Troubleshooting

{count} common mistakes of new users, with the output that they produce. Search this page for the
words of an error message. Of a traceback it shows the last line; `PID`, `PORT` and `ID` stand for
values that differ between runs. `tests/house/test_troubleshooting.py` makes each mistake and
compares the output.

Unless an entry states otherwise, a ring runs on this machine at 127.0.0.1:7400, started with
`skipring dev --data ring --topic news --topic orders`. In entries about certificates, `ca` and
`issued` contain files from `skipring certs` ([operations.md](operations.md)), and `issued-new`
those of another authority.
"""


# --- the mistakes ----------------------------------------------------------------------


class Mistake(Struct, frozen=True, kw_only=True):
    """Mistake of a user: the action, the cause of the failure, and the remedy."""

    title: str
    command: str = ""  # one command, or a program
    program: str = ""
    background: str = ""  # a background process, and the text that it prints once it is ready
    is_up: str = ""
    has_ring: bool = True  # False: nothing listens on 127.0.0.1:7400
    lacks: str = ""  # a package that is not installed
    is_waiting: bool = False  # it takes seconds: the test starts it first
    until: str = ""  # output after which the test interrupts a command that waits
    deadline_s: float = DEADLINE_S
    cause: str
    remedy: str


PROGRAM = """\
import asyncio

import skipring


async def main():
{body}


asyncio.run(main())
"""


def in_main(body: str) -> str:
    """Return a program that runs some lines in an event loop."""
    return PROGRAM.format(body=indent(dedent(body).strip(), "    "))


FOREIGN = "--tls-ca ca/ca.pem --tls-cert issued-new/ops.pem --tls-key issued-new/ops.key"
SECURED = "--tls-ca ca/ca.pem --tls-cert issued/supervisor.pem --tls-key issued/supervisor.key"

MISTAKES = [
    Mistake(
        title="No supervisor answers: nothing runs yet",
        is_waiting=True,
        command='skipring pub news "hello"',
        has_ring=False,
        cause="No process listens on 127.0.0.1:7400, the default address of the supervisor.",
        remedy="Start a ring with `skipring dev`. If the supervisor has another address, set it "
        "with `--supervisor HOST:PORT`, `SKIPRING_SUPERVISOR` or `skipring context use`.",
    ),
    Mistake(
        title="No supervisor answers: the address of a node",
        is_waiting=True,
        command='skipring pub news "hello" --supervisor 127.0.0.1:7401',
        cause="A node listens on this address, here `node-1`. `pub` has to ask a supervisor first.",
        remedy="Use the supervisor's address: `skipring dev` prints it in the line `supervisor`, "
        "`skipring supervisor` in the line `listening`.",
    ),
    Mistake(
        title="No supervisor answers: another program has the port",
        is_waiting=True,
        background="python -m http.server 8000 --bind 127.0.0.1",
        is_up="Serving HTTP",
        command='skipring pub news "hello" --supervisor 127.0.0.1:8000',
        cause="Another program, here a web server, listens on this address.",
        remedy="Check the port. `ss -ltnp` lists the programs that listen on this machine.",
    ),
    Mistake(
        title="No supervisor answers: it requires a certificate",
        is_waiting=True,
        background=f"skipring supervisor --listen 127.0.0.1:7443 {SECURED}",
        is_up="listening",
        command='skipring pub news "hello" --supervisor 127.0.0.1:7443',
        cause="The supervisor has certificates, so it refuses connections without TLS.",
        remedy="Add `--tls-ca`, `--tls-cert` and `--tls-key` with the files of your certificate, "
        "or save them in a context (`skipring context save`).",
    ),
    Mistake(
        title="`pub`: the topic has no members",
        is_waiting=True,
        command='skipring pub nwes "hello"',
        cause="No node subscribes to `nwes`: the name is misspelt, or its nodes are not running.",
        remedy="`skipring topics` lists the topics. Start a node with `skipring node --topic "
        "NAME`, or pass `skipring dev` another `--topic`.",
    ),
    Mistake(
        title="`sub`: the topic has no members",
        command="skipring sub nwes",
        until="waiting: ",
        cause="As with `pub`: no node subscribes to `nwes`. `sub` waits until one does.",
        remedy="Correct the name. With `--no-follow`, `sub` exits with status 4 after `--wait`.",
    ),
    Mistake(
        title="`sub` prints nothing",
        command="skipring sub orders --no-follow",
        cause="The topic has members but no publications, and `--no-follow` stops at the end of "
        "the log.",
        remedy="Publish something. `skipring topics` prints the number of publications. Without "
        "`--no-follow`, `sub` waits for the next one.",
    ),
    Mistake(
        title="Address already in use",
        command="skipring dev",
        cause="Another process listens on 127.0.0.1:7400, most often an earlier `skipring dev` or "
        "`skipring supervisor`.",
        remedy="Stop it, or use another port: `skipring dev --listen 7500`.",
    ),
    Mistake(
        title="No member stores publications on disk",
        background="skipring node --topic cache",
        is_up='"joined"',
        command='skipring pub cache "hello"',
        cause="All members of the topic run without `--data`, and `pub` requires a member that "
        "writes to disk.",
        remedy="Start at least one node with `--data DIR`, or accept storage in memory with "
        "`--volatile`.",
    ),
    Mistake(
        title="The data directory is used by another process",
        command="skipring node --name node-1 --topic news --data ring/node-1",
        cause="A data directory belongs to one process, and `node-1` of `skipring dev` is still "
        "running.",
        remedy="Stop that process first, or give the second node its own directory.",
    ),
    Mistake(
        title="Two connections with one `data_dir`",
        program=in_main("""
            async with skipring.connect(data_dir="data") as first:
                async with skipring.connect(data_dir="data") as second:
                    pass
        """),
        cause="A data directory belongs to one node, so two connections cannot share it, even in "
        "one program.",
        remedy="Subscribe to all topics with one connection, or give each connection its own "
        "directory.",
    ),
    Mistake(
        title="`chaos`: not started with `--chaos`",
        command="skipring chaos kill news node-1",
        cause="A process allows fault injection only if it was started with `--chaos`.",
        remedy="Start the ring again with `skipring dev --chaos`. Do not use it in production.",
    ),
    Mistake(
        title="Listening on 0.0.0.0 without certificates",
        command="skipring supervisor --listen 0.0.0.0:7400",
        cause="Without certificates any machine could join and read everything, so a process "
        "without them uses loopback only.",
        remedy="Create certificates with `skipring certs` and pass `--tls-ca`, `--tls-cert` and "
        "`--tls-key`; on a single machine, listen on 127.0.0.1.",
    ),
    Mistake(
        title="A supervisor on another machine without certificates",
        command="skipring node --topic news --supervisor 10.0.0.1:7400",
        cause="The address is not on loopback, and the node has no certificate.",
        remedy="Issue a certificate for this machine (`skipring certs issue NAME`), and pass it "
        "with its key and the authority's `ca.pem`.",
    ),
    Mistake(
        title="A certificate of another authority",
        command=f'skipring pub news "hello" {FOREIGN}',
        cause="The authority in `--tls-ca` did not sign this certificate. Each `skipring certs "
        "init` creates another authority.",
        remedy="Use the `ca.pem` of the authority that signed the certificate, or issue a new "
        "certificate with `skipring certs issue NAME --dir ca`.",
    ),
    Mistake(
        title="A payload is bytes, not `str`",
        program=in_main("""
            async with skipring.connect() as node, node.subscribe("news") as news:
                await news.publish("hello")
        """),
        cause="Payloads and keys are bytes; skipring does not choose an encoding.",
        remedy='Encode the text: `"hello".encode()`, or `json.dumps(value).encode()`.',
    ),
    Mistake(
        title="A payload is too large",
        program=in_main("""
            async with skipring.connect() as node, node.subscribe("news") as news:
                await news.publish(bytes(1_000_000))
        """),
        cause="Every member stores and forwards each publication as a whole, so its size is "
        "bounded.",
        remedy="Store large objects elsewhere and publish their address, or split them.",
    ),
    Mistake(
        title="`coroutine 'Subscription.publish'` was never awaited",
        program=in_main("""
            async with skipring.connect() as node, node.subscribe("news") as news:
                news.publish(b"hello")
        """),
        cause="`publish` is a coroutine function: without `await` it does not run, and nothing is "
        "published.",
        remedy="Write `await news.publish(...)`, or use `skipring.blocking` in programs without "
        "asyncio.",
    ),
    Mistake(
        title="`await skipring.connect()`",
        program=in_main("""
            node = await skipring.connect()
        """),
        cause="`connect` returns a context manager, which starts the node on entry and stops it on "
        "exit.",
        remedy="Write `async with skipring.connect() as node:`.",
    ),
    Mistake(
        title="`async for` over a subscription that was not entered",
        program=in_main("""
            async with skipring.connect() as node:
                async for publication in node.subscribe("news"):
                    print(publication.payload)
        """),
        cause="`subscribe` only describes the subscription; the node joins the topic at the start "
        "of an `async with` block.",
        remedy='Write `async with node.subscribe("news") as news:` around the loop.',
    ),
    Mistake(
        title="A subscription is used after its block",
        program=in_main("""
            async with skipring.connect() as node:
                async with node.subscribe("news") as news:
                    pass
                await news.publish(b"hello")
        """),
        cause="The end of the block unsubscribes, and the node leaves the ring of the topic.",
        remedy="Publish and read inside the block. In a notebook, "
        "`skipring.blocking.connect().open()` stays open until `close()`.",
    ),
    Mistake(
        title="`start` is a datetime without a time zone",
        program=in_main("""
            from datetime import datetime

            async with skipring.connect() as node:
                async with node.subscribe("news", start=datetime(2026, 5, 31, 12)) as news:
                    print(await news.read())
        """),
        cause="Without a time zone the moment is ambiguous.",
        remedy="Add one, as in `datetime(2026, 5, 31, 12, tzinfo=UTC)`. Use "
        '`start="all"` (or `"earliest"`) for the whole history, `"new"` (or `"latest"`) for new '
        "publications.",
    ),
    Mistake(
        title="A cursor of another data directory",
        program=in_main("""
            async with skipring.connect(data_dir="monday") as node:
                async with node.subscribe("news") as news:
                    kept = str(news.cursor())
            async with skipring.connect(data_dir="tuesday") as node:
                async with node.subscribe("news", start=kept) as news:
                    pass
        """),
        cause="A cursor is a position in the log of one data directory, and every directory has "
        "its own order.",
        remedy='Connect with the same `data_dir` each time, or use `start="all"` and skip '
        "publications by `id`.",
    ),
    Mistake(
        title="`TimeoutError`: not synced",
        is_waiting=True,
        program=in_main("""
            async with skipring.connect() as node, node.subscribe("news") as news:
                await news.publish(b"hello")
                await news.synced(timeout=2)
        """),
        has_ring=False,
        cause="`publish` needs no other process, so it succeeds; `synced` waits for the supervisor "
        "and the neighbours, and here no supervisor is running.",
        remedy="Start the supervisor, or correct its address. Without a `data_dir` the publication "
        "is lost when the program ends.",
    ),
    Mistake(
        title="`No module named 'pyspark'`",
        program="from skipring.spark import register, session\n",
        lacks="pyspark",
        cause="Spark is an extra; `pip install skipring` does not install it.",
        remedy="`pip install 'skipring[spark]'`. It includes a Java runtime.",
    ),
]


# --- making them -----------------------------------------------------------------------


class Bench:
    """A ring, certificates and commands, for mistakes in directories of their own."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.shared = directory / "shared"
        self.environment = environment
        self._directory = directory
        self._ring = free_port()
        self._closed = socket.socket()
        self._closed.bind(("127.0.0.1", 0))  # it does not listen: connections are refused
        self._ports = {"8000": free_port(), "7443": free_port()}

    def close(self) -> None:
        self._closed.close()

    def ports(self, *, has_ring: bool) -> dict[str, str]:
        """Return the real port for each port of the page."""
        return self._ports | {"7400": self._ring if has_ring else self._port_closed}

    @property
    def _port_closed(self) -> str:
        return str(self._closed.getsockname()[1])

    def start(self) -> Running:
        """Start the ring; return it once it is ready."""
        words = "--no-dashboard --data ring --topic news --topic orders"
        ring = self.run(f"skipring dev {words}", self.shared, self._ring)
        ring.wait(lambda: "ready" in ring.output)
        found = re.search(r"node-1 +127\.0\.0\.1:(\d+)", ring.output)
        assert found is not None, ring.output
        self._ports["7401"] = found[1]
        return ring

    def run(self, command: str, directory: Path, supervisor: str, lacks: str = "") -> Running:
        environment = self.environment | {"SKIPRING_SUPERVISOR": f"127.0.0.1:{supervisor}"}
        if lacks:
            paths = [str(self._without(lacks)), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        return Running(command, directory, environment)

    def _without(self, package: str) -> Path:
        """Return a directory for PYTHONPATH in which a package cannot be found."""
        place = self._directory / f"without-{package}"
        place.mkdir()
        (place / "sitecustomize.py").write_text(
            dedent(f"""
                import sys
                from importlib.machinery import PathFinder

                class Filtered(PathFinder):
                    @classmethod
                    def find_spec(cls, name, path=None, target=None):
                        found = name.partition(".")[0] != {package!r}
                        return super().find_spec(name, path, target) if found else None

                sys.meta_path = [Filtered if each is PathFinder else each for each in sys.meta_path]
            """),
            "utf-8",
        )
        return place

    def make(self, mistake: Mistake) -> str:
        """Make a mistake; return the part of the page about its output."""
        number = MISTAKES.index(mistake)
        directory = self._directory / f"mistake-{number}"
        directory.mkdir()
        for each in self.shared.iterdir():
            (directory / each.name).symlink_to(each)
        if mistake.program:
            (directory / "program.py").write_text(mistake.program, "utf-8")
        ports = self.ports(has_ring=mistake.has_ring)
        background = None
        try:
            if mistake.background:
                command = with_ports(mistake.background, ports)
                background = self.run(command, directory, ports["7400"])
                background.wait(lambda: mistake.is_up in background.output)
            command = with_ports(mistake.command or "python program.py", ports)
            running = self.run(command, directory, ports["7400"], mistake.lacks)
            has_ended = running.finish(mistake.until, mistake.deadline_s)
        finally:
            if background is not None:
                background.kill()
        text = normalised(running.output, [directory, self.shared], ports).strip()
        return shown_output(text, has_ended=has_ended)


class Running:
    """A command in a process group of its own; its output goes to a file."""

    def __init__(self, command: str, directory: Path, environment: dict[str, str]) -> None:
        self._file = directory / f"output-{token_hex(4)}"
        with self._file.open("wb") as file:
            self._process = subprocess.Popen(
                ["bash", "-c", command],
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._file.read_text("utf-8", errors="replace")

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self, holds: Callable[[], bool]) -> None:
        """Wait until a process is up."""
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert not self.has_ended, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(POLL_S)

    def finish(self, until: str, deadline_s: float) -> bool:
        """Wait for the end, the text ``until`` or the deadline; return True if it has ended."""
        deadline = time.monotonic() + deadline_s
        while not self.has_ended and time.monotonic() < deadline:
            if until and re.search(rf"{re.escape(until)}.*\n", self.output):
                break
            time.sleep(POLL_S)
        has_ended = self.has_ended
        self.kill()
        return has_ended

    def kill(self) -> None:
        if not self.has_ended:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(DEADLINE_S)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def with_ports(command: str, ports: dict[str, str]) -> str:
    """Replace the ports of the page by real ones."""
    return re.sub(r"(?<=127\.0\.0\.1:)\d+|\b8000\b", lambda port: ports[port[0]], command)


# --- the page --------------------------------------------------------------------------

TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*")
PLACEHOLDERS = [
    (r"\b[0-9a-f]{64}\b", "ID"),
    (r"\b(node|client)-[0-9a-f]{8,}\b", r"\1-ID"),
    (r"\b(pid|process)([ =])\d+\b", r"\1\2PID"),
    (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
]


def normalised(output: str, places: list[Path], ports: dict[str, str]) -> str:
    """Return output without the parts that differ between runs or machines."""
    before, *messages = TRACEBACK.split(output)
    output = before + (messages[-1] if messages else "")  # of a chain of errors, the last
    for path in (*places, *(place.resolve() for place in places)):
        output = output.replace(f"{path}/", "")
    for shown, real in ports.items():
        output = re.sub(rf"\b{real}\b", shown, output)
    for pattern, replacement in PLACEHOLDERS:
        output = re.sub(pattern, replacement, output)
    known = "|".join(ports)
    return re.sub(rf"(?<=127\.0\.0\.1:)(?!(?:{known})\b)\d+", "PORT", output)


def shown_output(text: str, *, has_ended: bool) -> str:
    """Return the output as a part of the page."""
    block = f"```text\n{text}\n```" if text else "It prints nothing."
    return block if has_ended else f"{block}\n\nIt does not end by itself; Ctrl-C ends it."


def shown_action(mistake: Mistake) -> str:
    """Return the user's action as a part of the page."""
    if mistake.program:
        return f"```python\n{mistake.program}```"
    background = f"{mistake.background} &\n" if mistake.background else ""
    return f"```sh\n{background}{mistake.command}\n```"


def section(mistake: Mistake, output: str) -> str:
    """Return the section of the page about a mistake."""
    cause, remedy = (
        fill(f"**{word}.** {text}", COLUMNS, break_long_words=False, break_on_hyphens=False)
        for word, text in (("Why", mistake.cause), ("What to do", mistake.remedy))
    )
    return f"## {mistake.title}\n\n{shown_action(mistake)}\n\n{output}\n\n{cause}\n\n{remedy}\n"


@contextmanager
def bench(directory: Path) -> Iterator[Bench]:
    """Prepare commands and certificates; no process is left at the end."""
    mark = token_hex(8)
    programs = directory / "bin"
    programs.mkdir()
    interpreter = shlex.quote(sys.executable)
    for name, words in (("skipring", "-m skipring "), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {interpreter} {words}"$@"\n', "utf-8")
        (programs / name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SKIPRING_")}
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    environment = kept | {MARK: mark, "PATH": path, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
    prepared = Bench(directory, environment)
    prepared.shared.mkdir()
    for authority, issued in (("ca", "issued"), ("ca-new", "issued-new")):
        place, out = str(prepared.shared / authority), str(prepared.shared / issued)
        for words in (
            ["init", place],
            ["issue", "supervisor", "ops", "--dir", place, "--out", out],
        ):
            done = CliRunner().invoke(skipring, ["certs", *words], catch_exceptions=False)
            assert done.exit_code == 0, done.output
    with nothing_left(mark):
        try:
            yield prepared
        finally:
            prepared.close()


def rendered(directory: Path) -> str:
    """Make all mistakes; return the page."""
    with bench(directory) as prepared:
        ring = prepared.start()
        try:
            in_order = sorted(MISTAKES, key=lambda mistake: not mistake.is_waiting)
            with ThreadPoolExecutor(AT_ONCE) as pool:
                made = [(each, pool.submit(prepared.make, each)) for each in in_order]
                outputs = {each.title: future.result() for each, future in made}
        finally:
            ring.kill()
    sections = [section(mistake, outputs[mistake.title]) for mistake in MISTAKES]
    return "\n".join([INTRO.format(count=len(MISTAKES)), *sections])


@pytest.mark.heavy
def test_page_shows_the_output_of_each_mistake(tmp_path: Path, is_rewriting: bool) -> None:
    page = rendered(tmp_path)
    if is_rewriting:
        PAGE.write_text(page, "utf-8")
    committed = PAGE.read_text("utf-8")
    lines = unified_diff(
        committed.splitlines(), page.splitlines(), "docs/troubleshooting.md", "now", lineterm=""
    )
    assert page == committed, "\n".join([*lines, "", f"To rewrite the page: {REWRITE}"])


def test_each_mistake_has_a_unique_title() -> None:
    assert len({mistake.title for mistake in MISTAKES}) == len(MISTAKES) == 25


def test_commands_and_options_in_the_text_exist() -> None:
    text = "".join(f"{mistake.cause} {mistake.remedy}\n" for mistake in MISTAKES)
    words = set(re.findall(r"`skipring ([a-z]+)", text))
    options = set(re.findall(r"(?<=[` ])--[a-z-]+", text))
    assert words <= set(skipring.commands)
    known = {
        name
        for command in all_commands(skipring)
        for option in command.params
        for name in (*option.opts, *option.secondary_opts)
    }
    assert options <= known
    assert min(len(words), len(options)) > 5


def test_output_is_normalised(tmp_path: Path) -> None:
    output = dedent(f"""\
        at 127.0.0.1:4242 and 127.0.0.1:4343, {tmp_path}/ring, pid 17, node-0123456789ab
        Traceback (most recent call last):
          File "program.py", line 1, in <module>
            raise ValueError("no")
        ValueError: no

        The above exception was the direct cause of the following exception:

        Traceback (most recent call last):
          File "program.py", line 2, in <module>
        TypeError: neither
    """)
    found = normalised(output, [tmp_path], {"7400": "4242"})
    expected = "at 127.0.0.1:7400 and 127.0.0.1:PORT, ring, pid PID, node-ID\nTypeError: neither\n"
    assert found == expected
