"""Settings in a file: precedence, refusals and reloading."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import click
import pytest

from skipring.cli import main, skipring
from skipring.net.addresses import supervisor_of
from skipring.node.settings import NodeSettings
from skipring.node.supervisor_host import SupervisorHost
from tests.support.processes import LoggingProcess, logging_process
from tests.support.rings import LOOPBACK, until
from tests.support.scenes import in_loop

TICK = 0.05


@pytest.fixture(autouse=True)
def _no_settings_of_this_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("SKIPRING_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "skipring.toml"


def settings(command: str, *words: str) -> dict[str, object]:
    """Return the settings of a command without running it."""
    root = click.Context(skipring, info_name="skipring", **skipring.context_settings)
    with skipring.commands[command].make_context(command, list(words), parent=root) as context:
        return dict(context.params)


# --- precedence ------------------------------------------------------------------------

LISTEN = ("--listen", "127.0.0.1:1")


def test_option_overrides_variable_and_variable_overrides_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("tick = 3.0\n")
    words = ("--config", str(file), *LISTEN)
    assert settings("supervisor", *LISTEN)["tick"] == 1.0
    assert settings("supervisor", *words)["tick"] == 3.0
    monkeypatch.setenv("SKIPRING_TICK", "4.0")
    assert settings("supervisor", *words)["tick"] == 4.0
    assert settings("supervisor", *words, "--tick", "5.0")["tick"] == 5.0


def test_table_overrides_top_level_for_its_command_only(file: Path) -> None:
    file.write_text('tick = 3.0\nlog-level = "error"\n[node]\ntick = 4.0\n')
    words = ("--config", str(file), *LISTEN)
    found = settings("supervisor", *words)
    assert (found["tick"], found["log_level"]) == (3.0, "error")
    assert settings("node", "--topic", "news", "--config", str(file))["tick"] == 4.0


def test_list_sets_several_values(file: Path) -> None:
    file.write_text(
        'supervisor = ["127.0.0.1:1", "127.0.0.1:2"]\ntopic = ["a", "b c"]\n'
        '[node]\nlisten = "127.0.0.1:3"\n'
    )
    found = settings("node", "--config", str(file))
    assert found["supervisors"] == "127.0.0.1:1,127.0.0.1:2"
    assert found["topics"] == ("a", "b c")


def test_flag_must_be_true_or_false(file: Path) -> None:
    file.write_text("[supervisor]\nchaos = true\n")
    assert settings("supervisor", *LISTEN)["chaos"] is False
    assert settings("supervisor", *LISTEN, "--config", str(file))["chaos"] is True


def test_variable_can_name_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("tick = 3.0\n")
    monkeypatch.setenv("SKIPRING_CONFIG", str(file))
    assert settings("supervisor", *LISTEN)["tick"] == 3.0
    other = file.with_name("other.toml")
    other.write_text("tick = 4.0\n")
    assert settings("supervisor", *LISTEN, "--config", str(other))["tick"] == 4.0
    file.write_text('supervisor = "127.0.0.1:1"\n')  # the first option that is processed
    assert settings("pub", "news")["supervisors"] == "127.0.0.1:1"


def test_variable_with_spaces_is_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKIPRING_TOPIC", "a b")
    monkeypatch.setenv("SKIPRING_SUPERVISOR", "127.0.0.1:1,127.0.0.1:2")
    found = settings("node", *LISTEN)
    assert found["topics"] == ("a", "b")
    assert found["supervisors"] == "127.0.0.1:1,127.0.0.1:2"


# --- refusals --------------------------------------------------------------------------


def refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> str:
    """Return the one sentence with which a command ends with status 2."""
    monkeypatch.setattr(sys, "argv", ["skipring", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('listn = "x"', ": no setting 'listn'; the settings are advertise, "),
        ("log_level = 1", ": no setting 'log_level'; the settings are "),
        ('config = "x"', ": no setting 'config'; the settings are "),
        ('[[node]]\nlisten = "x"', ": no setting 'node'; the settings are "),
        ('[nod]\nlisten = "x"', ": no command 'nod'; the commands are "),
        ("[simulate]\nn = 3", ": no command 'simulate'; the commands are "),
        ('[node]\nlistn = "x"', ": [node] no setting 'listn'; the settings are advertise, "),
        ('[node]\nallow-topic = "x"', ": [node] no setting 'allow-topic'; the settings are "),
        ('[pub]\nlisten = "x"', ": [pub] no setting 'listen'; the settings are "),
        ("listen = 1979-05-27", ": listen: expected a text or a number"),
        ("listen = true", ": listen: expected a text or a number"),
        ("supervisor = true", ": supervisor: expected a text or a number"),
        ('chaos = "perhaps"', ": chaos: expected true or false"),
        ("chaos = 1", ": chaos: expected true or false"),
        ('tick = "fast"', ": tick: 'fast' is not a valid float"),
        ("tick = -1", ": tick: -1.0 is not in the range"),
        ("tick = [1, 2]", ": tick: '1,2' is not a valid float"),
        ('[node]\nlog-level = "loud"', ": log-level: 'loud' is not one of "),
        ("topic = [{a = 1}]", ": topic: expected "),
        ("[node]\nlisten = {host = 1}", ": listen: expected "),
        ("listen =\n", ": not TOML ("),
        ("tick = 1\ntick = 2", ": not TOML ("),
    ],
)
def test_unusable_setting_is_refused_with_file_and_name(
    text: str,
    why: str,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file.write_text(text)
    assert refusal(monkeypatch, capsys, "node", "--config", str(file)).startswith(
        f"Error: {file}{why}"
    )


def test_binary_file_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    line = refusal(monkeypatch, capsys, "node", "--config", str(file))
    assert line.startswith(f"Error: {file}: not TOML (")


def test_missing_file_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(monkeypatch, capsys, "pub", "news", "hello", "--config", str(file))
    assert line == f"Error: cannot read {file}: No such file or directory"
    monkeypatch.setenv("SKIPRING_CONFIG", str(file))
    assert refusal(monkeypatch, capsys, "supervisor", *LISTEN) == line


# --- reloading -------------------------------------------------------------------------


@asynccontextmanager
async def two_supervisors() -> AsyncIterator[tuple[SupervisorHost, SupervisorHost]]:
    async with AsyncExitStack() as stack:
        servers = []
        for _ in range(2):
            server = SupervisorHost(NodeSettings(tick_s=TICK), rng=Random(0))
            stack.push_async_callback(server.close)
            servers.append(await server.start(LOOPBACK, 0))
        yield servers[0], servers[1]


def node_process(*words: str) -> AbstractAsyncContextManager[LoggingProcess]:
    return logging_process("node", "--tick", str(TICK), "--name", "a", *words)


def write(file: Path, text: str) -> None:
    file.write_text(text)


def write_list(file: Path, *servers: SupervisorHost, topic: str = "news") -> None:
    addresses = [server.address for server in servers]
    file.write_text(f'supervisor = {json.dumps(addresses)}\n[node]\ntopic = "{topic}"\n')


@pytest.mark.heavy
@in_loop
async def test_node_reloads_the_supervisor_list_on_sighup(file: Path) -> None:
    async with two_supervisors() as (first, second):
        write_list(file, first)
        async with node_process("--config", str(file)) as node:
            await until(lambda: first.members() == {"news": 1})
            write_list(file, second)
            node.hang_up()
            said = await node.logged("settings_reloaded")
            assert said["supervisors"] == second.address
            await until(lambda: second.members() == {"news": 1})
            await until(lambda: not any(first.members().values()))


@pytest.mark.heavy
@in_loop
async def test_topic_keeps_its_supervisor_if_the_longer_list_still_assigns_it(file: Path) -> None:
    async with two_supervisors() as (first, second):
        addresses = (first.address, second.address)
        topics = [f"topic-{number}" for number in range(100)]
        stays = next(each for each in topics if supervisor_of(each, addresses) == addresses[0])
        write_list(file, first, topic=stays)
        async with node_process("--config", str(file)) as node:
            await until(lambda: first.members() == {stays: 1})
            write_list(file, first, second, topic=stays)
            node.hang_up()
            said = await node.logged("settings_reloaded")
            assert said["supervisors"] == ",".join(addresses)
            seen = first.ticker.calls
            await until(lambda: first.ticker.calls > seen + 5)
            assert (first.members(), second.members()) == ({stays: 1}, {})


@pytest.mark.heavy
@in_loop
async def test_node_without_config_file_logs_that_and_continues(file: Path) -> None:
    async with two_supervisors() as (first, _):
        words = ("--supervisor", first.address, "--topic", "news")
        async with node_process(*words) as node:
            await until(lambda: first.members() == {"news": 1})
            for _ in range(2):
                node.hang_up()
                await node.logged("settings_rejected")


@pytest.mark.heavy
@in_loop
async def test_unreadable_file_is_logged_and_changes_nothing(file: Path) -> None:
    async with two_supervisors() as (first, second):
        write_list(file, first)
        async with node_process("--config", str(file)) as node:
            await until(lambda: first.members() == {"news": 1})
            for text, why in (
                ("supervisor = [", "not TOML"),
                ('supervisor = "example.org:1"', "no certificates"),
                ("supervisor = true", "expected a text or a number"),
                ('[node]\ntopic = "news"', "no address given"),
                ('[node]\ntropic = "news"', "no setting 'tropic'"),
            ):
                write(file, text)
                node.hang_up()
                assert why in (await node.logged("settings_rejected"))["reason"]
            assert first.members() == {"news": 1}
            write_list(file, second)
            node.hang_up()
            await until(lambda: second.members() == {"news": 1})
