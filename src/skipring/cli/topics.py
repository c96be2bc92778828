"""``skipring topics``: the topics of a cluster, with members and publications."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from skipring.cli.options import access_options, json_option

if TYPE_CHECKING:
    from skipring.net.access import Access
    from skipring.view.overview import Overview


@click.command()
@access_options
@json_option("Print a line of JSON for each topic.")
def topics(access: Access, as_json: bool) -> None:
    """List topics with their members and publications, the largest first."""
    from skipring.node.process import run

    found = run(_overview(access))
    if as_json:
        for row in found.topics:
            fields = {
                "topic": row.topic,
                "members": row.members,
                "publications": row.publications,
                "healthy": row.healthy,
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


async def _overview(access: Access) -> Overview:
    from skipring.view.overview import Observer

    async with Observer(access.supervisors, access.credentials()) as observer:
        return await observer.overview()
