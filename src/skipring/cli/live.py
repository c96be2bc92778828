"""``skipring supervisor`` and ``skipring node``: the processes of a live ring."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import click

DIRECTORY = click.Path(file_okay=False, path_type=Path)


_tick = click.option(
    "--tick", type=click.FloatRange(0.01, 3600), default=1.0, metavar="S", help="Interval."
)
_supervisors = click.option(
    "--supervisor",
    "supervisors",
    required=True,
    metavar="HOST:PORT[,...]",
    envvar="SKIPRING_SUPERVISOR",
    help="Or SKIPRING_SUPERVISOR.",
)


@click.command()
@click.option("--listen", required=True, metavar="HOST:PORT", help="Port 0 picks a free one.")
@click.option("--data", type=DIRECTORY, metavar="DIR", help="Keep the database here.")
@click.option("--allow-topic", multiple=True, metavar="GLOB", help="Serve only such topics.")
@_tick
def supervisor(listen: str, data: Path | None, allow_topic: tuple[str, ...], tick: float) -> None:
    """Let subscribers in and out; the first line printed says where it listens."""
    import asyncio

    from skipring.runtime.serving import serve_supervisor
    from skipring.runtime.settings import Settings

    settings = Settings(tick_s=tick, allowed_topics=allow_topic)
    asyncio.run(serve_supervisor(settings, listen, data, _announce))


@click.command()
@_supervisors
@click.option(
    "--topic", "topics", required=True, multiple=True, metavar="T", help="To subscribe to."
)
@click.option("--listen", required=True, metavar="HOST:PORT", help="Port 0 picks a free one.")
@click.option("--data", type=DIRECTORY, metavar="DIR", help="Keep publications here.")
@click.option("--name", metavar="ID", help="What the node is called.  [default: random]")
@_tick
def node(
    supervisors: str,
    topics: tuple[str, ...],
    listen: str,
    data: Path | None,
    name: str | None,
    tick: float,
) -> None:
    """Subscribe to topics, keep what is published and pass it on."""
    import asyncio

    from skipring.runtime.serving import serve_node
    from skipring.runtime.settings import Settings

    settings = Settings(supervisors=tuple(supervisors.split(",")), tick_s=tick)
    asyncio.run(serve_node(settings, listen, topics, name=name, data=data, announce=_announce))


@click.command()
@click.argument("topic")
@click.argument("text", required=False)
@_supervisors
@click.option("--json", "as_json", is_flag=True, help="Print JSON also on a terminal.")
def pub(topic: str, text: str | None, supervisors: str, as_json: bool) -> None:
    """Publish TEXT, or each line of the standard input, in a topic.

    Returns when a member has made everything durable; prints the ids.
    """
    import asyncio
    import json

    from skipring.runtime.serving import publish_texts

    texts = [text] if text is not None else sys.stdin.read().splitlines()
    published = asyncio.run(publish_texts(tuple(supervisors.split(",")), topic, texts))
    for each in published:
        is_json = as_json or not sys.stdout.isatty()
        line = {"id": each.id.hex(), "offset": each.offset, "topic": topic}
        click.echo(json.dumps(line) if is_json else each.id.hex())


@click.command()
@click.argument("topic")
@_supervisors
@click.option("--start", type=click.Choice(["all", "new"]), default="all", show_default=True)
@click.option("--exit-when-synced", is_flag=True, help="End once the neighbours have no more.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON also on a terminal.")
@_tick
def sub(
    topic: str,
    supervisors: str,
    start: Literal["all", "new"],
    exit_when_synced: bool,
    is_json: bool,
    tick: float,
) -> None:
    """Join a topic, in memory only, and print every publication of it."""
    import asyncio
    import json

    from skipring.runtime.following import as_json, follow
    from skipring.runtime.subscription import Publication

    def emit(publication: Publication) -> None:
        line = as_json(topic, publication)
        is_plain = sys.stdout.isatty() and not is_json
        click.echo(line.get("payload", "(bytes)") if is_plain else json.dumps(line))

    url = f"skipring://{supervisors}"
    asyncio.run(
        follow(url, topic, emit, start=start, tick_s=tick, exit_when_synced=exit_when_synced)
    )


def _announce(line: str) -> None:
    click.echo(line)  # flushed at once: others wait for it
