"""``skipring dev`` and ``demo``: a ring on this machine for development, and a guided tour."""

from __future__ import annotations

import shlex
import signal
import sys
import tempfile
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from skipring.cli.options import (
    DIRECTORY,
    FILE,
    SUPERVISOR_LISTEN,
    Exit,
    has_extra,
    json_option,
    option,
    require_extra,
    tick_option,
)
from skipring.errors import InputError, SkipringError
from skipring.observability.logs import LEVELS

if TYPE_CHECKING:
    import asyncio

    from skipring.admin.dev_cluster import Child, DevCluster
    from skipring.lab.demo.output import DemoOutput

POLL_S: Final = 0.1
READY_S: Final = 60.0  # Guess: a ring of three forms in a second, on a loaded machine in ten.
NODES_MAX: Final = 64
REPORT: Final = "skipring-demo.html"
# Guess: several times the duration of a chapter, because other programs use the machine too.
DEADLINE_S: Final = 45.0
DEADLINE_ROUNDS: Final = 200


@click.command()
@option(
    "--data", "Data directory.  [default: temporary, deleted at the end]", "DIR", type=DIRECTORY
)
@option(
    *("--topic", "Topic of all nodes; may be repeated.", "T"),
    into="topics",
    multiple=True,
    default=["news"],
)
@option("--nodes", "Number of nodes.", type=click.IntRange(1, NODES_MAX), default=3)
@click.option(
    "--listen",
    default=SUPERVISOR_LISTEN,
    show_default=True,
    metavar="HOST:PORT",
    envvar="SKIPRING_SUPERVISOR",
    help="Address of the supervisor, or SKIPRING_SUPERVISOR.",
)
@tick_option(0.25, env=False)
@click.option("--chaos", is_flag=True, help="Accept faults from skipring chaos.")
@click.option(
    "--dashboard/--no-dashboard", default=None, help="Serve the dashboard.  [default: if installed]"
)
@click.option("--log-level", type=click.Choice(LEVELS), default="warning", show_default=True)
def dev(
    *,
    data: Path | None,
    topics: tuple[str, ...],
    nodes: int,
    listen: str,
    tick: float,
    chaos: bool,
    dashboard: bool | None,
    log_level: str,
) -> int:
    """Run a local supervisor, nodes and dashboard until Ctrl-C."""
    from skipring.admin.dev_cluster import DevCluster, DevSettings
    from skipring.net.addresses import parse_address, split_address
    from skipring.node.process import check_topic_name, run

    if dashboard:
        require_extra("dashboard")
    if "," in listen:
        raise InputError("dev runs one supervisor; give one address", parameter="listen")
    split_address(listen, "listen", is_secured=False)
    for topic in topics:
        check_topic_name(topic)
    with tempfile.TemporaryDirectory(prefix="skipring-dev-") as temporary:
        settings = DevSettings(
            listen=parse_address(listen, "listen"),
            data=(data or Path(temporary)).resolve(),
            topics=topics,
            nodes=nodes,
            tick_s=tick,
            is_chaotic=chaos,
            log_level=log_level,
        )
        with DevCluster(settings) as cluster:
            return run(_watch(cluster, has_dashboard=dashboard, is_temporary=data is None))


async def _watch(cluster: DevCluster, *, has_dashboard: bool | None, is_temporary: bool) -> int:
    """Print the running processes, then report processes that end, until a signal."""
    import asyncio

    from skipring.node.process import stop_signal

    stop = stop_signal(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    async with AsyncExitStack() as stack:
        url = await _dashboard(cluster, stack, has_dashboard)
        ready = asyncio.create_task(_ready(cluster))
        waiting: list[asyncio.Future[Any]] = [stop, ready]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()
        ready.cancel()
        if not stop.done():
            _print_summary(cluster, url, is_temporary=is_temporary)
        while not stop.done():
            for child in cluster.reap():
                _report_end(cluster, child)
            if not cluster.children:
                click.echo("all processes have exited", err=True)
                return Exit.NO
            await asyncio.wait([stop], timeout=POLL_S)
        await asyncio.to_thread(cluster.stop)
    return Exit.after(stop.result())


async def _ready(cluster: DevCluster) -> None:
    """Wait until every topic is healthy, at most READY_S for each."""
    from skipring.admin.diagnosis import wait_healthy
    from skipring.admin.inspector import open_inspector

    for topic in cluster.settings.topics:
        async with open_inspector([cluster.supervisor], topic) as inspector:
            await wait_healthy(inspector, READY_S, members_min=cluster.settings.nodes)


async def _dashboard(cluster: DevCluster, stack: AsyncExitStack, wanted: bool | None) -> str | None:
    if wanted is False or (wanted is None and not has_extra("dashboard")):
        return None
    from skipring.web.server import Dashboard

    shown = Dashboard(
        [cluster.supervisor], topic=cluster.settings.topics[0], chaos=cluster.settings.is_chaotic
    )
    return (await stack.enter_async_context(shown)).url


def _print_summary(cluster: DevCluster, url: str | None, *, is_temporary: bool) -> None:
    from skipring.net.access import Access

    settings = cluster.settings
    width = max(len(each.name) for each in cluster.children.values())
    for each in cluster.children.values():
        click.echo(f"  {each.name:<{width}}  {each.address:<21}  pid {each.process.pid}")
    if url is not None:
        click.echo(f"  {'dashboard':<{width}}  {url}")
    end = ", deleted at the end" if is_temporary else ""
    click.echo(f"  {'data':<{width}}  {settings.data}{end}")
    found: tuple[str, ...] = ()
    with suppress(SkipringError):  # unreadable contexts
        found = Access.resolve().supervisors  # the address that other commands use in this shell
    where = "" if found == (cluster.supervisor,) else f" --supervisor {cluster.supervisor}"
    topic = shlex.quote(settings.topics[0])
    click.echo(f"\nready; in another terminal:\n  skipring sub {topic}{where}")
    click.echo(f'  skipring pub {topic} "hello"{where}\nCtrl-C stops everything.')


def _report_end(cluster: DevCluster, child: Child) -> None:
    """Report a process that has ended, and how to start it again."""
    settings, status = cluster.settings, child.process.exitcode or 0
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended ({status})"
    tick = f"--tick {settings.tick_s:g} --data {shlex.quote(str(child.data))}"
    chaos = " --chaos" if settings.is_chaotic else ""
    if child.name == "supervisor":
        command = f"supervisor --listen {child.address} {tick}{chaos}"
    else:
        names = " ".join(f"--topic {shlex.quote(topic)}" for topic in settings.topics)
        supervisor = cluster.children.get("supervisor")
        where = supervisor.address if supervisor is not None else settings.listen
        command = f"node --name {child.name} {names} --supervisor {where} {tick}{chaos}"
    click.echo(f"{child.name} {how}; the others continue. Start it again with:", err=True)
    click.echo(f"  skipring {command}", err=True)


# --- demo ----------------------------------------------------------------------------


@click.command()
@option("--headless", "Print plain text, without pauses and repainting.", is_flag=True)
@option("--assert", "Exit with 3 if a check fails.", into="must_heal", is_flag=True)
@option("--no-spark", "Skip the last chapter, on Spark.", is_flag=True)
@option("--stay", "Keep the ring running until Ctrl-C.", into="stays", is_flag=True)
@option("--n", "Number of nodes.", type=click.IntRange(4, 64), default=16)
@option("--seed", "Random seed.", type=click.IntRange(0, 2**32 - 1), default=0)
@option("--tick", "Seconds between two ticks.", "S", type=click.FloatRange(0.05, 10), default=0.25)
@option("--pace", "Seconds that each page stays.", "S", type=click.FloatRange(0, 60), default=1.0)
@option(
    "--deadline",
    "Time limit of a chapter.  [default: 45 s, or 200 rounds]",
    "S",
    type=click.FloatRange(1, 3600),
)
@option("--report", "Report of the Spark chapter.", type=FILE, default=REPORT)
@json_option("Print the scoreboard as JSON, and nothing else.")
def demo(
    *,
    headless: bool,
    must_heal: bool,
    no_spark: bool,
    stays: bool,
    n: int,
    seed: int,
    tick: float,
    pace: float,
    deadline: float | None,
    report: Path,
    as_json: bool,
) -> int:
    """Show a ring of processes that heals after repeated damage.

    The first line is the address of the dashboard, which shows the same in a browser, if the
    extra dashboard is installed. On a pipe the output is as with --headless. Exit
    status: 0 done, 3 with --assert if a check fails, 130 interrupted. The command leaves no process
    and no data behind.
    """
    from skipring.lab.demo.runner import check_report, run_demo
    from skipring.lab.demo.script import DemoPlan

    if not no_spark:
        check_report(report)
    plan = DemoPlan(
        n=n,
        seed=seed,
        tick_s=tick,
        deadline_s=deadline or max(DEADLINE_S, DEADLINE_ROUNDS * tick),
        report=None if no_spark else report.absolute(),
        has_dashboard=has_extra("dashboard"),
    )
    end = run_demo(plan, _demo_output(headless, pace, as_json), stays=stays)
    return Exit.NOT_CONVERGED if must_heal and not end.is_good else Exit.YES


def _demo_output(headless: bool, pace: float, as_json: bool) -> DemoOutput:
    from rich.console import Console

    from skipring.lab.demo.output import JsonOutput, LiveOutput, PlainOutput, can_repaint

    console = Console(highlight=False)
    if as_json:
        return JsonOutput(click.echo)
    if not headless and sys.stdout.isatty() and can_repaint(console):
        return LiveOutput(console, pace)
    return PlainOutput(Console(highlight=False, color_system=None, force_terminal=False))
