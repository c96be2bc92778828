"""``skipring chaos``: fault injection into a live topic."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from skipring.cli.options import Command, access_options, json_option, option
from skipring.errors import InputError

if TYPE_CHECKING:
    from skipring.admin.chaos_plans import Damages
    from skipring.net.access import Access
    from skipring.wire.rpc import NodeStatus

    Plan: TypeAlias = Callable[[dict[str, NodeStatus]], Damages]

TICKS: Final = 60  # Guess: long enough for evictions, short enough to wait for.

_SHARE: Final = click.FloatRange(0, 1)

_seed = option("--seed", "Random seed.", type=click.IntRange(0), default=0)


def _damaging(command: Callable[..., Plan], *, is_gentle: bool = False) -> Command:
    """Turn a function that returns a plan into a command that applies it.

    The command also has the parameters that all share: topic, access, output format.
    """

    @wraps(command)
    def apply(topic: str, access: Access, as_json: bool, **options: Any) -> None:  # noqa: ANN401
        from skipring.admin.chaos_client import apply_plan
        from skipring.admin.chaos_plans import words
        from skipring.node.process import run

        plan = command(topic, **options)
        damages = run(
            apply_plan(access.supervisors, topic, plan, access.credentials(), is_gentle=is_gentle)
        )
        done = {node: [words(damage) for damage in each] for node, each in damages.items()}
        if as_json:
            click.echo(json.dumps({"topic": topic, "damaged": done}, sort_keys=True))
            return
        for node, texts in done.items():
            click.echo(f"{node}: {'; '.join(texts)}")

    return click.argument("topic")(access_options(json_option("Print JSON.")(apply)))


@click.group()
def chaos() -> None:
    """Inject faults into a live topic.

    Only processes started with --chaos accept faults. If one of the affected processes refuses,
    none is changed. Exit status: 0 done, 1 a process refuses, 4 no process answers.
    """


@chaos.command()
@_damaging
@click.argument("code", metavar="ADVERSARY")
@_seed
def adversary(topic: str, code: str, seed: int) -> Plan:
    """Overwrite the state of a topic with an adversary of the simulator, such as A15.

    Each member gets the state of one simulated node. No publication is invented, but members may
    lose some.
    """
    from skipring.admin.chaos_plans import adversarial, check_adversary

    check_adversary(code)
    return lambda members: adversarial(code, topic, members, seed)


@chaos.command()
@_damaging
@option("--wipe", "Delete all entries.", is_flag=True)
@_seed
def database(_: str, wipe: bool, seed: int) -> Plan:
    """Overwrite or empty the supervisor's database."""
    from skipring.admin.chaos_plans import no_database, wrong_database

    return lambda members: no_database() if wipe else wrong_database(members, seed)


@chaos.command()
@_damaging
@_seed
def labels(_: str, seed: int) -> Plan:
    """Overwrite the label of every member with an arbitrary one."""
    from skipring.admin.chaos_plans import wrong_labels

    return lambda members: wrong_labels(members, seed)


@chaos.command()
@_damaging
@option("--share", "Share of all publications.", type=_SHARE, default=0.5)
@_seed
def tries(_: str, share: float, seed: int) -> Plan:
    """Corrupt the tries of all members.

    Hashes become wrong at every member, and all members but one lose a share of their publications.
    """
    from skipring.admin.chaos_plans import spoilt_tries

    return lambda members: spoilt_tries(members, share, seed)


@chaos.command()
@_damaging
@option("--groups", "Members of each group.", "A,B/C,D")
@option("--parts", "Number of random groups, without --groups.", type=click.IntRange(2), default=2)
@option("--ticks", "Duration, in ticks of each member.", type=click.IntRange(1), default=TICKS)
@_seed
def partition(_: str, groups: str | None, parts: int, ticks: int, seed: int) -> Plan:
    """Drop all traffic between groups of members.

    Members of no group reach all groups. So does the supervisor, unless a group contains
    "supervisor". Without --groups the members are divided at random.
    """
    from skipring.admin import chaos_plans

    def plan(members: dict[str, NodeStatus]) -> Damages:
        if groups is None:
            return chaos_plans.partition(chaos_plans.parts_of(members, parts, seed), ticks)
        sides = [_names(group) for group in groups.split("/")]
        chaos_plans.check_names([node for side in sides for node in side], members)
        return chaos_plans.partition(sides, ticks)

    return plan


@chaos.command()
@partial(_damaging, is_gentle=True)
def heal(_: str) -> Plan:
    """End every partition."""
    from skipring.admin.chaos_plans import healed

    return healed


@chaos.command()
@_damaging
@click.argument("nodes", nargs=-1, metavar="[NODE]...")
@option("--share", "Random share of all members, instead of names.", type=_SHARE)
@_seed
def kill(_: str, nodes: tuple[str, ...], share: float | None, seed: int) -> Plan:
    """Kill processes, as kill -9 does."""
    from skipring.admin import chaos_plans

    if bool(nodes) == (share is not None):
        raise InputError("give either names of nodes, or --share")

    def plan(members: dict[str, NodeStatus]) -> Damages:
        if share is not None:
            return chaos_plans.killed(chaos_plans.share_of(members, share, seed))
        chaos_plans.check_names(nodes, members)
        return chaos_plans.killed(nodes)

    return plan


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
