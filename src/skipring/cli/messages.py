"""``skipring pub`` and ``skipring sub``: publishing in a topic, and reading it."""

from __future__ import annotations

import os
import sys
from typing import Final, Literal

import click

from skipring.cli.live_options import Access, access_options, tick_option

STDIN: Final = 0


@click.command()
@click.argument("topic")
@click.argument("text", required=False)
@access_options
@click.option("--volatile", is_flag=True, help="A member that only has a memory will do.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON also on a terminal.")
def pub(topic: str, text: str | None, access: Access, volatile: bool, as_json: bool) -> None:
    """Publish TEXT, or each line of the standard input, in a topic.

    Each line is there once a member has it on its disk; its id is printed then.
    """
    import json

    from skipring.runtime.addresses import check_supervisors
    from skipring.runtime.publishing import lines_of, publish_all
    from skipring.runtime.serving import run
    from skipring.wire.runtime_messages import Published

    def emit(published: Published) -> None:
        is_json = as_json or not sys.stdout.isatty()
        line = {"id": published.id.hex(), "offset": published.offset, "topic": topic}
        click.echo(json.dumps(line) if is_json else published.id.hex())

    credentials = access.credentials()
    supervisors = check_supervisors(access.supervisors, is_secured=credentials is not None)
    given = [os.fsencode(text)] if text is not None else lines_of(STDIN)
    publishing = publish_all(
        supervisors, topic, given, emit, credentials=credentials, is_volatile=volatile
    )
    run(publishing)


@click.command()
@click.argument("topic")
@access_options
@click.option("--start", type=click.Choice(["all", "new"]), default="all", show_default=True)
@click.option(
    "--listen", metavar="HOST:PORT", help="Where neighbours connect to us.  [default: any port]"
)
@click.option("--advertise", metavar="HOST:PORT", help="Where they find us, if not there.")
@click.option("--exit-when-synced", is_flag=True, help="End once the neighbours have no more.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON also on a terminal.")
@tick_option
def sub(
    *,
    topic: str,
    access: Access,
    start: Literal["all", "new"],
    listen: str | None,
    advertise: str | None,
    exit_when_synced: bool,
    is_json: bool,
    tick: float,
) -> None:
    """Join a topic, in memory only, and print every publication of it."""
    import json

    from skipring.runtime.addresses import check_supervisors
    from skipring.runtime.client import connect
    from skipring.runtime.following import as_json, follow
    from skipring.runtime.reading import Publication
    from skipring.runtime.serving import run

    def emit(publication: Publication) -> None:
        line = as_json(topic, publication)
        is_plain = sys.stdout.isatty() and not is_json
        click.echo(line.get("payload", "(bytes)") if is_plain else json.dumps(line))

    def complain(text: str) -> None:
        click.echo(text, err=True)

    check_supervisors(access.supervisors, is_secured=access.is_secured)
    connection = connect(
        f"skipring://{','.join(access.supervisors)}",
        tick_s=tick,
        listen=listen,
        advertise=advertise,
        ca=access.ca,
        cert=access.cert,
        key=access.key,
    )
    following = follow(
        connection,
        topic,
        emit,
        start=start,
        exit_when_synced=exit_when_synced,
        complain=complain,
    )
    run(following)
