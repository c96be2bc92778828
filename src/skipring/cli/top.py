"""``skipring top``: all topics, nodes and supervisors, refreshed."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Final

import click

from skipring.cli.live_options import SECONDS, access_options

if TYPE_CHECKING:
    from skipring.net.access import Access
    from skipring.view.overview import Overview

KILLED: Final = 128  # plus the number of the signal: exit status of a stopped process


@click.command()
@access_options
@click.option(
    "--refresh",
    type=SECONDS,
    default=1.0,
    metavar="S",
    help="Seconds between two looks.  [default: 1]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON once.")
def top(access: Access, refresh: float, as_json: bool) -> int | None:
    """Watch all topics, their nodes and the supervisors.

    On a pipe, and with --json, everything is printed once. Exit status: 4 no supervisor answers.
    """
    from skipring.node.process import run

    if as_json:
        click.echo(json.dumps(_fields(run(_look(access, refresh))), sort_keys=True))
        return None
    if not _is_terminal():
        from skipring.cli.top_rows import print_overview

        print_overview(run(_look(access, refresh)))
        return None
    return run(_watch(access, refresh))


def _is_terminal() -> bool:
    """Return True if stdin, stdout and stderr are terminals that can paint."""
    can_paint = os.environ.get("TERM") not in (None, "", "dumb", "unknown")
    return can_paint and all(each.isatty() for each in (sys.stdin, sys.stdout, sys.stderr))


async def _look(access: Access, refresh_s: float) -> Overview:
    """Return an overview; rates need two polls."""
    import asyncio

    from skipring.view.overview import Observer

    async with Observer(access.supervisors, access.credentials()) as observer:
        await observer.overview()
        await asyncio.sleep(refresh_s)
        return await observer.overview()


async def _watch(access: Access, refresh_s: float) -> int | None:
    import asyncio

    from skipring.cli.top_app import TopApp
    from skipring.view.overview import Observer

    async with Observer(access.supervisors, access.credentials()) as observer:
        first = await observer.overview()
        app = TopApp(observer, first, refresh_s, sys.stdout.encoding)
        for number in (signal.SIGINT, signal.SIGTERM):  # restore the terminal on a signal too
            asyncio.get_running_loop().add_signal_handler(number, app.exit, KILLED + number)
        return await app.run_async()


def _fields(overview: Overview) -> dict[str, object]:
    from msgspec import to_builtins

    from skipring.view.overview import REQUESTS_BOUND

    topics = [to_builtins(topic) | {"legitimate": topic.legitimate} for topic in overview.topics]
    fields: dict[str, object] = to_builtins(overview)
    return fields | {"topics": topics, "bound": REQUESTS_BOUND}
