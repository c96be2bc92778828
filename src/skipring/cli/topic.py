"""``skipring topic``: limits of a topic by age, number and size, and compaction."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from skipring.cli.options import (
    DURATION,
    access_options,
    duration_option,
    json_option,
    option,
    read_policy,
)

if TYPE_CHECKING:
    from skipring.core.retention.charter import Charter, Policy
    from skipring.net.access import Access

UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE: Final = re.compile(r"([0-9]{1,15})([KMGT]?)(?:i?B)?")

_topic = click.argument("topic")
_wait = duration_option("--wait", "Time to wait for a member.", "10s")


def _size(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Return the number of bytes of a size such as 10G."""
    found = None if value is None else _SIZE.fullmatch(value.strip())
    if value is not None and found is None:
        raise click.BadParameter(f"{value!r} is not a size such as 64M or 10G")
    return None if found is None else int(found[1]) * UNITS[found[2]]


def _tombstones(_: click.Context, parameter: click.Parameter, value: str) -> float | None:
    """Return the time in seconds for which deletions are remembered; None: always."""
    return None if value == "keep" else DURATION.convert(value, parameter, None)


@click.group()
def topic() -> None:
    """Set, show or delete the policy of a topic: what its members retain."""


@topic.command(name="set")
@_topic
@access_options
@option("--max-age", "Retain publications for TIME.", "TIME", type=DURATION, default=None)
@option("--max-count", "Retain the newest N.", "N", type=click.IntRange(1), default=None)
@option("--max-bytes", "Retain the newest SIZE, as 64M or 10G.", "SIZE", callback=_size)
@option("--compact", "Retain only the newest publication of each key.", is_flag=True)
@option(
    *("--tombstones", "With --compact: remember deletions for TIME, or keep.", "TIME"),
    default="30d",
    callback=_tombstones,
)
@option("--dry-run", "Print what would be removed now, and change nothing.", is_flag=True)
@_wait
def set_(
    *,
    topic: str,
    access: Access,
    max_age: float | None,
    max_count: int | None,
    max_bytes: int | None,
    compact: bool,
    tombstones: float | None,
    dry_run: bool,
    wait: float,
) -> None:
    """Set the limits of TOPIC; a limit that is not given does not exist.

    A change takes effect after the policy delay of the nodes, and at once in an empty topic.
    """
    from datetime import timedelta

    from skipring.api.charter import policy_of

    policy = policy_of(
        max_age=None if max_age is None else timedelta(seconds=max_age),
        max_count=max_count,
        max_bytes=max_bytes,
        compact=compact,
        tombstones="keep" if tombstones is None else timedelta(seconds=tombstones),
    )
    if dry_run:
        _print_removed(access, topic, policy)
    else:
        _change(access, topic, policy, wait)


@topic.command()
@_topic
@access_options
@_wait
def delete(*, topic: str, access: Access, wait: float) -> None:
    """Remove the publications of TOPIC, the later ones too, a few minutes after they arrive.

    The topic continues to exist while it has members. `skipring topic set` ends the deletion.
    """
    from skipring.core.retention.charter import RETAIN_NOTHING

    charter = _change(access, topic, RETAIN_NOTHING, wait)
    if charter.effective_from > charter.stamp:
        click.echo(f"until then, `skipring topic set {topic}` with the previous limits undoes this")


@topic.command()
@_topic
@access_options
@json_option("Print JSON.")
def show(*, topic: str, access: Access, as_json: bool) -> None:
    """Print the policy of TOPIC, and a change that has not begun."""
    from msgspec import to_builtins

    report = read_policy(topic, access)
    if as_json:
        click.echo(json.dumps({"topic": topic} | to_builtins(report), default=bytes.hex))
        return
    click.echo(f"{topic}: {_as_text(report.acting)}")
    if report.newest is not None and report.newest != report.acting:
        click.echo(f"from {_time(report.newest.effective_from)}: {_as_text(report.newest)}")


def _change(access: Access, topic: str, policy: Policy, wait: float) -> Charter:
    from skipring.admin.topic_policy import set_policy
    from skipring.node.process import run

    waiting: Callable[[str], None] = lambda reason: click.echo(f"waiting: {reason}", err=True)  # noqa: E731
    charter = run(set_policy(access, topic, policy, read_policy(topic, access), waiting, wait))
    click.echo(f"{topic}, from {_time(charter.effective_from)}: {_as_text(charter)}")
    return charter


def _print_removed(access: Access, topic: str, policy: Policy) -> None:
    """Print the publications of one member that a policy would remove now."""
    from skipring.admin.topic_policy import removed_rows
    from skipring.core.config import ProtocolConfig
    from skipring.node.process import run

    removed = run(removed_rows(access, topic, policy, ProtocolConfig.live().floor_quantum_us))
    for batch in removed:
        for each in batch.publications():
            key = "" if each.key is None else f"  {each.key.decode(errors='backslashreplace')}"
            click.echo(f"{_time(each.time)}  {each.publisher}  {each.id.hex()}{key}")
    click.echo(f"{sum(batch.count for batch in removed)} publications would be removed", err=True)


def _time(stamp: int) -> str:
    return f"{datetime.fromtimestamp(stamp // 1_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _as_text(charter: Charter | None) -> str:
    """Return the limits of a charter as one line."""
    from skipring.core.retention.charter import RETAIN_NOTHING

    if charter is None or not charter.policy.is_limited:
        return "no limits"
    policy = charter.policy
    if policy == RETAIN_NOTHING:
        return "deleted: publications are removed after some minutes"
    parts = [
        ("max age", None if policy.max_age_s is None else f"{policy.max_age_s} s"),
        ("max count", policy.max_count),
        ("max bytes", policy.max_bytes),
        ("compacted, deletions remembered", _remembered(policy)),
    ]
    return ", ".join(f"{name} {value}" for name, value in parts if value is not None)


def _remembered(policy: Policy) -> str | None:
    if not policy.compact:
        return None
    return "always" if policy.tombstones_s is None else f"{policy.tombstones_s} s"
