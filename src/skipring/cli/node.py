"""``skipring supervisor`` and ``skipring node``: the processes of a live ring."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from skipring.cli.config_file import CONFIG_FILE, read_settings
from skipring.cli.live_options import (
    INTERRUPTED,
    LEVELS,
    SUPERVISOR_LISTEN,
    access_options,
    duration,
    identity_options,
    tick_option,
)

if TYPE_CHECKING:
    from skipring.net.access import Access

DIRECTORY: Final = click.Path(file_okay=False, path_type=Path)
NODE_LISTEN: Final = "127.0.0.1:0"
NOT_HANDED_OVER: Final = 1  # exit status

Command = Callable[..., Any]

_PROCESS_OPTIONS: Final = (
    click.option(
        "--advertise",
        metavar="HOST:PORT",
        envvar="SKIPRING_ADVERTISE",
        help="The address that peers dial.  [default: as --listen]",
    ),
    click.option(
        "--data", type=DIRECTORY, metavar="DIR", envvar="SKIPRING_DATA", help="Store data here."
    ),
    click.option(
        "--metrics",
        metavar="HOST:PORT",
        envvar="SKIPRING_METRICS",
        help="Serve /metrics, /healthz and /readyz.",
    ),
    click.option(
        "--log-level",
        type=click.Choice(LEVELS),
        default="info",
        show_default=True,
        envvar="SKIPRING_LOG_LEVEL",
        help="Log to stderr: text on a terminal, else JSON.",
    ),
    click.option("--chaos", is_flag=True, help="Let skipring chaos damage this process."),
    tick_option,
)


def _process_options(listen: str) -> Callable[[Command], Command]:
    """Add the options of a process; ``listen`` is its default address."""
    listen_option = click.option(
        "--listen",
        default=listen,
        show_default=True,
        metavar="HOST:PORT",
        envvar="SKIPRING_LISTEN",
        help="Port 0 picks a free one.",
    )

    def add(command: Command) -> Command:
        for option in reversed((listen_option, *_PROCESS_OPTIONS)):
            command = option(command)
        return command

    return add


@click.command()
@identity_options
@_process_options(SUPERVISOR_LISTEN)
@click.option(
    "--allow-topic",
    multiple=True,
    metavar="GLOB",
    envvar="SKIPRING_ALLOW_TOPIC",
    help="Serve only such topics.",
)
def supervisor(access: Access, allow_topic: tuple[str, ...], **options: Any) -> int:  # noqa: ANN401
    """Let subscribers in and out; the first line printed says where it listens."""
    from msgspec.structs import replace

    from skipring.node.process import run, serve_supervisor

    settings, place = _prepared(access, **options)
    settings = replace(settings, allowed_topics=allow_topic)
    return _status_of(run(serve_supervisor(settings, place, _announce)))


@click.command()
@access_options
@_process_options(NODE_LISTEN)
@click.option(
    "--topic",
    "topics",
    required=True,
    multiple=True,
    metavar="T",
    envvar="SKIPRING_TOPIC",
    help="To subscribe to.",
)
@click.option(
    "--name",
    metavar="ID",
    envvar="SKIPRING_NAME",
    help="What the node is called.  [default: as its certificate, or random]",
)
@click.option(
    "--drain",
    callback=duration,
    default="30s",
    show_default=True,
    metavar="TIME",
    envvar="SKIPRING_DRAIN",
    help="On stop, wait so long for another member to confirm everything.",
)
def node(
    access: Access,
    topics: tuple[str, ...],
    name: str | None,
    drain: float,
    **options: Any,  # noqa: ANN401
) -> int:
    """Subscribe to topics, keep what is published and pass it on.

    On SIGTERM or SIGINT the node hands over what it holds to another member; a second signal ends
    the wait. The exit status is 1 if publications were not handed over.

    With --config, SIGHUP reads the list of supervisors in the file again.
    """
    from msgspec.structs import replace

    from skipring.node.process import run, serve_node

    settings, place = _prepared(access, **options)
    serving = serve_node(
        replace(settings, drain_s=drain),
        place,
        topics,
        name=name,
        announce=_announce,
        supervisors_again=_reader_of_supervisors(click.get_current_context(), access),
    )
    stop = run(serving)
    return NOT_HANDED_OVER if stop.not_handed_over else _status_of(stop.signal)


def _prepared(
    access: Access,
    *,
    listen: str,
    advertise: str | None,
    data: Path | None,
    metrics: str | None,
    log_level: str,
    chaos: bool,
    tick: float,
) -> tuple[Any, Any]:
    """Check the options of a process and return them as settings; start to log."""
    from skipring.net.addresses import parse_address, split_address
    from skipring.node.process import ProcessPaths
    from skipring.node.settings import ANSWER_S, NodeSettings
    from skipring.observability.logs import configure_logs

    configure_logs(log_level)
    credentials = access.credentials()
    if advertise is not None:
        split_address(advertise, "advertise", is_secured=credentials is not None)
        advertise = parse_address(advertise, "advertise")
    settings = NodeSettings(
        supervisors=access.supervisors,
        tick_s=tick,
        answer_s=ANSWER_S,
        advertised=advertise,
        credentials=credentials,
        is_chaotic=chaos,
    )
    place = ProcessPaths(listen=parse_address(listen, "listen"), data=data, metrics=metrics)
    return settings, place


def _reader_of_supervisors(
    context: click.Context, access: Access
) -> Callable[[], tuple[str, ...]] | None:
    """Return a function that rereads the list of supervisors; None if it is not from a file."""
    from skipring.net.addresses import parse_supervisors

    source = context.get_parameter_source("supervisors")
    path = context.meta.get(CONFIG_FILE)
    if path is None or source is not click.core.ParameterSource.DEFAULT_MAP:
        return None

    def read() -> tuple[str, ...]:
        listed = read_settings(context, path).get("supervisors", "")
        return parse_supervisors(listed, is_secured=access.is_secured)

    return read


def _status_of(stopped_by: signal.Signals) -> int:
    """Return the exit status: INTERRUPTED after SIGINT, 0 after a request to stop."""
    return INTERRUPTED if stopped_by is signal.SIGINT else 0


def _announce(line: str) -> None:
    click.echo(line)  # flushed at once: other programs wait for it
