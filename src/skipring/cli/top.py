"""``skipring topics``, ``top`` and ``dashboard``: all topics, nodes and supervisors."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from skipring.cli.options import SECONDS, access_options, json_option, option, require_extra

if TYPE_CHECKING:
    import asyncio

    from skipring.cli.output.top import TopScreen
    from skipring.net.access import Access
    from skipring.view.overview import Overview
    from skipring.web.server import Dashboard

KILLED: Final = 128  # plus the number of the signal: exit status of a stopped process


@click.command()
@access_options
@json_option("Print a line of JSON for each topic.")
def topics(access: Access, as_json: bool) -> None:
    """List all topics with their members and publications."""
    from skipring.node.process import run

    found = run(_poll(access))
    if as_json:
        for row in found.topics:
            fields = {
                "topic": row.topic,
                "members": row.members,
                "publications": row.publications,
                "healthy": row.is_healthy,
            }
            click.echo(json.dumps(fields))
        return
    if not found.topics:
        click.echo("no topics; a node creates one: skipring node --topic NAME")
        return
    width = max(len("TOPIC"), *(len(row.topic) for row in found.topics))
    click.echo(f"{'TOPIC':<{width}}  MEMBERS  PUBLICATIONS")
    for row in found.topics:
        click.echo(f"{row.topic:<{width}}  {row.members:>7}  {row.publications:>12,}")
    if found.unlisted:
        click.echo(f"and {found.unlisted} smaller topics")


@click.command()
@access_options
@option("--refresh", "Seconds between two polls.", "S", type=SECONDS, default=1.0)
@json_option("Print JSON and exit.")
def top(access: Access, refresh: float, as_json: bool) -> int | None:
    """Watch all topics, their nodes and the supervisors.

    On a pipe, and with --json, the command prints once and exits. Exit status: 4 no supervisor
    answers.
    """
    from skipring.node.process import run

    if not as_json and _is_terminal():
        return run(_watch(access, refresh))
    overview = run(_poll(access, refresh))
    if as_json:
        click.echo(json.dumps(_fields(overview), sort_keys=True))
    else:
        from skipring.cli.output.tables import wide_console
        from skipring.cli.output.top import overview_view
        from skipring.view.text import glyphs_for

        console = wide_console()
        console.print(overview_view(overview, glyphs_for(console.encoding)))
    return None


def _is_terminal() -> bool:
    """Return True if stdin, stdout and stderr are terminals that support repainting."""
    can_paint = os.environ.get("TERM") not in (None, "", "dumb", "unknown")
    return can_paint and all(each.isatty() for each in (sys.stdin, sys.stdout, sys.stderr))


async def _poll(access: Access, rates_s: float | None = None) -> Overview:
    """Return an overview; rates need a second poll after some seconds."""
    import asyncio

    from skipring.view.overview import Observer

    async with Observer(access.supervisors, access.credentials()) as observer:
        overview = await observer.overview()
        if rates_s is None:
            return overview
        await asyncio.sleep(rates_s)
        return await observer.overview()


def _fields(overview: Overview) -> dict[str, object]:
    from msgspec import to_builtins

    from skipring.view.overview import REQUESTS_BOUND

    topics = [to_builtins(topic) | {"legitimate": topic.is_legitimate} for topic in overview.topics]
    fields: dict[str, object] = to_builtins(overview)
    return fields | {"topics": topics, "bound": REQUESTS_BOUND}


# --- terminal --------------------------------------------------------------------------

_KEYS: Final = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\t": "tab",
    "\r": "enter",
    "\n": "enter",
    "\x1b": "escape",
    "\x7f": "escape",
    "\x03": "ctrl-c",
}
_KEY: Final = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)


def parse_keys(text: str) -> list[str]:
    """Return the names of the keys in the input of a terminal."""
    return [_KEYS.get(key, key) for key in _KEY.findall(text)]


@contextmanager
def _keys(press: Callable[[str], None], pressed: asyncio.Event) -> Iterator[None]:
    """Read single keys from stdin, without echo; Ctrl-C is read as a key, so it is not lost."""
    import asyncio

    stdin, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(stdin)
    changed = termios.tcgetattr(stdin)
    changed[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)

    def on_input() -> None:
        for key in parse_keys(os.read(stdin, 1024).decode(errors="replace")):
            press(key)
        pressed.set()

    termios.tcsetattr(stdin, termios.TCSADRAIN, changed)
    loop.add_reader(stdin, on_input)
    try:
        yield
    finally:
        loop.remove_reader(stdin)
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


async def _watch(access: Access, refresh_s: float) -> int | None:
    """Poll and repaint until a key or a signal ends the command; return the exit status."""
    import asyncio

    from rich.console import Console
    from rich.live import Live

    from skipring.cli.output.ring import on_resize
    from skipring.cli.output.top import TopScreen
    from skipring.view.overview import Observer
    from skipring.view.panel import RingPanel
    from skipring.view.text import glyphs_for

    console, changed = Console(highlight=False), asyncio.Event()
    async with Observer(access.supervisors, access.credentials()) as observer:
        screen = TopScreen(observer, await observer.overview(), glyphs_for(console.encoding))

        def stop(number: int) -> None:
            screen.quit(KILLED + number)
            changed.set()

        for number in (signal.SIGINT, signal.SIGTERM):  # restore the terminal on a signal too
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        polling = asyncio.create_task(_refresh(screen, refresh_s, changed))
        polling.add_done_callback(lambda _: changed.set())
        live = Live(console=console, auto_refresh=False, screen=True)
        with on_resize(changed), _keys(screen.press, changed), live:
            while screen.status is None and not polling.done():
                live.update(screen.painted(RingPanel.of(console)), refresh=True)
                await changed.wait()
                changed.clear()
        if polling.done():
            polling.result()  # raises the error of a bug
        polling.cancel()
    return screen.status


async def _refresh(screen: TopScreen, refresh_s: float, changed: asyncio.Event) -> None:
    from skipring.cli.output.ring import wait_event

    while True:
        await wait_event(screen.due, refresh_s)
        await screen.refresh()
        changed.set()


# --- dashboard --------------------------------------------------------------------------


@click.command()
@access_options
@option("--topic", "Topic to show first.  [default: the largest]", "T")
@option(
    "--listen",
    "Address of the web server; port 0 picks a free port.",
    "HOST:PORT",
    default="127.0.0.1:0",
)
@option("--chaos", "Show buttons that inject faults.", is_flag=True)
@option(
    "--pipeline",
    "Metrics of a pipeline, to show its lag; may be repeated.",
    "HOST:PORT",
    into="pipelines",
    multiple=True,
)
def dashboard(
    access: Access, topic: str | None, listen: str, *, chaos: bool, pipelines: tuple[str, ...]
) -> None:
    """Show live rings, repair and deliveries in a browser.

    Each printed address works once and admits the browser that opens it.
    """
    require_extra("dashboard")
    from skipring.net.addresses import parse_address, split_address
    from skipring.node.process import run
    from skipring.web.server import Dashboard

    host, port = split_address(listen, "listen", is_secured=True)

    def announce_another() -> None:
        click.echo(f"opened; for another browser: {shown.url}")

    shown = Dashboard(
        access.supervisors,
        access.credentials(),
        topic=topic,
        chaos=chaos,
        pipelines=[parse_address(each, "pipeline") for each in pipelines],
        host=host,
        port=port,
        on_entered=announce_another,
    )
    run(_show(shown))


async def _show(shown: Dashboard) -> None:
    async with shown:
        click.echo(f"dashboard {shown.url}")
        await shown.ended()
