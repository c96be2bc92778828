"""``skipring kv``: values of keys, read and written through a member, without joining."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from skipring.cli.options import (
    Exit,
    access_options,
    duration_option,
    json_option,
    option,
    read_policy,
)
from skipring.cli.pub_sub import is_stdout_closed, printable, report_wait, text_field

if TYPE_CHECKING:
    from skipring.api.key_value_table import Change, Entry, KeyValueTable
    from skipring.core.publications import Publication
    from skipring.net.access import Access
    from skipring.rpc.publisher import PublishedRecord
    from skipring.rpc.tail import Until


_topic = click.argument("topic")
_key = click.argument("key")
_wait = duration_option("--wait", "Time to wait for a member.", "10s")
_prefix = option(
    "--prefix", "Only keys that start with TEXT.", "TEXT", default="", show_default=False
)


@click.group()
def kv() -> None:
    """Read and write the newest value of each key of a topic.

    The commands use a member and do not join the ring.
    """


@kv.command()
@_topic
@_key
@click.argument("value", required=False)
@access_options
@_wait
@json_option("VALUE is JSON; print a line of JSON with the id.")
def put(
    *, topic: str, key: str, value: str | None, access: Access, wait: float, as_json: bool
) -> None:
    """Set the value of KEY to VALUE, or to the content of standard input.

    The command ends once a member has it on disk. The first write of a topic compacts it.
    """
    payload = sys.stdin.buffer.read() if value is None else os.fsencode(value)
    if as_json:
        payload = _checked_json(payload)
    write = _Write(access, topic, key, wait, as_json)
    if write.seen is None:
        _compact_if_empty(access, topic, wait)
    write.publish(payload, {})


@kv.command()
@_topic
@_key
@access_options
@_wait
@json_option("Print a line of JSON with the id.")
def delete(*, topic: str, key: str, access: Access, wait: float, as_json: bool) -> None:
    """Delete KEY. The command ends once a member has the deletion on disk."""
    from skipring.core.publications import DELETED

    _Write(access, topic, key, wait, as_json).publish(b"", {DELETED: "1"})


class _Write:
    """Write of a key that has seen its present value."""

    def __init__(self, access: Access, topic: str, key: str, wait: float, as_json: bool) -> None:
        from skipring.api.key_value_table import bytes_of_key

        self._access, self._topic, self._key, self._wait = access, topic, key, wait
        self._as_json = as_json
        self._encoded = bytes_of_key(os.fsencode(key))
        self.seen = _table(access, topic, wait).last_time(key)  # None: the key has no write

    def publish(self, payload: bytes, headers: dict[str, str]) -> None:
        """Publish the write; print its id as JSON if requested."""
        from skipring.api.key_value_table import AFTER
        from skipring.node.process import run
        from skipring.rpc.publisher import PublishPlan, publish_all

        plan = PublishPlan(
            topic=self._topic,
            key=self._encoded,
            headers=headers if self.seen is None else {**headers, AFTER: str(self.seen)},
            later_than=self.seen or 0,
            wait_s=self._wait,
        )
        run(publish_all(self._access, plan, [payload], self._emit, report_wait))

    def _emit(self, published: PublishedRecord) -> None:
        if self._as_json:
            line = {"topic": self._topic, **text_field("key", self._encoded)}
            click.echo(json.dumps({**line, "id": published.id.hex()}))


def _checked_json(payload: bytes) -> bytes:
    import msgspec

    try:
        return msgspec.json.encode(msgspec.json.decode(payload))
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint="VALUE") from None


def _compact_if_empty(access: Access, topic: str, wait: float) -> None:
    """Compact an empty topic, as ``node.keyvalue`` does; warn if another one is not compacted."""
    from skipring.admin.topic_policy import set_policy
    from skipring.core.retention.charter import Policy
    from skipring.node.process import run

    report = read_policy(topic, access)
    if report.newest is None and report.records == 0:
        run(set_policy(access, topic, Policy(compact=True), report, report_wait, wait))
    elif report.newest is None or not report.newest.policy.compact:
        click.echo(
            f"{topic} is not compacted, so old values of its keys stay, and views refuse it: "
            f"run `skipring topic set {topic} --compact`",
            err=True,
        )


@kv.command()
@_topic
@_key
@access_options
@_wait
@json_option("Print a line of JSON.")
def get(*, topic: str, key: str, access: Access, wait: float, as_json: bool) -> None:
    """Print the value of KEY; exit with status 1 if it has none."""
    entry = _table(access, topic, wait).get(key)
    if entry is None:
        click.echo(f"{topic} has no value of {key!r}", err=True)
        raise click.exceptions.Exit(Exit.NO)
    click.echo(json.dumps(_as_json(entry)) if as_json else entry.value)


@kv.command(name="list")
@_topic
@access_options
@_prefix
@_wait
@json_option()
def list_(*, topic: str, access: Access, prefix: str, wait: float, as_json: bool) -> None:
    """Print keys and values, sorted by key."""
    for entry in _table(access, topic, wait).entries(prefix):
        click.echo(json.dumps(_as_json(entry)) if as_json else _as_line(entry))


@kv.command()
@_topic
@click.argument("key", required=False)
@access_options
@_prefix
@option("--count", "Exit after N lines.", "N", type=click.IntRange(1))
@_wait
@json_option()
def watch(
    *,
    topic: str,
    key: str | None,
    access: Access,
    prefix: str,
    count: int | None,
    wait: float,
    as_json: bool,
) -> None:
    """Print the present values of all keys, or of KEY, and then each change."""
    from skipring.api.key_value_table import PendingChanges
    from skipring.rpc.tail import Until

    if key is not None and prefix:
        raise click.UsageError("give KEY or --prefix, not both")
    left = count

    def show(change: Change[bytes]) -> bool:
        nonlocal left
        if change.key == key or (key is None and change.key.startswith(prefix)):
            click.echo(_change_as_json(change) if as_json else _change_as_line(change))
            left = None if left is None else left - 1
        return left == 0

    table = _table(access, topic, wait)
    present = PendingChanges(table.entries(prefix))
    while (change := present.pop_oldest()) is not None:
        if show(change):
            return
    _follow(access, topic, table, show, until=Until.STOPPED, wait=wait)


# -- reading -----------------------------------------------------------------------------------


def _table(access: Access, topic: str, wait: float) -> KeyValueTable:
    """Return the newest values that the member with the most publications has."""
    from skipring.api.key_value_table import KeyValueTable
    from skipring.rpc.tail import Until

    table = KeyValueTable()
    _follow(access, topic, table, lambda _: False, until=Until.LOG_END, wait=wait)
    return table


def _follow(
    access: Access,
    topic: str,
    table: KeyValueTable,
    show: Callable[[Change[bytes]], bool],
    *,
    until: Until,
    wait: float,
) -> None:
    """Apply the publications of a topic to a table; call ``show`` for each change.

    What the table has already causes no change, so a second call continues after the first one.
    """
    from skipring.node.process import run
    from skipring.observability.clock import time_us
    from skipring.rpc.tail import TailPlan, follow_topic

    has_ended = False

    def emit(publication: Publication) -> bool:
        change = table.apply(publication, time_us())
        return change is not None and show(change)

    def is_stopped() -> bool:
        nonlocal has_ended
        for change in table.expire(time_us()):
            has_ended = has_ended or show(change)
        return has_ended or is_stdout_closed()

    plan = TailPlan(until=until, wait_s=wait)
    run(follow_topic(access, topic, plan, emit, report=report_wait, is_stopped=is_stopped))


# -- output ------------------------------------------------------------------------------------


def _as_json(entry: Entry[bytes]) -> dict[str, Any]:
    """Return the fields of a line of JSON; bytes that are not UTF-8 are in base64."""
    return {
        **text_field("key", os.fsencode(entry.key)),
        **text_field("value", entry.value),
        "publisher": entry.publisher,
        "time": entry.time,
        "id": entry.id.hex(),
    }


def _change_as_json(change: Change[bytes]) -> str:
    found = change.entry
    fields = text_field("key", os.fsencode(change.key)) if found is None else _as_json(found)
    fields |= {"deleted": change.deleted, "concurrent": change.concurrent}
    return json.dumps(fields | {"snapshot": change.is_snapshot})


def _as_line(entry: Entry[bytes]) -> str:
    return f"{printable(os.fsencode(entry.key))}  {printable(entry.value)}"


def _change_as_line(change: Change[bytes]) -> str:
    key = printable(os.fsencode(change.key))
    line = f"{key}  deleted" if change.entry is None else _as_line(change.entry)
    return f"{line}  (concurrent)" if change.concurrent else line
