"""``skipring ring``: the ring of a live topic, as a picture or as a world file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from skipring.cli.options import access_options, json_option, open_inspector
from skipring.errors import InputError

if TYPE_CHECKING:
    from skipring.admin.inspector import Inspection, TopicContents
    from skipring.net.access import Access


@click.command()
@click.argument("topic")
@access_options
@json_option("Print a world file.")
@click.option("--payloads", is_flag=True, help="With --json: include the payloads.")
@click.option("--watch", is_flag=True, help="Repaint until interrupted.")
def ring(topic: str, access: Access, as_json: bool, payloads: bool, watch: bool) -> None:
    """Show the ring of a topic, or print its state as a world file.

    A simulation can start from a world file (``skipring simulate --load``). A topic without
    members has an empty ring.
    """
    if payloads and not as_json:
        raise InputError("--payloads adds to a world file; give --json as well")
    if watch and as_json:
        raise InputError("--watch paints a picture; leave out --json, or --watch")
    from skipring.admin.inspector import TopicContents
    from skipring.node.process import run

    if watch:
        run(_watch(topic, access))
    elif as_json:
        from skipring.world.format import render_world

        contents = TopicContents.PAYLOADS if payloads else TopicContents.IDS
        inspection = run(_inspect(topic, access, contents))
        click.echo(render_world(inspection.snapshot), nl=False)
    else:
        from skipring.cli.ring_output import print_ring

        print_ring(run(_inspect(topic, access, TopicContents.NOTHING)))


async def _inspect(topic: str, access: Access, contents: TopicContents) -> Inspection:
    async with open_inspector(topic, access) as inspector:
        return await inspector.inspect(contents)


async def _watch(topic: str, access: Access) -> None:
    from skipring.cli.ring_output import PATIENCE_S, watch_ring

    async with open_inspector(topic, access, patience_s=PATIENCE_S) as inspector:
        await watch_ring(inspector)
