"""Pictures of the terminal output in docs/images; ``make golden`` draws them again.

The ring is simulated, so the output is the same on every machine.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console, RenderableType

from skipring.admin.diagnosis import explain
from skipring.admin.inspector import Inspection
from skipring.cli.output import ring as ring_output
from skipring.cli.output import top as top_screen
from skipring.cli.output.ring import RingWatch
from skipring.cli.output.tables import RunView, explanation_view
from skipring.cli.output.top import TopScreen
from skipring.core.config import Preset
from skipring.core.peers import NodeId
from skipring.node.change_log import NodeChange, explanation
from skipring.sim.runner import Simulation
from skipring.sim.scenario import Scenario
from skipring.view.overview import (
    WINDOW_TICKS,
    Observer,
    Overview,
    SupervisorRow,
    TopicRow,
    differing,
    requests_max,
    roots_of,
)
from skipring.view.panel import RingPanel
from skipring.view.text import UNICODE
from skipring.wire.rpc import ChangeEntry, ChangePage
from skipring.world.legitimacy import violations
from tests.support.statuses import status_of

IMAGES = Path(__file__).parents[2] / "docs" / "images"
COLUMNS, ROWS = 80, 24
AT = "12:00:00"


def compare(name: str, picture: str, is_rewriting: bool) -> None:
    path = IMAGES / f"terminal-{name}.svg"
    # A reader of the docs must not load a font from another site.
    picture = re.sub(r",\s*url\([^)]*\) format\([^)]*\)|<!--.*?-->", "", picture)
    if is_rewriting:
        path.write_text(picture, encoding="utf-8")
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")
    assert picture == path.read_text(encoding="utf-8"), "make golden draws it anew"


def drawn(content: RenderableType, title: str) -> str:
    console = Console(width=COLUMNS, file=StringIO(), record=True, color_system="truecolor")
    console.print(content)
    return console.export_svg(title=title)


def damaged(rounds: int) -> Simulation:
    """Return a ring some rounds after an arbitrary state."""
    simulation = Simulation(Scenario(adversary="A15", publications=40, config=Preset.EAGER))
    for _ in range(rounds):
        simulation.run_round()
    return simulation


def seen(rounds: int) -> Inspection:
    """Return an inspection of the same ring."""
    snapshot = damaged(rounds).world.snapshot()
    statuses = {node: status_of(state) for node, state in snapshot.subscribers.items()}
    return Inspection(snapshot=snapshot, statuses=statuses)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fix the time and the time zone."""
    monkeypatch.setattr(ring_output, "time_of_day", lambda: AT)
    monkeypatch.setattr(top_screen, "time_of_day", lambda: AT)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_simulation_is_drawn_in_its_third_round(is_rewriting: bool) -> None:
    simulation = damaged(0)
    view = RunView(simulation, "begins with A15: Everything is arbitrary")
    page = RingPanel(COLUMNS, ROWS - 1, UNICODE)
    for _ in range(3):
        view.frame(simulation.world, page)
        simulation.run_round()
    picture = view.frame(simulation.world, page)
    compare("simulate", drawn(picture, "skipring simulate --adversary A15"), is_rewriting)


def test_watched_ring_is_drawn_while_it_heals(is_rewriting: bool) -> None:
    watch = RingWatch()
    for rounds in range(4):
        watch.record(seen(rounds))
    picture = watch.painted(RingPanel(COLUMNS, 42, UNICODE))
    compare("ring", drawn(picture, "skipring ring news --watch"), is_rewriting)


def test_explanation_of_a_node_is_drawn(is_rewriting: bool) -> None:
    inspection = seen(3)
    node = wrong_node(inspection)
    page = journal(str(inspection.statuses[node].label))
    view = explanation_view(explain(inspection, node, page), UNICODE, 8)
    compare("explain", drawn(view, f"skipring explain news {node}"), is_rewriting)


def wrong_node(inspection: Inspection) -> NodeId:
    """Return the first node with a violation."""
    return next(node for node in inspection.statuses if explain(inspection, node, None).violations)


def journal(label: str) -> ChangePage:
    """Return a change log of a node with realistic entries."""
    configured = "SetConfiguration"
    changes = (
        (12, configured, "supervisor", "label", "label", NodeChange.REPLACED, "1011", label),
        (
            12,
            configured,
            "supervisor",
            "neighbour",
            "left",
            NodeChange.REPLACED,
            "(101, n0005)",
            "(11, n0010)",
        ),
        (
            12,
            configured,
            "supervisor",
            "neighbour",
            "right",
            NodeChange.GAINED,
            "none",
            "(1111, n0008)",
        ),
        (13, "Tick", None, "shortcut", "shortcut 0", NodeChange.OPENED, "none", "empty"),
    )
    entries = tuple(
        ChangeEntry(
            tick=tick,
            time=43_200_000_000 + tick * 500_000,
            cause=cause,
            sender=sender,
            field=field,
            before=before,
            after=after,
            why=explanation(cause, kind, change),
        )
        for tick, cause, sender, kind, field, change, before, after in changes
    )
    return ChangePage(request=0, tick=14, entries=entries)


class Still:
    """Observer with a fixed inspection."""

    def __init__(self) -> None:
        self.inspections = {"news": seen(3)}


def topic(name: str, **counts: Any) -> TopicRow:  # noqa: ANN401
    """Return a healthy topic with some fields changed."""
    order: dict[str, Any] = {"rate": 0.0, "lag": 0, "roots": 1, "differs": (), "wrong": 0}
    return TopicRow(topic=name, **order | counts)


def overview(news: Inspection) -> Overview:
    """Return an overview of three topics of two supervisors, one of them healing."""
    counts = [status.count for status in news.statuses.values()]
    others = tuple(differing(roots_of(news)))
    healing = topic(
        "news",
        members=len(counts),
        publications=max(counts),
        rate=2.5,
        lag=max(counts) - min(counts),
        roots=1 + len(others),
        differs=others,
        wrong=sum(1 for _ in violations(news.snapshot)),
    )
    return Overview(
        topics=(
            healing,
            topic("orders", members=64, publications=120_416, rate=212.0),
            topic("prices", members=8, publications=903),
        ),
        supervisors=(
            supervisor("127.0.0.1:7400", topics=2, members=24, requests=4.25),
            supervisor("127.0.0.1:7401", topics=1, members=64, requests=0.87),
        ),
    )


def supervisor(address: str, *, topics: int, members: int, requests: float) -> SupervisorRow:
    return SupervisorRow(
        address=address,
        answers=True,
        topics=topics,
        members=members,
        requests=requests,
        requests_max=requests_max([WINDOW_TICKS] * topics),
    )


def test_overview_of_all_topics_is_drawn(is_rewriting: bool) -> None:
    still = Still()
    first = overview(still.inspections["news"])
    screen = TopScreen(cast("Observer", still), first, UNICODE)
    picture = screen.painted(RingPanel(COLUMNS, ROWS - 1, UNICODE))
    compare("top", drawn(picture, "skipring top"), is_rewriting)
