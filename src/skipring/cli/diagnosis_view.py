"""Output of a diagnosis: findings, advice and recent changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from skipring.admin.diagnosis import LAYERS, REPAIRS, Diagnosis, Explanation
from skipring.cli.ring_page import wide_console
from skipring.view.text import Glyphs, glyphs_for
from skipring.wire.rpc import ChangeEntry
from skipring.world.legitimacy import Layer, Violation

TIME_MAX: Final = 1 << 57  # the year 6536; a node may send any number
SHOWN_MAX: Final = 20  # Guess: an operator does not read more violations of one layer.
# Guesses: the number of changes that fit on a screen; a pipe gets all.
ROWS_OF_A_CHANGE: Final = 3
ROWS_AROUND: Final = 8
CHANGES_MIN: Final = 4


def print_diagnosis(topic: str, diagnosis: Diagnosis) -> None:
    """Print whether a topic is healthy, and if not, why and what to do."""
    console = Console(highlight=False, soft_wrap=True)
    members = f"{_count(diagnosis.members, 'member')}, "
    members += _count(diagnosis.publications, "publication")
    if diagnosis.is_healthy:
        console.print(Text(f"{topic}: healthy ({members}, all in sync)", "green"))
    else:
        console.print(Text(f"{topic}: not healthy ({members})", "bold red"))
    for line in _violation_lines(diagnosis.violations):
        console.print(line)
    for sentence in diagnosis.advice:
        console.print(Text(f"-> {sentence}"))
    for sentence in diagnosis.warnings:
        console.print(Text(f"warning: {sentence}", "yellow"))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _violation_lines(violations: Sequence[Violation]) -> Iterator[Text]:
    """Yield the violations, layer by layer."""
    by_layer: dict[Layer, list[Violation]] = {}
    for violation in violations:
        by_layer.setdefault(violation.layer, []).append(violation)
    for layer, found in by_layer.items():
        yield Text(f"{layer}, {LAYERS[layer]}:", "bold")
        for violation in found[:SHOWN_MAX]:
            yield Text(f"  {violation.text}")
        if len(found) > SHOWN_MAX:
            yield Text(f"  and {len(found) - SHOWN_MAX} more", "dim")


# -- one node --------------------------------------------------------------------------------


def print_explanation(explanation: Explanation) -> None:
    """Print the state of a node, its last changes, its violations and their repair."""
    console = wide_console()
    shown = len(explanation.journal)
    if console.is_terminal:
        shown = changes_in(console.height)
    console.print(explanation_view(explanation, glyphs_for(console.encoding), shown))


def changes_in(rows: int) -> int:
    """Return the number of changes that fit into some rows."""
    return max((rows - ROWS_AROUND) // ROWS_OF_A_CHANGE, CHANGES_MIN)


def explanation_view(explanation: Explanation, glyphs: Glyphs, shown: int) -> RenderableType:
    """Return the state of a node, its last changes as a table, its violations and their repair."""
    return Group(
        Text(f"{explanation.node}: {explanation.standing}", "bold"),
        _at_a_glance(explanation, glyphs),
        *_timeline(explanation, glyphs, shown),
        *_wrongs(explanation.violations),
    )


def _at_a_glance(explanation: Explanation, glyphs: Glyphs) -> Text:
    if explanation.is_well:
        return Text(f"{glyphs.right} by what was seen, nothing is wrong with it", "green")
    if not explanation.violations:
        return Text(f"{glyphs.wrong} what is wrong with it cannot be seen", "bold red")
    layers = dict.fromkeys(LAYERS[violation.layer] for violation in explanation.violations)
    return Text(f"{glyphs.wrong} wrong: {', '.join(layers)}", "bold red")


def _timeline(explanation: Explanation, glyphs: Glyphs, shown: int) -> Iterator[RenderableType]:
    if explanation.tick is None:
        return
    entries = explanation.journal[-shown:] if shown else ()
    before = len(explanation.journal) - len(entries)
    note = f" ({before} earlier ones: --json)" if before else ""
    yield Text(f"it is at tick {explanation.tick}; its last changes, the newest last{note}:\n")
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for heading in ("when", "what", f"from {glyphs.arrow} to", "which rule, and why"):
        table.add_column(heading, no_wrap=heading in ("when", "what"))
    for event, changes in groupby(entries, key=_event):
        _add_rows(table, event, list(changes), glyphs)
    yield table


Event = tuple[str, int, str, str | None]


def _event(entry: ChangeEntry) -> Event:
    """Return the values that changes of the same event share."""
    at = datetime.fromtimestamp(entry.time % TIME_MAX / 1e6, UTC).astimezone()
    return f"{at:%H:%M:%S}", entry.tick, entry.cause, entry.sender


def _add_rows(table: Table, event: Event, changes: list[ChangeEntry], glyphs: Glyphs) -> None:
    """Add a row for each change; leave out the values that it shares with the row above."""
    at, tick, cause, sender = event
    by = f"{cause} from {sender}: " if sender is not None else f"{cause}: "
    why = None
    for change in changes:
        is_first, is_same = why is None, change.why == why
        why = change.why
        reason = Text("the same", "dim") if is_same else Text(why)
        table.add_row(
            Text(f"{at}\ntick {tick}" if is_first else "", "dim"),
            Text(change.field, "bold"),
            Text.assemble(f"{change.before} {glyphs.arrow} ", (change.after, "bold")),
            Text.assemble((by if is_first else "", "cyan"), reason),
        )


def _wrongs(violations: Sequence[Violation]) -> Iterator[Text]:
    if not violations:
        return
    yield Text("\nwrong now:", "bold red")
    yield from _violation_lines(violations)
    yield Text("what mends it:", "bold")
    for layer in dict.fromkeys(violation.layer for violation in violations):
        yield Text.assemble((f"-> {LAYERS[layer]}: ", "bold"), f"{REPAIRS[layer]}.")
