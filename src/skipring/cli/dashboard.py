"""``skipring dashboard``: the ring in the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from skipring.cli.options import access_options, require_extra

if TYPE_CHECKING:
    from skipring.net.access import Access
    from skipring.web.server import Dashboard


@click.command()
@access_options
@click.option("--topic", metavar="T", help="Topic to show first.  [default: the largest]")
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    help="Address of the web server; port 0 picks a free one.",
)
@click.option("--chaos", is_flag=True, help="Show buttons that inject faults.")
def dashboard(access: Access, topic: str | None, listen: str, chaos: bool) -> None:
    """Show rings in the browser: their state, their repair and their deliveries.

    Each printed address works once and admits the browser that opens it.
    """
    require_extra("dashboard")
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
