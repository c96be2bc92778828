"""``skipring dashboard``: the ring in the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from skipring.cli.live_options import access_options

if TYPE_CHECKING:
    from skipring.net.access import Access
    from skipring.web.server import Dashboard


@click.command()
@access_options
@click.option("--topic", metavar="T", help="To be shown first.  [default: the largest]")
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    help="On this machine; port 0 picks a free one.",
)
@click.option("--chaos", is_flag=True, help="Show buttons that damage what was started with it.")
def dashboard(access: Access, topic: str | None, listen: str, chaos: bool) -> None:
    """Show rings in the browser: how they stand, heal and spread what is published.

    Each address that is printed works once, and gives the browser that opens it access.
    """
    from skipring.net.addresses import split_address
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
        host=host,
        port=port,
        on_entered=announce_another,
    )
    run(_show(shown))


async def _show(shown: Dashboard) -> None:
    async with shown:
        click.echo(f"dashboard {shown.url}")
        await shown.ended()
