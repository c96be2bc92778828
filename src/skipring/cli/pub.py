"""``skipring pub``: publish through a member, without joining the ring."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from skipring.cli.options import access_options, duration, json_option

if TYPE_CHECKING:
    from skipring.net.access import Access
    from skipring.wire.rpc import PublishAck

STDIN: Final = 0
WAIT: Final = "10s"


@click.command()
@click.argument("topic")
@click.argument("text", required=False)
@access_options
@click.option("--key", help="Key of each publication.")
@click.option("--header", "headers", multiple=True, metavar="K=V", help="Header; may be repeated.")
@click.option(
    "--from-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Publish the content of FILE as one publication.",
)
@click.option(
    "--count",
    type=click.IntRange(1),
    metavar="N",
    help="Publish TEXT or FILE N times.",
)
@click.option(
    "--wait",
    callback=duration,
    default=WAIT,
    show_default=True,
    metavar="TIME",
    help="Wait for a member.",
)
@click.option("--volatile", is_flag=True, help="Accept a member that stores in memory only.")
@json_option()
def pub(
    *,
    topic: str,
    text: str | None,
    access: Access,
    key: str | None,
    headers: tuple[str, ...],
    from_file: Path | None,
    count: int | None,
    wait: float,
    volatile: bool,
    as_json: bool,
) -> None:
    """Publish TEXT, or each line of standard input, in a topic.

    The command prints the id of each publication once a member has it on disk.
    """
    from skipring.errors import VolatileMembersError
    from skipring.node.process import run
    from skipring.rpc.publisher import PublishPlan, publish_all

    def emit(published: PublishAck) -> None:
        is_json = as_json or not sys.stdout.isatty()
        line = {"id": published.id.hex(), "offset": published.offset, "topic": topic}
        click.echo(json.dumps(line) if is_json else published.id.hex())

    def report(reason: str) -> None:
        click.echo(f"waiting up to {wait:g} s: {reason}", err=True)

    plan = PublishPlan(
        topic=topic,
        key=None if key is None else os.fsencode(key),
        headers=_headers(headers),
        is_volatile=volatile,
        wait_s=wait,
    )
    payloads = _payloads(text, from_file, count)
    try:
        run(publish_all(access, plan, payloads, emit, report))
    except VolatileMembersError as error:
        raise VolatileMembersError(f"{error} (--volatile)") from None


def _headers(given: tuple[str, ...]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not of the form K=V", param_hint="--header")
        headers[name] = value
    return headers


def _payloads(text: str | None, from_file: Path | None, count: int | None) -> Iterable[bytes]:
    """Return the payloads to publish: an argument, a file, or the lines of standard input."""
    from skipring.rpc.publisher import lines_of

    if text is not None and from_file is not None:
        raise click.UsageError("give TEXT or --from-file, not both")
    if text is not None:
        return repeat(os.fsencode(text), count or 1)
    if from_file is not None:
        return repeat(from_file.read_bytes(), count or 1)
    if count is not None:
        raise click.UsageError("--count repeats TEXT or --from-file; give one of them")
    if sys.stdin is not None and sys.stdin.isatty():
        click.echo("publishing each line of standard input; Ctrl-D ends it", err=True)
    return lines_of(STDIN)
