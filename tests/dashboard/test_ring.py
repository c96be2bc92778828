"""The page of the dashboard in a real browser: a live ring, publications and chaos."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from skipring.core.topology import ring_edges, shortcut_edges
from tests.dashboard.browsing import DEADLINE_S, NEAR_PX, N, Stage, await_drawn, whole

pytestmark = pytest.mark.heavy


# --- the ring ----------------------------------------------------------------------------


def test_ring_of_16_is_drawn_with_the_right_positions_and_edges(
    browser: Browser, calm: Stage
) -> None:
    with whole(browser, calm) as reader:
        assert len(reader.spots()) == N
        assert len(reader.edges()) == len(ring_edges(N) | shortcut_edges(N))
        spots = {str(label): reader.spots()[node] for node, label in calm.labels().items()}
        x, y, radius = reader.circle()
        assert math.dist(spots["0"], (x, y - radius)) < NEAR_PX  # at the top
        assert math.dist(spots["01"], (x + radius, y)) < NEAR_PX  # a quarter turn, clockwise


def test_broadcast_tree_is_drawn_on_demand_with_its_root_on_top(
    browser: Browser, calm: Stage
) -> None:
    with whole(browser, calm) as reader:
        page = reader.page
        expect(page.locator(".tree-edge").first).to_be_hidden()
        page.click("#as-tree")
        expect(page.locator(".tree-edge").first).to_be_visible()
        reader.come_to_rest()
        branches = page.locator(".tree-edge").evaluate_all(
            "(paths) => paths.map(({ dataset }) => [dataset.a, dataset.b])"
        )
        assert len({child for _, child in branches}) == N - 1
        root = next(node for node, label in calm.labels().items() if label.position == 0)
        assert {parent for parent, _ in branches} - {child for _, child in branches} == {root}
        spots = reader.spots()
        assert all(spots[parent][1] + 10 < spots[child][1] for parent, child in branches)
        page.click("#as-ring")
        await_drawn(reader, calm)


def test_killed_node_turns_red_and_the_ring_heals_on_the_screen(
    browser: Browser, torn: Stage
) -> None:
    with whole(browser, torn) as reader:
        victim = torn.ask(lambda cluster: cluster.nodes)[5]
        reader.remember()
        torn.ask(lambda cluster: cluster.kill(victim))
        reader.until(lambda: f"{victim} dead" in reader.looks(), reader.looks)
        red, green, blue = reader.looks()[f"{victim} dead"]
        assert red > 150
        assert red > 2 * green
        assert red > 2 * blue
        reader.expect_verdict("healthy")
        assert any(verdict.startswith("degraded: ") for verdict in reader.verdicts())
        expect(reader.page.locator("#announcer")).to_contain_text("healthy again after")
        await_drawn(reader, torn)
        assert victim not in reader.spots()


def test_scrubber_replays_the_past_and_live_returns(browser: Browser, torn: Stage) -> None:
    with whole(browser, torn) as reader:
        page = reader.page
        victim = torn.ask(lambda cluster: cluster.nodes)[3]
        torn.ask(lambda cluster: cluster.kill(victim))
        expect(page.locator(f".node[data-node={victim}]")).to_have_count(0)
        reader.expect_verdict("healthy")

        page.locator("#scrubber").focus()
        dead = page.locator(f".node[data-node={victim}][data-mark=dead]")

        def goes_back_to_it() -> bool:
            reader.step_back()
            return dead.count() > 0

        reader.until(goes_back_to_it, lambda: page.locator("#replaying").inner_text())
        expect(page.locator("#replaying")).to_contain_text("degraded")
        assert "does not answer" in str(dead.get_attribute("aria-label"))
        assert page.locator("#verdict").inner_text() == "healthy"  # the current state
        page.click("#live")
        expect(page.locator("#replaying")).to_be_hidden()
        expect(dead).to_have_count(0)


# --- publications ------------------------------------------------------------------------


@contextmanager
def subscriber(supervisor: str, out: Path) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Run `skipring sub`; yield a function that returns its output so far."""
    words = ["sub", "news", "--start", "all", "--json", "--supervisor", supervisor]
    command = [sys.executable, "-m", "skipring", *words]

    def printed() -> list[dict[str, Any]]:
        lines = out.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines]

    with out.open("wb") as file, subprocess.Popen(command, stdout=file) as running:
        try:
            yield printed
            running.send_signal(signal.SIGINT)
            running.wait(DEADLINE_S)
        finally:
            running.kill()


def test_publication_typed_in_the_page_arrives_at_a_subscriber(
    browser: Browser, torn: Stage, tmp_path: Path
) -> None:
    with (
        whole(browser, torn) as reader,
        subscriber(torn.supervisor, tmp_path / "printed") as printed,
    ):
        page = reader.page
        page.fill("#publish-text", "typed in the page")
        page.fill("#publish-key", "42")
        page.press("#publish-text", "Enter")
        expect(page.locator("#publish-outcome")).to_contain_text("Stored")
        assert page.input_value("#publish-text") == ""
        reader.until(lambda: len(printed()) > 0)
        assert [(each["payload"], each["key"]) for each in printed()] == [
            ("typed in the page", "42")
        ]
        expect(page.locator(".message").last).to_contain_text("typed in the page")


def test_delivery_path_of_a_publication_covers_every_node(browser: Browser, calm: Stage) -> None:
    with whole(browser, calm) as reader:
        page = reader.page
        page.fill("#publish-text", "on its way")
        page.click("#publish-send")
        page.locator(".message", has_text="on its way").click()
        expect(page.locator("#journey-summary")).to_contain_text(f"reached {N} of {N}")
        expect(page.locator("#journey-rows tr")).to_have_count(N)
        expect(page.locator("#journey-chart .arrival")).to_have_count(N)
        rows = page.locator("#journey-rows tr").evaluate_all(
            "(rows) => rows.map((row) => [row.dataset.node, row.children[3].textContent])"
        )
        assert {node for node, _ in rows} == calm.labels().keys()
        trails = page.locator(".trail").evaluate_all(
            "(paths) => paths.map(({ dataset }) => [dataset.b, dataset.a])"
        )
        known = calm.labels().keys()
        assert sorted(trails) == sorted([node, sender] for node, sender in rows if sender in known)
        page.keyboard.press("Escape")
        expect(page.locator(".trail")).to_have_count(0)
        # The page repeats a request that preceded the arrivals; the browser calls it a 404.
        reader.complaints = [each for each in reader.complaints if "404" not in each]


# In each frame: is anything drawn above the ring?
WATCHING_PULSES = """() => {
  window.hasPulses = false;
  window.framesWithPulses = 0;
  const canvas = document.getElementById("pulses");
  const copy = new OffscreenCanvas(canvas.width, canvas.height);
  const pen = copy.getContext("2d", { willReadFrequently: true });
  const look = () => {
    pen.clearRect(0, 0, copy.width, copy.height);
    pen.drawImage(canvas, 0, 0);
    const { data } = pen.getImageData(0, 0, copy.width, copy.height);
    window.hasPulses = new Uint32Array(data.buffer).some((pixel) => pixel !== 0);
    window.framesWithPulses += window.hasPulses;
    requestAnimationFrame(look);
  };
  look();
}"""


def test_publication_is_shown_as_passing_pulses(browser: Browser, calm: Stage) -> None:
    with whole(browser, calm) as reader:
        page = reader.page
        page.evaluate(WATCHING_PULSES)
        reader.until(lambda: page.evaluate("() => !window.hasPulses"))  # earlier pulses have passed
        page.evaluate("() => { window.framesWithPulses = 0; }")
        page.fill("#publish-text", "it can be seen to fly")
        page.press("#publish-text", "Enter")
        reader.until(lambda: page.evaluate("() => window.framesWithPulses") > 1)
        reader.until(lambda: page.evaluate("() => !window.hasPulses"))


def test_refused_publication_is_reported_beside_its_input(browser: Browser, calm: Stage) -> None:
    with whole(browser, calm) as reader:
        page = reader.page
        page.click("#publish-send")
        expect(page.locator("#publish-outcome")).to_have_text("Type a text first.")
        page.route("**/api/publish**", lambda route: route.abort())
        page.fill("#publish-text", "not delivered")
        page.click("#publish-send")
        expect(page.locator("#publish-outcome")).to_contain_text("does not answer")
        assert page.input_value("#publish-text") == "not delivered"
        reader.complaints.clear()  # the browser logs an error for the aborted request


# --- chaos -------------------------------------------------------------------------------


def test_page_without_chaos_has_no_chaos_buttons(browser: Browser, calm: Stage) -> None:
    with whole(browser, calm) as reader:
        assert reader.page.locator("#chaos").count() == 0
        assert reader.page.locator("[data-damage]").count() == 0
        status = reader.page.evaluate(
            """() => fetch("/api/chaos?topic=news", { method: "POST", body: "{}" })
                 .then(({ status }) => status)"""
        )
        assert status == 404
        reader.complaints.clear()  # the browser logs an error for the 404


def test_damage_of_each_chaos_button_is_shown_and_heals(browser: Browser, torn: Stage) -> None:
    with whole(browser, torn) as reader:
        page = reader.page
        for button in page.locator("[data-damage]").all():
            told = page.locator(f"#{button.get_attribute('aria-describedby')}")
            assert len(told.inner_text()) > 20
        reader.remember()
        page.click("[data-damage=labels]")
        expect(page.locator("#chaos-outcome")).to_contain_text("scrambled")
        reader.until(
            lambda: any(not look.endswith(" right") for look in reader.looks()), reader.looks
        )
        reader.expect_verdict("healthy")
        assert any(verdict.startswith("degraded: ") for verdict in reader.verdicts())
        await_drawn(reader, torn)
