"""``skipring ring``, ``doctor`` and ``explain``: ring, health and nodes of a live topic."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from skipring.cli.options import (
    Exit,
    access_options,
    duration_option,
    json_option,
    open_inspector,
    option,
)
from skipring.errors import InputError

if TYPE_CHECKING:
    from skipring.admin.diagnosis import Explanation
    from skipring.admin.inspector import Inspector
    from skipring.net.access import Access

Answer = TypeVar("Answer")


@click.command()
@click.argument("topic")
@access_options
@json_option("Print a world file.")
@option("--payloads", "With --json: include the payloads.", is_flag=True)
@option("--watch", "Repaint until interrupted.", is_flag=True)
def ring(topic: str, access: Access, as_json: bool, payloads: bool, watch: bool) -> None:
    """Show the ring of a topic, or print its state as a world file.

    skipring simulate --load starts from a world file. A topic without members has an empty ring.
    """
    if payloads and not as_json:
        raise InputError("--payloads needs --json, which prints a world file")
    if watch and as_json:
        raise InputError("--watch repaints the terminal; it cannot be combined with --json")
    from skipring.admin.inspector import TopicContents

    if watch:
        from skipring.cli.output.ring import PATIENCE_S, watch_ring

        _ask(topic, access, watch_ring, patience_s=PATIENCE_S)
    elif as_json:
        from skipring.world.format import render_world

        contents = TopicContents.PAYLOADS if payloads else TopicContents.IDS
        inspection = _ask(topic, access, lambda inspector: inspector.inspect(contents))
        click.echo(render_world(inspection.snapshot), nl=False)
    else:
        from skipring.cli.output.ring import print_ring

        nothing = TopicContents.NOTHING
        print_ring(_ask(topic, access, lambda inspector: inspector.inspect(nothing)))


def _ask(
    topic: str, access: Access, act: Callable[[Inspector], Awaitable[Answer]], **limits: float
) -> Answer:
    """Open an inspector of a topic and return the result of an action with it."""
    from skipring.node.process import run

    async def ask() -> Answer:
        async with open_inspector(topic, access, **limits) as inspector:
            return await act(inspector)

    return run(ask())


# --- health -----------------------------------------------------------------------------


@click.command()
@click.argument("topic")
@access_options
@duration_option("--wait", "Time to wait until the topic is healthy.", "0s")
@option(
    *("--members", "With --wait: also wait for at least N members.", "N"),
    type=click.IntRange(1),
    default=1,
    show_default=False,
)
@json_option("Print JSON.")
def doctor(topic: str, access: Access, wait: float, members: int, as_json: bool) -> int:
    """Check the health of a topic and print what to do.

    A topic is healthy if its ring is correct, ring neighbours receive messages from each other, all
    members are in sync and ready, no process has a clone and no disk fails. Skewed clocks and
    damaged records are warnings. Exit status: 0 healthy, 1 degraded or no members, 4 no
    supervisor answers.
    """
    from skipring.admin.diagnosis import wait_healthy

    diagnosis = _ask(topic, access, lambda inspector: wait_healthy(inspector, wait, members))
    if as_json:
        from msgspec import to_builtins

        answers = {
            "topic": topic,
            "healthy": diagnosis.is_healthy,
            "legitimate": diagnosis.is_legitimate,
            "linked": diagnosis.is_linked,
            "all_publications": diagnosis.has_all_publications,
        }
        click.echo(json.dumps(answers | to_builtins(diagnosis), sort_keys=True))
    else:
        from skipring.cli.output.tables import print_diagnosis

        print_diagnosis(topic, diagnosis)
    return Exit.YES if diagnosis.is_healthy else Exit.NO


@click.command()
@click.argument("topic")
@click.argument("node")
@access_options
@json_option("Print JSON.")
def explain(topic: str, node: str, access: Access, as_json: bool) -> int:
    """Explain the recent changes and the faults of a node.

    Each fault is printed with the rule that repairs it. Exit status: 0 no faults, 1 faults, 2
    unknown node.
    """
    from skipring.admin.diagnosis import explain as explain_node
    from skipring.admin.inspector import TopicContents

    async def inspect(inspector: Inspector) -> Explanation:
        inspection = await inspector.inspect(TopicContents.DIFFERENCES)
        journal = await inspector.journal(node) if node in inspection.statuses else None
        return explain_node(inspection, node, journal)

    explanation = _ask(topic, access, inspect)
    if as_json:
        from msgspec.structs import asdict

        from skipring.admin.diagnosis import REPAIRS

        fields = {
            "topic": topic,
            "node": node,
            "standing": explanation.standing,
            "tick": explanation.tick,
            "journal": [asdict(entry) for entry in explanation.journal],
            "violations": [
                asdict(violation) | {"repair": REPAIRS[violation.layer]}
                for violation in explanation.violations
            ],
        }
        click.echo(json.dumps(fields, sort_keys=True))
    else:
        from skipring.cli.output.tables import print_explanation

        print_explanation(explanation)
    return Exit.YES if explanation.is_well else Exit.NO
