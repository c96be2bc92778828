"""``skipring pub`` and ``skipring sub``: publish and read through a member, without joining."""

from __future__ import annotations

import base64
import json
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from skipring.cli.options import (
    DURATION,
    access_options,
    duration_option,
    json_option,
    key_values,
    option,
)

if TYPE_CHECKING:
    from skipring.core.publications import Publication
    from skipring.net.access import Access
    from skipring.order.gaps import Gap
    from skipring.rpc.publisher import PublishedRecord, PublishPlan
    from skipring.rpc.tail import TailPlan

STDIN: Final = 0
STDOUT: Final = 1
MICROSECONDS: Final = 1_000_000
NO_KEY: Final = "-"
NEW: Final = ("new", "latest")
STARTS: Final = ("all", "earliest", *NEW)
ORDERS: Final = ("arrival", "publisher", "time")

_CONTENTS: Final = click.Path(exists=True, dir_okay=False, path_type=Path)

Show = Callable[["Publication"], str | bytes]


@click.command()
@click.argument("topic")
@click.argument("text", required=False)
@access_options
@option("--key", "Key of each publication.")
@option(
    "--header",
    "Header; may be repeated.",
    "K=V",
    into="headers",
    multiple=True,
    callback=key_values(),
)
@option("--from-file", "Publish the contents of FILE as one publication.", "FILE", type=_CONTENTS)
@option("--count", "Publish TEXT or FILE N times.", "N", type=click.IntRange(1))
@duration_option("--wait", "Time to wait for a member.", "10s")
@option("--volatile", "Accept a member that stores in memory only.", is_flag=True)
@json_option()
def pub(
    *,
    topic: str,
    text: str | None,
    access: Access,
    from_file: Path | None,
    count: int | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401
) -> None:
    """Publish TEXT, or each line of standard input, in a topic.

    The command prints the id of each publication once a member has it on disk.
    """
    from skipring.errors import VolatileMembersError
    from skipring.node.process import run
    from skipring.rpc.publisher import publish_all

    def emit(published: PublishedRecord) -> None:
        line = {"id": published.id.hex(), "offset": published.offset, "topic": topic}
        click.echo(json.dumps(line) if as_json else published.id.hex())

    def report(reason: str) -> None:
        click.echo(f"waiting up to {plan.wait_s:g} s: {reason}", err=True)

    plan = _publish_plan(topic, **options)
    payloads = _payloads(text, from_file, count)
    try:
        run(publish_all(access, plan, payloads, emit, report))
    except VolatileMembersError as error:
        raise VolatileMembersError(f"{error} (--volatile)") from None


def _publish_plan(
    topic: str, *, key: str | None, headers: dict[str, str], wait: float, volatile: bool
) -> PublishPlan:
    from skipring.rpc.publisher import PublishPlan

    return PublishPlan(
        topic=topic,
        key=None if key is None else os.fsencode(key),
        headers=headers,
        is_volatile=volatile,
        wait_s=wait,
    )


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


# --- sub --------------------------------------------------------------------------------------


@click.command()
@click.argument("topic")
@access_options
@option("--start", "First publication.  [default: all]", type=click.Choice(STARTS))
@option("--since", "Only the last TIME (10m), or since TIME (2026-05-31T12:00Z).", "TIME")
@option(
    "--order",
    "Order of publications; see above.  [default: arrival]",
    type=click.Choice(ORDERS),
)
@option("--key", "Only publications with this key.")
@option("--publisher", "Only publications of this publisher.", "NODE")
@option("--count", "Exit after N publications.", "N", type=click.IntRange(1))
@option("--follow/--no-follow", "Wait for new publications.", default=True)
@option("--exit-when-synced", "Exit when all members are in sync.", is_flag=True)
@duration_option(
    "--wait", "With --no-follow or --exit-when-synced: time to wait for a member.", "10s"
)
@option("--format", "Format of each publication; see above.", "TEXT", into="form")
@json_option("Print JSON also on a terminal.")
def sub(
    *,
    topic: str,
    access: Access,
    key: str | None,
    publisher: str | None,
    count: int | None,
    form: str | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401
) -> None:
    """Print the publications of a topic: the history, then new ones.

    The command reads through a member and does not join the ring. On a terminal it prints time,
    publisher, key and payload; on a pipe, a line of JSON for each.

    --order arrival prints publications as the member has stored them. With publisher, the numbers
    of each publisher rise: the command waits up to 8s for missing ones, then reports a gap. With
    time, it prints publications by time, 2s after they were published. Those that arrive later have
    "late": true in JSON.

    \b
    --format replaces:
      %s payload   %k key       %p publisher  %n sequence number
      %t topic     %T time (ms) %h headers    %i id
      %S, %K sizes of payload and key, %% a percent sign, \\n \\t as in C
    """  # noqa: D301  (click looks for a backspace character)
    from skipring.node.process import run
    from skipring.rpc.tail import follow_topic

    if form is not None and as_json:
        raise click.UsageError("give --format or --json, not both")
    plan = _tail_plan(**options)
    shown = _show(topic, form, is_json=as_json or not sys.stdout.isatty())
    wanted = {"key": None if key is None else os.fsencode(key), "publisher": publisher}
    printer = _Printer(shown, wanted, count)
    follow = partial(follow_topic, access, topic, plan, on_gap=printer.report)
    run(follow(printer.emit, report=report_wait, is_stopped=is_stdout_closed))


class _Printer:
    """Printer of publications whose fields have the wanted values, up to a count."""

    def __init__(
        self, show: Show, wanted: Mapping[str, str | bytes | None], count: int | None
    ) -> None:
        self._show = show
        self._wanted = {name: value for name, value in wanted.items() if value is not None}
        self._left = count

    def emit(self, publication: Publication) -> bool:
        """Print a publication if it is wanted; return True after the last one."""
        if any(getattr(publication, name) != value for name, value in self._wanted.items()):
            return False
        click.echo(self._show(publication))
        self._left = None if self._left is None else self._left - 1
        return self._left == 0

    def report(self, gap: Gap) -> None:
        """Report a gap on standard error, if its publisher is wanted."""
        if self._wanted.get("publisher", gap.publisher) == gap.publisher:
            click.echo(
                f"gap: {gap.publisher}, incarnation {gap.incarnation}: "
                f"{gap.count} missing, numbers {gap.first} to {gap.last} ({gap.reason})",
                err=True,
            )


def _tail_plan(
    *,
    start: str | None,
    since: str | None,
    order: str | None,
    follow: bool,
    exit_when_synced: bool,
    wait: float,
) -> TailPlan:
    from skipring.order.gaps import Order
    from skipring.rpc.tail import TailPlan, Until

    if start in NEW and since is not None:
        raise click.UsageError("give --start new or --since, not both")
    until = Until.IN_SYNC if exit_when_synced else Until.STOPPED if follow else Until.LOG_END
    return TailPlan(
        until=until,
        wait_s=wait,
        is_new=start in NEW,
        since=_since(since),
        order=Order(order or ORDERS[0]),
    )


def report_wait(reason: str) -> None:
    """Print why a command waits."""
    click.echo(f"waiting: {reason}", err=True)


def is_stdout_closed() -> bool:
    """Return True if the reader of the pipe on stdout has closed it, as ``head -1`` does."""
    with suppress(OSError, ValueError, AttributeError):  # no such stream, or no poll on this system
        poll = select.poll()
        poll.register(STDOUT, 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    return False


def _since(text: str | None) -> int:
    """Return microseconds since the epoch for a point in time, or for a duration before now."""
    if text is None:
        return 0
    with suppress(click.BadParameter):
        ago_us = int(DURATION.convert(text, None, None) * MICROSECONDS)
        return max(time.time_ns() // 1000 - ago_us, 0)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither a duration such as 10m nor a time such as 2026-05-31T12:00Z",
            param_hint="--since",
        ) from None
    local = moment if moment.tzinfo is not None else moment.astimezone()
    return max(int(local.timestamp() * MICROSECONDS), 0)


def _show(topic: str, form: str | None, *, is_json: bool) -> Show:
    if form is not None:
        text = form.removesuffix("\\n")  # each publication ends its line in any case
        return lambda publication: _formatted(text, topic, publication).encode(
            errors="surrogateescape"
        )
    if is_json:
        return lambda publication: json.dumps(_as_json(topic, publication))
    return _as_line


def _as_json(topic: str, publication: Publication) -> dict[str, Any]:
    """Return the fields of a line of JSON; bytes that are not UTF-8 are in base64."""
    fields = {
        "id": publication.id.hex(),
        "topic": topic,
        "publisher": publication.publisher,
        "seq": publication.seq,
        "time": publication.time,
        "headers": publication.headers,
    }
    if publication.key is None:
        fields["key"] = None
    else:
        fields |= text_field("key", publication.key)
    if publication.late:
        fields["late"] = True
    return fields | text_field("payload", publication.payload)


def text_field(name: str, value: bytes) -> dict[str, Any]:
    """Return a field of a line of JSON; its name shows whether the value is in base64."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _as_line(publication: Publication) -> str:
    """Return a line for a terminal; escaped control characters keep a payload on its line."""
    moment = datetime.fromtimestamp(publication.time / MICROSECONDS, UTC).astimezone()
    is_today = moment.date() == datetime.now(UTC).astimezone().date()
    when = f"{moment:%H:%M:%S}" if is_today else f"{moment:%Y-%m-%d %H:%M:%S}"
    key = NO_KEY if publication.key is None else printable(publication.key) or '""'
    payload = printable(publication.payload)
    return f"{when}  {publication.publisher}  {key}  {payload}"


def printable(value: bytes) -> str:
    """Return bytes as text without control characters."""
    text = value.decode(errors="backslashreplace")
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


_ESCAPES: Final = {"n": "\n", "t": "\t", "\\": "\\", "0": "\0", "r": "\r"}


def _formatted(form: str, topic: str, publication: Publication) -> str:
    """Replace the tokens of kcat's format, and additional tokens, with fields of a publication."""
    key, payload = publication.key, publication.payload
    tokens = {
        "%": "%",
        "s": _as_text(payload),
        "S": str(len(payload)),
        "k": "" if key is None else _as_text(key),
        "K": "-1" if key is None else str(len(key)),
        "p": publication.publisher,
        "n": str(publication.seq),
        "t": topic,
        "T": str(publication.time // 1000),
        "h": ",".join(f"{name}={value}" for name, value in publication.headers.items()),
        "i": publication.id.hex(),
    }

    def replaced(found: re.Match[str]) -> str:
        if found[1]:
            return tokens.get(found[1], found[0])
        return _ESCAPES.get(found[2], found[0])

    return re.sub(r"%(.)|\\(.)", replaced, form, flags=re.DOTALL)


def _as_text(value: bytes) -> str:
    return value.decode(errors="surrogateescape")
