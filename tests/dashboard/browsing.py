"""A browser with the dashboard of a live ring.

The driver of the browser has an event loop in the thread of the test, so the ring and its
dashboard run in another thread.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Any, Self, TypeVar

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect, sync_playwright

from skipring.core.labels import CIRCLE, Label
from skipring.core.peers import NodeId
from skipring.core.topology import level, levels, ring_edges, shortcut_edges
from skipring.testing import Cluster
from skipring.web.server import Dashboard

N = 16  # nodes of the shown rings
DEADLINE_S = 180.0  # for operations that take seconds: the machine is shared
POLL_MS = 50
TICK_S = 0.5  # slow enough to see a violation before its repair
WIDE = {"width": 1440, "height": 900}
NEAR_PX = 0.6  # the precision of the drawing

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

Spot = tuple[float, float]
DrawnEdge = tuple[NodeId, NodeId, str, int, str]  # ends, kind, level and state
Value = TypeVar("Value")

expect.set_options(timeout=DEADLINE_S * 1000)


# --- the browser -----------------------------------------------------------------------


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yield the Chromium of the system; skip the test if there is none."""
    path = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if path is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


# A short violation may end before a test looks; the page itself misses nothing.
REMEMBERING = """() => {
  window.looks = new Map();
  window.verdicts = [];
  const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const look = () => {
    for (const node of document.querySelectorAll(".node")) {
      const { node: name, mark } = node.dataset;
      if (window.looks.has(`${name} ${mark}`)) continue;
      pen.fillStyle = getComputedStyle(node.querySelector(".dot")).stroke;
      pen.fillRect(0, 0, 1, 1);
      window.looks.set(`${name} ${mark}`, [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3));
    }
    const verdict = document.getElementById("verdict").textContent;
    if (window.verdicts.at(-1) !== verdict) window.verdicts.push(verdict);
  };
  const observed = { subtree: true, childList: true, characterData: true, attributes: true };
  new MutationObserver(look).observe(document.getElementById("stage"), observed);
  look();
}"""


class Reader:
    """A page of the dashboard and the errors on its console."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def until(self, holds: Callable[[], bool], why: Callable[[], object] = str) -> None:
        """Wait until a condition holds while the page runs."""
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, f"not in {DEADLINE_S:.0f} s: {why()}"
            self.page.wait_for_timeout(POLL_MS)

    # -- history -----------------------------------------------------------------------------

    def remember(self) -> None:
        """Record the colour of each node and the verdicts from now on."""
        self.page.evaluate(REMEMBERING)

    def looks(self) -> dict[str, tuple[int, int, int]]:
        """Return the recorded colours by node and mark, such as "n03 dead"."""
        found: dict[str, list[int]] = self.page.evaluate("() => Object.fromEntries(window.looks)")
        return {look: (red, green, blue) for look, (red, green, blue) in found.items()}

    def verdicts(self) -> list[str]:
        """Return the recorded verdicts in order."""
        verdicts: list[str] = self.page.evaluate("() => window.verdicts")
        return verdicts

    # -- current state -----------------------------------------------------------------------

    def expect_verdict(self, text: str) -> None:
        """Wait until the verdict begins with a text."""
        page = self.page
        self.until(
            lambda: page.locator("#verdict").inner_text().startswith(text),
            lambda: page.locator("#verdict").inner_text(),
        )

    def spots(self) -> dict[NodeId, Spot]:
        """Return the positions of the drawn nodes."""
        drawn: dict[NodeId, list[float]] = self.page.evaluate(
            """() => Object.fromEntries([...document.querySelectorAll(".node")].map((g) => {
                 const { e, f } = g.transform.baseVal.consolidate().matrix;
                 return [g.dataset.node, [e, f]];
               }))"""
        )
        return {node: (x, y) for node, (x, y) in drawn.items()}

    @property
    def is_moving(self) -> bool:
        """Return True while a node moves."""
        return self.page.locator("#ring").get_attribute("data-moving") == "true"

    def come_to_rest(self) -> None:
        """Wait until no node moves."""
        self.until(lambda: not self.is_moving)

    def step_back(self) -> None:
        """Go back by one moment with the focused scrubber; wait until it is shown."""
        self.page.keyboard.press("ArrowLeft")
        number = self.page.locator("#scrubber").get_attribute("data-number")
        assert number is not None
        expect(self.page.locator("#stage")).to_have_attribute("data-number", number)

    def circle(self) -> tuple[float, float, float]:
        """Return centre and radius of the ring."""
        x, y, radius = self.page.evaluate(
            "() => ['cx', 'cy', 'r'].map((name) => document.querySelector('.orbit')[name]"
            ".baseVal.value)"
        )
        return x, y, radius

    def place_of(self, label: Label) -> Spot:
        """Return the position of a label: r(label), 0 at the top and clockwise."""
        x, y, radius = self.circle()
        angle = math.tau * label.position / CIRCLE
        return x + radius * math.sin(angle), y - radius * math.cos(angle)

    def is_drawn(self, labels: dict[NodeId, Label]) -> bool:
        """Return True if exactly these nodes are drawn, at the positions of their labels."""
        spots = self.spots()
        return spots.keys() == labels.keys() and all(
            math.dist(spots[node], self.place_of(label)) < NEAR_PX for node, label in labels.items()
        )

    def edges(self) -> set[DrawnEdge]:
        """Return the drawn edges."""
        found: list[list[Any]] = self.page.evaluate(
            """() => [...document.querySelectorAll(".edge")].map(({ dataset }) =>
                 [dataset.a, dataset.b, dataset.kind, Number(dataset.level), dataset.state])"""
        )
        edges = {(a, b, kind, level, state) for a, b, kind, level, state in found}
        assert len(edges) == len(found)
        return edges


@contextmanager
def reading(browser: Browser, url: str, **options: Any) -> Iterator[Reader]:  # noqa: ANN401
    """Open a page with its own cookies; assert that its console shows no errors."""
    context = browser.new_context(**{"viewport": WIDE, "color_scheme": "light", **options})
    try:
        reader = Reader(context.new_page())
        reader.page.goto(url)
        yield reader
        assert reader.complaints == []
    finally:
        context.close()


def colour_of(target: Locator, name: str) -> tuple[float, float, float]:
    """Return the computed colour of an element, from 0 to 255."""
    found: list[float] = target.evaluate(
        """(target, name) => {
          const pen = new OffscreenCanvas(1, 1).getContext("2d");
          pen.fillStyle = getComputedStyle(target)[name];
          pen.fillRect(0, 0, 1, 1);
          return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }""",
        name,
    )
    red, green, blue = found
    return red, green, blue


# --- the ring and its dashboard ----------------------------------------------------------


class Stage:
    """A cluster and its dashboard, in their own thread inside the block."""

    cluster: Cluster
    dashboard: Dashboard

    def __init__(self, n: int, *, chaos: bool = False, tick_s: float = TICK_S) -> None:
        self._n = n
        self._tick_s = tick_s
        self._chaos = chaos
        self._ready: Future[None] = Future()
        self._thread = Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.result(DEADLINE_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        try:
            await self._play()
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _play(self) -> None:
        async with Cluster(n=self._n, tick_s=self._tick_s) as self.cluster:
            await self.cluster.wait_healthy(DEADLINE_S)
            topic = self.cluster.topic
            async with Dashboard(
                [self.supervisor], topic=topic, chaos=self._chaos
            ) as self.dashboard:
                self._ready.set_result(None)
                await self._ended.wait()

    @property
    def supervisor(self) -> str:
        """Return the address of the supervisor."""
        return self.cluster.url.removeprefix("skipring://")

    def ask(self, question: Callable[[Cluster], Value]) -> Value:
        """Call a function with the cluster in its own thread."""

        async def act() -> Value:
            return question(self.cluster)

        return asyncio.run_coroutine_threadsafe(act(), self._loop).result(DEADLINE_S)

    def wait_healthy(self) -> None:
        """Wait until the ring is legitimate and in sync."""
        healthy = self.cluster.wait_healthy(DEADLINE_S)
        asyncio.run_coroutine_threadsafe(healthy, self._loop).result(DEADLINE_S + 1)

    def labels(self) -> dict[NodeId, Label]:
        """Return the labels of the live nodes."""
        states = self.ask(lambda cluster: cluster.snapshot().subscribers)
        return {node: state.label for node, state in states.items() if state.label is not None}


@contextmanager
def whole(browser: Browser, stage: Stage, **options: Any) -> Iterator[Reader]:  # noqa: ANN401
    """Open a page that shows a legitimate ring."""
    stage.wait_healthy()
    with reading(browser, stage.dashboard.url, **options) as reader:
        reader.expect_verdict("healthy")
        await_drawn(reader, stage)
        yield reader


def await_drawn(reader: Reader, stage: Stage) -> None:
    """Wait until exactly the nodes and edges of SR(n) are drawn at their positions."""

    def is_drawn() -> bool:
        labels = stage.labels()
        return reader.is_drawn(labels) and reader.edges() == edges_of(labels)

    reader.until(is_drawn, lambda: (reader.spots(), reader.edges()))


def edges_of(labels: dict[NodeId, Label]) -> set[DrawnEdge]:
    """Return the edges that nodes with these labels should have."""
    n = len(labels)
    holder = {label: node for node, label in labels.items()}
    assert holder.keys() == {Label.nth(index) for index in range(n)}
    ring = {(edge, "ring", levels(n)) for edge in ring_edges(n)}
    shortcuts = {(edge, "shortcut", level(edge)) for edge in shortcut_edges(n) - ring_edges(n)}
    return {
        (min(holder[a], holder[b]), max(holder[a], holder[b]), kind, at_level, "right")
        for (a, b), kind, at_level in ring | shortcuts
    }


# --- another server on this machine ------------------------------------------------------


class _Nothing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def stranger() -> Iterator[str]:
    """Serve a foreign page on another port of this machine; yield its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Nothing) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join(DEADLINE_S)
