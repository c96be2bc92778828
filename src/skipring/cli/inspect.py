"""``skipring ring``, ``doctor`` and ``explain``: inspect a live ring."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final

import click

from skipring.cli.live_options import access_options, duration
from skipring.errors import InputError

if TYPE_CHECKING:
    from skipring.admin.diagnosis import Diagnosis, Explanation
    from skipring.admin.inspector import Inspection, Inspector, TopicContents
    from skipring.net.access import Access

NO: Final = 1

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@click.argument("topic")
@access_options
@click.option("--json", "as_json", is_flag=True, help="Print a world file.")
@click.option("--payloads", is_flag=True, help="With --json: also what was published.")
@click.option("--watch", is_flag=True, help="Repaint until interrupted.")
def ring(topic: str, access: Access, as_json: bool, payloads: bool, watch: bool) -> None:
    """Show the ring of a topic, or print its state as a world file.

    A world file can be the start of a simulation (``skipring simulate --load``). Of a topic that
    nobody subscribes to, the ring is empty.
    """
    if payloads and not as_json:
        raise InputError("--payloads belongs into a world file; give --json as well")
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
        from skipring.cli.ring_view import print_ring

        print_ring(run(_inspect(topic, access, TopicContents.NOTHING)))


@click.command()
@click.argument("topic")
@access_options
@click.option(
    "--wait", callback=duration, default="0", metavar="TIME", help="Wait until it is healthy."
)
@click.option(
    "--members",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="With --wait: also wait for at least N members.",
)
@_json
def doctor(topic: str, access: Access, wait: float, members: int, as_json: bool) -> int:
    """Check a topic: report whether it is healthy, and if not, why and what to do.

    A topic is healthy if its ring is correct, ring neighbours receive messages from each other, all
    members are in sync and ready, no process has a clone and no disk fails. Skewed clocks and
    quarantined records are warnings. Exit status: 0 healthy, 1 not healthy or no members, 4 no
    supervisor answers.
    """
    from skipring.node.process import run

    diagnosis = run(_diagnosed(topic, access, wait, members))
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
        from skipring.cli.diagnosis_view import print_diagnosis

        print_diagnosis(topic, diagnosis)
    return 0 if diagnosis.is_healthy else NO


@click.command()
@click.argument("topic")
@click.argument("node")
@access_options
@_json
def explain(topic: str, node: str, access: Access, as_json: bool) -> int:
    """Say what changed a node lately and why, what is wrong with it, and what will mend that.

    Exit status: 0 nothing is wrong with it, 1 something is, 2 nobody knows such a node.
    """
    from skipring.node.process import run

    explanation = run(_explained(topic, node, access))
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
        from skipring.cli.diagnosis_view import print_explanation

        print_explanation(explanation)
    return 0 if explanation.is_well else NO


def _inspector(topic: str, access: Access) -> AbstractAsyncContextManager[Inspector]:
    from skipring.admin.inspector import open_inspector
    from skipring.rpc.client import WaitReport

    report = WaitReport(lambda reason: click.echo(f"waiting: {reason}", err=True))
    return open_inspector(access.supervisors, topic, access.credentials(), report)


async def _inspect(topic: str, access: Access, contents: TopicContents) -> Inspection:
    async with _inspector(topic, access) as inspector:
        return await inspector.inspect(contents)


async def _diagnosed(topic: str, access: Access, wait_s: float, members: int) -> Diagnosis:
    from skipring.admin.diagnosis import wait_healthy

    async with _inspector(topic, access) as inspector:
        return await wait_healthy(inspector, wait_s, members)


async def _watch(topic: str, access: Access) -> None:
    from skipring.cli.ring_view import watch_ring

    async with _inspector(topic, access) as inspector:
        await watch_ring(inspector)


async def _explained(topic: str, node: str, access: Access) -> Explanation:
    from skipring.admin.diagnosis import explain as explain_node
    from skipring.admin.inspector import TopicContents

    async with _inspector(topic, access) as inspector:
        inspection = await inspector.inspect(TopicContents.DIFFERENCES)
        journal = await inspector.journal(node) if node in inspection.statuses else None
    return explain_node(inspection, node, journal)
