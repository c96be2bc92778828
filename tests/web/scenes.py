"""Scenes without a cluster: the test sends them to a page in place of the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser

from skipring.core.labels import CIRCLE, Label
from skipring.core.topology import level, levels, ring_edges, shortcut_edges
from tests.dashboard.browsing import Reader, reading

# Replaces the events of the server: `tell(kind, value)` delivers one.
SILENT_SERVER = """
window.EventSource = class extends EventTarget {
  constructor() {
    super();
    window.tell = (kind, value) =>
      this.dispatchEvent(new MessageEvent(kind, { data: JSON.stringify(value) }));
    setTimeout(() => this.onopen?.());
  }
  close() {}
};
"""


@contextmanager
def imagining(browser: Browser, url: str, **options: Any) -> Iterator[Reader]:  # noqa: ANN401
    """Open a page that receives its scenes from the test, by ``tell``."""
    with reading(browser, url, **options) as reader:
        reader.page.add_init_script(SILENT_SERVER)
        reader.page.reload()
        reader.page.wait_for_function("() => window.tell !== undefined")
        yield reader


def tell(reader: Reader, kind: str, value: object) -> None:
    """Deliver an event to a page."""
    reader.page.evaluate("([kind, value]) => window.tell(kind, value)", [kind, value])


def message_of(number: int) -> dict[str, Any]:
    """Return a message in the form of the server."""
    told = {"id": str(number), "publisher": "n00", "seq": number, "time": 1e12, "key": "a key"}
    return told | {"text": f"number {number}", "base64": None, "bytes": 9}


def scene_of(n: int) -> dict[str, Any]:
    """Return a scene of SR(n) in the form of the server."""
    labels = [Label.nth(index) for index in range(n)]
    nodes = [
        {
            "node": f"n{label.index:03}",
            "label": str(label),
            "turn": label.position / CIRCLE,
            "mark": "right",
            "reasons": [],
            "count": 0,
            "root": "00000000",
        }
        for label in labels
    ]
    ring = ring_edges(n)
    edges = [
        {
            "a": f"n{a.index:03}",
            "b": f"n{b.index:03}",
            "level": levels(n) if (a, b) in ring else level((a, b)),
            "kind": "ring" if (a, b) in ring else "shortcut",
            "state": "right",
            "reason": None,
        }
        for a, b in sorted(ring | shortcut_edges(n))
    ]
    card = {"answers": True, "address": "127.0.0.1:7400", "ticks": 1200, "requests": 0.5}
    card |= {"bound": 0.912, "suspects": 0, "evictions": 0, "conditions": {}}
    wrong = dict.fromkeys(("L0", "L1", "L2", "L3", "L4", "LINK", "NODE", "PUB"), 0)
    return {
        "number": 0,
        "time": 0.0,
        "topic": "news",
        "members": n,
        "recorded": n,
        "publications": 0,
        "roots": 1,
        "legitimate": True,
        "wrong": wrong,
        "nodes": nodes,
        "edges": edges,
        "tree": [],
        "supervisor": card,
    }
