"""``skipring doctor`` and ``explain``: the health of a topic, and the state of one node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from skipring.cli.options import Exit, access_options, duration, json_option, open_inspector

if TYPE_CHECKING:
    from skipring.admin.diagnosis import Diagnosis, Explanation
    from skipring.net.access import Access


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
@json_option("Print JSON.")
def doctor(topic: str, access: Access, wait: float, members: int, as_json: bool) -> int:
    """Check a topic: report whether it is healthy, and if not, why and what to do.

    A topic is healthy if its ring is correct, ring neighbours receive messages from each other, all
    members are in sync and ready, no process has a clone and no disk fails. Skewed clocks and
    quarantined records are warnings. Exit status: 0 healthy, 1 not healthy or no members, 4 no
    supervisor answers.
    """
    from skipring.node.process import run

    diagnosis = run(_diagnosis(topic, access, wait, members))
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
        from skipring.cli.output import print_diagnosis

        print_diagnosis(topic, diagnosis)
    return Exit.YES if diagnosis.is_healthy else Exit.NO


@click.command()
@click.argument("topic")
@click.argument("node")
@access_options
@json_option("Print JSON.")
def explain(topic: str, node: str, access: Access, as_json: bool) -> int:
    """Explain the recent changes of a node, its faults, and what repairs them.

    Exit status: 0 nothing is wrong with it, 1 something is, 2 no such node is known.
    """
    from skipring.node.process import run

    explanation = run(_explanation(topic, node, access))
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
        from skipring.cli.output import print_explanation

        print_explanation(explanation)
    return Exit.YES if explanation.is_well else Exit.NO


async def _diagnosis(topic: str, access: Access, wait_s: float, members: int) -> Diagnosis:
    from skipring.admin.diagnosis import wait_healthy

    async with open_inspector(topic, access) as inspector:
        return await wait_healthy(inspector, wait_s, members)


async def _explanation(topic: str, node: str, access: Access) -> Explanation:
    from skipring.admin.diagnosis import explain as explain_node
    from skipring.admin.inspector import TopicContents

    async with open_inspector(topic, access) as inspector:
        inspection = await inspector.inspect(TopicContents.DIFFERENCES)
        journal = await inspector.journal(node) if node in inspection.statuses else None
    return explain_node(inspection, node, journal)
