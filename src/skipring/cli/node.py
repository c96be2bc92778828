"""``skipring supervisor`` and ``skipring node``: the processes of a live ring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from skipring.cli.config_file import CONFIG_FILE, read_settings
from skipring.cli.options import (
    DIRECTORY,
    SUPERVISOR_LISTEN,
    Command,
    Exit,
    access_options,
    apply_options,
    duration_option,
    identity_options,
    option,
    tick_option,
)
from skipring.errors import InputError
from skipring.observability.logs import LEVELS

if TYPE_CHECKING:
    from skipring.net.access import Access
    from skipring.node.process import ProcessPaths
    from skipring.node.settings import NodeSettings

NODE_LISTEN: Final = "127.0.0.1:0"

_DATA: Final = "Data directory.  [default: none; data stays in memory]"


def _process_options(listen: str) -> Callable[[Command], Command]:
    """Add the options of a process; ``listen`` is its default address."""
    where, level = "HOST:PORT", click.Choice(LEVELS)
    text, port = "Log to stderr: text on a terminal, else JSON.", "port 0 picks a free port."
    return apply_options(
        option("--listen", f"Address to listen on; {port}", where, default=listen, env=True),
        option("--advertise", "Address that peers dial.  [default: as --listen]", where, env=True),
        option("--data", _DATA, "DIR", type=DIRECTORY, env=True),
        option("--metrics", "Serve /metrics, /healthz, /livez and /readyz.", where, env=True),
        option("--log-level", text, type=level, default="info", env=True),
        option("--chaos", "Accept faults from skipring chaos.", is_flag=True),
        tick_option(),
    )


@click.command()
@identity_options
@_process_options(SUPERVISOR_LISTEN)
@option(
    "--allow-topic",
    "Serve only topics that match; may be repeated.",
    "GLOB",
    multiple=True,
    env=True,
)
def supervisor(access: Access, allow_topic: tuple[str, ...], **options: Any) -> int:  # noqa: ANN401
    """Run a supervisor; the first line of output is its address."""
    from skipring.node.process import run, serve_supervisor

    settings, place = _settings(access, {"allowed_topics": allow_topic}, **options)
    return Exit.after(run(serve_supervisor(settings, place, _announce)))


@click.command()
@access_options
@_process_options(NODE_LISTEN)
@option(
    *("--topic", "Topic to subscribe to; may be repeated.", "T"),
    into="topics",
    required=True,
    multiple=True,
    env=True,
)
@option("--name", "Name of the node.  [default: as its certificate, or random]", "ID", env=True)
@option(
    "--clock-offset",
    "With --chaos: add SECONDS to the clock of this machine.",
    "SECONDS",
    type=float,
    default=0.0,
)
@duration_option("--policy-delay", "Time until a new policy takes effect.", "10m", env=True)
@duration_option("--drain", "On stop, wait at most TIME for the handover.", "30s", env=True)
def node(
    access: Access,
    topics: tuple[str, ...],
    name: str | None,
    drain: float,
    policy_delay: float,
    clock_offset: float,
    **options: Any,  # noqa: ANN401
) -> int:
    """Run a node that stores and forwards publications.

    On SIGTERM or SIGINT the node hands its publications over to another member; a second signal
    ends the wait. The exit status is 1 if publications were not handed over.

    With --config, SIGHUP reloads the list of supervisors from the file.
    """
    from skipring.node.process import run, serve_node

    if clock_offset and not options["chaos"]:
        raise InputError("it needs --chaos", parameter="clock_offset")
    more = {"drain_s": drain, "policy_delay_s": policy_delay}
    more |= {"clock_offset_us": round(clock_offset * 1_000_000)}
    settings, place = _settings(access, more, **options)
    again = _supervisors_reader(click.get_current_context(), access)
    stop = run(
        serve_node(settings, place, topics, name=name, announce=_announce, supervisors_again=again)
    )
    return Exit.NO if stop.not_handed_over else Exit.after(stop.signal)


def _settings(
    access: Access,
    more: Mapping[str, Any],
    *,
    listen: str,
    advertise: str | None,
    data: Path | None,
    metrics: str | None,
    log_level: str,
    chaos: bool,
    tick: float,
) -> tuple[NodeSettings, ProcessPaths]:
    """Configure logs; check the options of a process and return its settings and paths."""
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
        **more,
    )
    place = ProcessPaths(listen=parse_address(listen, "listen"), data=data, metrics=metrics)
    return settings, place


def _supervisors_reader(
    context: click.Context, access: Access
) -> Callable[[], tuple[str, ...]] | None:
    """Return a function that reloads the list of supervisors; None if it is not from a file."""
    from skipring.net.addresses import parse_supervisors

    source = context.get_parameter_source("supervisors")
    path = context.meta.get(CONFIG_FILE)
    if path is None or source is not click.core.ParameterSource.DEFAULT_MAP:
        return None

    def read() -> tuple[str, ...]:
        listed = read_settings(context, path).get("supervisors", "")
        return parse_supervisors(listed, is_secured=access.is_secured)

    return read


def _announce(line: str) -> None:
    click.echo(line)  # flushed at once: other programs wait for it
