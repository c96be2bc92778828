"""docs/operations.md and the examples: their commands are valid, their tables complete."""

from __future__ import annotations

import ast
import configparser
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from skipring.cli import skipring
from skipring.core import batches, failure_detector
from skipring.core import limits as core_limits
from skipring.errors import SkipringError, WireError
from skipring.net import (
    access,
    connection_limits,
    dial_failure,
    handshake_limits,
    partial_frames,
    peer,
)
from skipring.node import chaos_server, group_commit, host, metrics_server, process, readings
from skipring.node.settings import NodeSettings
from skipring.observability.metrics import METRICS
from skipring.security import credentials
from skipring.storage import delivery_log, store, topic_directory, topic_log
from skipring.wire import handshake
from skipring.wire import limits as limits_module
from tests.house.test_docs import FENCED, PACKAGE, ROOT, commands, read
from tools.metrics_table import metrics_page

PAGE = ROOT / "docs" / "operations.md"
EXAMPLES = ROOT / "examples"
UNITS = sorted(EXAMPLES.glob("systemd/*.service"))
DOCKERFILE = EXAMPLES / "docker" / "Dockerfile"
INSTALLED = {
    "/etc/skipring/skipring.toml": str(EXAMPLES / "skipring.toml"),
    "/opt/skipring/bin/skipring": "skipring",
}


@pytest.fixture(autouse=True)
def _no_settings_of_this_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("SKIPRING_")]:
        monkeypatch.delenv(name)


# --- commands --------------------------------------------------------------------------


def understood(command: str) -> dict[str, object]:
    """Return the parsed options of a command line, with the settings file of the examples."""
    program, *words = [INSTALLED.get(each, each) for each in shlex.split(command, comments=True)]
    assert program == "skipring"
    context = click.Context(skipring, info_name="skipring", **skipring.context_settings)
    while isinstance(context.command, click.Group):
        name, *words = words or [""]
        context = context.command.commands[name].make_context(name, words, parent=context)
    return dict(context.params)


def is_refused(command: str) -> bool:
    try:
        understood(command)
    except (click.ClickException, SkipringError, KeyError):
        return True
    return False


def in_containers(text: str) -> list[str]:
    """Return the skipring command lines of containers."""
    blocks = "\n".join(FENCED.findall(text))
    return re.findall(r"^\$ docker run .* (skipring (?:node|supervisor) .*)$", blocks, re.MULTILINE)


def exported(text: str) -> dict[str, str]:
    """Return the variables that code blocks set."""
    blocks = "\n".join(FENCED.findall(text))
    return dict(re.findall(r"^\$ export (SKIPRING_\w+)=(\S+)$", blocks, re.MULTILINE))


COMMANDS = [*commands(read(PAGE)), *in_containers(read(PAGE))]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_shown_command_is_accepted(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in exported(read(PAGE)).items():
        monkeypatch.setenv(name, value)
    understood(command)


def test_commands_are_found() -> None:
    assert len(COMMANDS) > 15
    used = {command.split()[1] for command in COMMANDS}
    assert used >= {"certs", "supervisor", "node", "pub", "sub", "ring", "doctor", "explain"}
    assert in_containers(read(PAGE))


@pytest.mark.parametrize(
    "command",
    [
        "skipring nod",
        "skipring certs isue alpha",
        "skipring certs issue alpha --in issued",
        "skipring node --config /etc/skipring/skipring.toml --tock 1",
        "skipring node --config /etc/skipring/other.toml",
        "skipring node --listen 127.0.0.1:0",  # no topic
    ],
)
def test_invalid_command_is_detected(command: str) -> None:
    assert is_refused(command)


def test_every_named_environment_variable_exists() -> None:
    ours = {
        option.envvar
        for command in skipring.commands.values()
        for option in command.params
        if isinstance(option, click.Option)
    }
    named = set(re.findall(r"SKIPRING_[A-Z_]+[A-Z]", read(PAGE) + read(DOCKERFILE)))
    assert named
    assert named <= {*ours, access.SELECTED}


def test_every_named_option_exists() -> None:
    known = {name for command in all_commands(skipring) for o in command.params for name in o.opts}
    named = set(re.findall(r"`(--[a-z-]+)", FENCED.sub("", read(PAGE))))
    assert "--advertise" in named
    assert named <= known


def all_commands(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from all_commands(each)


# --- examples --------------------------------------------------------------------------


class Unit(configparser.RawConfigParser):
    """systemd unit, parsed as an INI file; the last of repeated settings counts."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=False, delimiters=("=",), comment_prefixes=("#",))
        self.read_string(read(path))

    def optionxform(self, optionstr: str) -> str:
        return optionstr


of_every_unit = pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)


def test_units_exist_for_supervisor_and_node() -> None:
    assert [path.name for path in UNITS] == ["skipring-node.service", "skipring-supervisor.service"]


@of_every_unit
def test_command_of_a_unit_is_accepted_and_stores_data_in_its_state_directory(path: Path) -> None:
    service = Unit(path)["Service"]
    options = understood(service["ExecStart"])
    assert options["data"] == Path("/var/lib") / service["StateDirectory"]
    assert (service["StateDirectoryMode"], service["UMask"]) == ("0700", "0077")


@of_every_unit
def test_unit_drops_privileges_and_restarts(path: Path) -> None:
    unit = Unit(path)
    service = unit["Service"]
    assert service["User"] == "skipring"
    assert (service["NoNewPrivileges"], service["CapabilityBoundingSet"]) == ("true", "")
    assert service["ProtectSystem"] == "strict"
    assert (service["Restart"], unit["Unit"]["StartLimitIntervalSec"]) == ("always", "0")
    wait_s = process.LEAVING_S + (NodeSettings().drain_s if "node" in path.name else 0)
    assert float(service["TimeoutStopSec"]) > wait_s
    assert int(service["LimitNOFILE"]) > process.FILES + connection_limits.LINKS_MAX


def test_units_reload_certificates_and_settings_with_sighup() -> None:
    node, supervisor = (Unit(path)["Service"] for path in UNITS)
    assert node["ExecReload"] == supervisor["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert "--supervisor" not in node["ExecStart"]  # else there would be nothing to read again


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, each on one line."""
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", read(DOCKERFILE), flags=re.MULTILINE))
    split = (line.partition(" ") for line in lines.splitlines() if line)
    return [(name, rest) for name, _, rest in split]


def test_image_copies_only_existing_files() -> None:
    copied = [rest.split() for name, rest in instructions() if name == "COPY"]
    sources = [source for words in copied if "--from=build" not in words for source in words[:-1]]
    assert "requirements.lock" in sources
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_image_runs_unprivileged_with_a_health_check() -> None:
    last = dict(instructions())
    assert last["USER"] == "skipring"
    assert last["ENTRYPOINT"] == '["skipring"]'
    (metrics,) = re.findall(r"SKIPRING_METRICS=(\S+)", read(DOCKERFILE))
    assert f"http://{metrics}/healthz" in last["HEALTHCHECK"]
    (data,) = re.findall(r"SKIPRING_DATA=(\S+)", read(DOCKERFILE))
    assert last["VOLUME"] == data


# --- tables ----------------------------------------------------------------------------


def test_tables_of_metrics_equal_the_metrics_of_the_code() -> None:
    assert metrics_page() in read(PAGE), (
        "replace the tables by what this prints: python tools/metrics_table.py"
    )


def test_every_named_metric_exists() -> None:
    named = set(re.findall(r"skipring_[a-z_]+[a-z]", FENCED.sub("", read(PAGE))))
    assert named == METRICS.keys()


def rows(heading: str) -> str:
    """Return the first column of the first table after a heading."""
    table = read(PAGE).partition(f"\n{heading}\n")[2].partition("\n|---")[2].partition("\n\n")[0]
    return "\n".join(line.split("|")[1] for line in table.splitlines()[1:])


def quoted(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


PROCESSES = ("api", "net", "node", "observability", "rpc", "security")
RUNTIME = sorted(path for name in PROCESSES for path in PACKAGE.glob(f"{name}/*.py"))
LINKS = [
    path for path in RUNTIME if path.name != "metrics_server.py"
]  # which has connections of its own


def calls(modules: list[Path], *names: str) -> Iterator[ast.Call]:
    """Yield the calls of methods with these names."""
    for path in modules:
        for node in ast.walk(ast.parse(read(path))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", None) in names:
                yield node


def text_of(call: ast.Call, place: int) -> set[str]:
    """Return the literal texts in one argument of a call."""
    constants = (
        node
        for argument in call.args[place : place + 1]
        for node in ast.walk(argument)
        if isinstance(node, ast.Constant)
    )
    return {node.value for node in constants if isinstance(node.value, str)}


def reasons() -> set[str]:
    """Return the reasons in the code for dropping messages and connections."""
    found = {kind.__name__ for kind in WireError.__subclasses__()}
    for call in calls(LINKS, "_drop", "_refuse", "refuse", "_refuse_with_reason"):
        found |= text_of(call, 0)
    for call in calls(LINKS, "call_later", "_turn_away"):
        found |= text_of(call, 2)
    for call in calls(LINKS, "log_drop"):
        found |= text_of(call, 1)
    found |= set(counted_reasons()) | set(handshake_reasons()) | set(node_reasons())
    return found | set(distrust_reasons())


def distrust_reasons() -> Iterator[str]:
    """Yield the reasons for refusing certificates that an authority has signed."""
    for node in ast.walk(ast.parse(read(Path(credentials.__file__)))):
        match node:
            case ast.Call(func=ast.Name(id="Distrust"), args=[ast.Constant(value=str(reason)), _]):
                yield reason


def counted_reasons() -> Iterator[str]:
    """Yield the reasons counted directly: ``links.counts["..."] += 1``."""
    for path in LINKS:
        for node in ast.walk(ast.parse(read(path))):
            match node:
                case ast.AugAssign(
                    target=ast.Subscript(
                        value=ast.Attribute(
                            value=ast.Attribute(attr="links" | "_links" | "_transport" | "_board"),
                            attr="counts",
                        ),
                        slice=ast.Constant(value=str(reason)),
                    )
                ):
                    yield reason


def node_reasons() -> Iterator[str]:
    """Yield the reasons for which a node refuses a message."""
    for function in ast.walk(ast.parse(read(Path(host.__file__)))):
        if isinstance(function, ast.FunctionDef) and function.name == "_why_refused":
            for each in ast.walk(function):
                match each:
                    case ast.Return(value=ast.Constant(value=str(reason))):
                        yield reason


def handshake_reasons() -> Iterator[str]:
    """Yield the reasons that ``classify_tls_error`` returns for a failed handshake."""
    for node in ast.walk(ast.parse(read(Path(dial_failure.__file__)))):
        if isinstance(node, ast.FunctionDef) and node.name == "classify_tls_error":
            for each in ast.walk(node):
                match each:
                    case ast.Return(value=ast.Tuple(elts=[ast.Constant(value=str(reason)), _])):
                        yield reason


def test_table_lists_exactly_the_drop_reasons_of_the_code() -> None:
    wanted = reasons() - {readings.NOT_STORED}  # which has a metric of its own
    wanted |= {chaos_server.REFUSALS, chaos_server.SEVERED}
    assert quoted(rows("### Reasons of `skipring_dropped_total`")) == wanted


def limits() -> dict[str, str]:
    table = read(PAGE).partition("\n## Sizes and limits\n")[2].partition("\n\n**")[0]
    found = re.findall(r"^\| (.+?) \| (.+?) \| .* \|$", table, re.MULTILINE)
    return dict(found)


def test_documented_limits_equal_those_of_the_code() -> None:
    said = limits()
    assert said["payload; key; headers"] == (
        f"{core_limits.PAYLOAD_BYTES_MAX >> 10} KiB; {core_limits.KEY_BYTES_MAX >> 10} KiB; "
        f"{core_limits.HEADERS_MAX} and {core_limits.HEADERS_BYTES_MAX >> 10} KiB together"
    )
    assert said["inbound connections of a process"] == (
        f"{connection_limits.LINKS_MAX}, of which clients {connection_limits.CLIENT_LINKS_MAX}"
    )
    assert said["connections per certificate (without TLS: per name)"] == (
        f"{connection_limits.NAME_LINKS_MAX} of nodes and "
        f"{connection_limits.NAME_LINKS_MAX} of clients"
    )
    secured, plain = handshake_limits.SECURED, handshake_limits.PLAIN
    assert said["connections without a completed handshake"] == (
        f"{secured.at_once} (without TLS {plain.at_once})"
    )
    assert said["handshakes per second, of one source address; of all"] == (
        f"{secured.source_rate:.0f}; {secured.total_rate:.0f} "
        f"(without TLS {plain.source_rate:.0f}; {plain.total_rate:.0f})"
    )
    assert said["unfinished frames of all connections; of one"] == (
        f"{partial_frames.PARTIAL_BYTES_MAX >> 20} MiB; {partial_frames.FRAME_S:.0f} s"
    )
    assert said["data queued for one slow peer"].startswith(f"{peer.QUEUE_BYTES_MAX >> 20} MiB")
    assert said["data waiting for the disk"] == f"{group_commit.WAITING_BYTES_MAX >> 20} MiB"
    assert said["records that are sent and stored together (a batch)"] == (
        f"{batches.RECORDS_MAX}, and {batches.BATCH_BYTES_MAX >> 10} KiB"
    )
    assert said["delivery records of a node, per topic"] == (
        f"two files of {delivery_log.FILE_BYTES_MAX >> 20} MiB with `--data`, "
        f"else {delivery_log.IN_MEMORY_BYTES_MAX >> 20} MiB"
    )
    assert said["quarantine of a topic"] == (
        f"{topic_directory.QUARANTINE_BYTES_MAX >> 20} MiB, "
        f"and {topic_directory.QUARANTINE_FILES_MAX} files"
    )
    assert said["concurrent requests for metrics"].startswith(f"{metrics_server.REQUESTS_MAX}, ")
    assert said["topic; node's name"].startswith(f"{limits_module.TOPIC_BYTES_MAX} bytes; ")


def test_figures_of_the_page_match_the_code() -> None:
    text = " ".join(read(PAGE).split())
    assert f"names the version of the protocol, now {handshake.VERSION}" in text
    assert f"a file is full at {topic_log.SEGMENT_BYTES_MAX >> 20} MiB" in text
    assert f"up to {2 * store.FILES_MAX} for the log" in text
    assert f"waits up to {process.LEAVING_S:.0f} seconds for the supervisor" in text
    assert f"if the event loop answers within {metrics_server.ANSWER_S:.0f} s" in text
    assert f"random delays of up to {peer.BACK_OFF_MAX_S:.0f} seconds" in text
    assert f"report it after {failure_detector.UNHEARD_TICKS} silent ticks" in text
    late, lone = failure_detector.EVICTION_TICKS, failure_detector.LONE_EVICTION_TICKS
    assert f"evicts it {late} ticks after the first report, or {lone} if only one neighbour" in text
    assert f"at most {readings.TOPICS_MAX} topics of a process" in text
