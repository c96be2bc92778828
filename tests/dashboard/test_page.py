"""The page of the dashboard in a real browser: access, keys, themes and special scenes."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urljoin

import pytest
from playwright.sync_api import Browser, expect

from skipring.core.labels import Label
from skipring.web.auth import FOREIGN
from tests.dashboard.browsing import N, Stage, colour_of, stranger, whole
from tests.web.scenes import imagining, message_of, scene_of, tell

pytestmark = pytest.mark.heavy


# --- access --------------------------------------------------------------------------------


def test_another_page_of_this_machine_cannot_read_the_dashboard(
    browser: Browser, calm: Stage
) -> None:
    with whole(browser, calm) as reader, stranger() as elsewhere:
        settings = urljoin(calm.dashboard.url, "/api/settings")
        assert reader.page.request.get(settings).status == HTTPStatus.OK  # the cookie is valid
        page = reader.page.context.new_page()  # the browser sends the cookie to all ports
        page.goto(elsewhere)
        for options in ({}, {"credentials": "include"}, {"method": "POST", "body": "{}"}):
            got = page.evaluate(
                """([address, options]) => fetch(address, options)
                     .then((answer) => answer.text()).catch((error) => error.name)""",
                [settings, options],
            )
            assert got == "TypeError"
        loaded = page.evaluate(
            """(address) => new Promise((resolve) => {
                 const script = document.createElement("script");
                 script.onload = () => resolve("loaded");
                 script.onerror = () => resolve("refused");
                 script.src = address;
                 document.head.append(script);
               })""",
            urljoin(settings, "/static/app.js"),
        )
        assert loaded == "refused"
        with page.expect_navigation() as answer:  # a form may be sent anywhere
            page.evaluate(
                """(address) => {
                     const form = document.createElement("form");
                     Object.assign(form, { method: "POST", action: address });
                     document.body.append(form);
                     form.submit();
                   }""",
                urljoin(settings, "/api/publish?topic=news"),
            )
        assert answer.value.status == HTTPStatus.FORBIDDEN
        assert answer.value.json() == {"error": FOREIGN}


# --- keys, cards and themes ----------------------------------------------------------------


def test_page_works_with_the_keyboard_alone(browser: Browser, calm: Stage) -> None:
    with whole(browser, calm) as reader:
        page, keys = reader.page, reader.page.keyboard
        keys.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        clockwise = sorted(calm.labels().items(), key=lambda each: each[1].position)
        first, second, last = (clockwise[place][0] for place in (0, 1, -1))
        keys.press("r")
        expect(page.locator(f".node[data-node={first}]")).to_be_focused()
        expect(page.locator("#tooltip")).to_contain_text(first)
        keys.press("ArrowRight")
        expect(page.locator(f".node[data-node={second}]")).to_be_focused()
        keys.press("End")
        expect(page.locator(f".node[data-node={last}]")).to_be_focused()
        assert page.locator(".node[tabindex='0']").count() == 1
        keys.press("Enter")
        expect(page.locator("#drawer-title")).to_have_text(last)
        expect(page.locator("#drawer .journal li").first).to_be_visible()
        keys.press("Escape")
        expect(page.locator("#drawer")).to_be_hidden()
        expect(page.locator(f".node[data-node={last}]")).to_be_focused()
        keys.press("?")
        expect(page.locator("#help")).to_be_visible()
        keys.press("Escape")
        expect(page.locator("#help")).to_be_hidden()
        keys.press("p")
        expect(page.locator("#publish-text")).to_be_focused()
        keys.type("t?")
        assert page.input_value("#publish-text") == "t?"  # here a key is a letter
        expect(page.locator("#as-ring")).to_have_attribute("aria-pressed", "true")


def test_chosen_theme_is_kept(browser: Browser, calm: Stage) -> None:
    with whole(browser, calm) as reader:
        page = reader.page
        body = page.locator("body")
        assert min(colour_of(body, "backgroundColor")) > 200
        page.click("#theme")  # from the theme of the system to light
        page.click("#theme")  # to dark
        assert max(colour_of(body, "backgroundColor")) < 60
        page.reload()
        assert max(colour_of(body, "backgroundColor")) < 60


def test_page_layout_is_stable_while_it_fills(browser: Browser, calm: Stage) -> None:
    with imagining(browser, calm.dashboard.url) as reader:
        parts = ("stage", "timeline", "supervisor", "messages", "topics", "journey")
        before = {part: reader.page.locator(f"#{part}").bounding_box() for part in parts}
        tell(reader, "scene", scene_of(N))
        tell(reader, "messages", {"messages": [message_of(number) for number in range(30)]})
        row = {"topic": "news", "members": N, "publications": 30, "rate": 0.5, "lag": 2, "roots": 2}
        row |= {"differs": ["n03", "n04", "n05"], "healthy": False}
        tell(reader, "overview", {"topics": [row], "supervisors": []})
        expect(reader.page.locator("#topic-rows")).to_contain_text("n03")
        expect(reader.page.locator(".message").last).to_contain_text("number 29")
        assert before == {part: reader.page.locator(f"#{part}").bounding_box() for part in parts}


def test_members_that_lack_publications_are_not_shown_as_healthy(
    browser: Browser, calm: Stage
) -> None:
    with imagining(browser, calm.dashboard.url) as reader:
        scene, verdict = scene_of(N), reader.page.locator("#verdict")
        tell(reader, "scene", scene)
        expect(verdict).to_have_attribute("data-state", "healthy")
        tell(reader, "scene", scene | {"number": 2, "wrong": scene["wrong"] | {"PUB": 2}})
        expect(verdict).to_have_text("out of sync: 2 members")
        expect(verdict).to_have_attribute("data-state", "syncing")


def test_lost_connection_is_reported_until_it_returns(browser: Browser, calm: Stage) -> None:
    with whole(browser, calm) as reader:
        page = reader.page
        page.route("**/api/events**", lambda route: route.abort())
        page.reload()
        expect(page.locator("#lost")).to_contain_text("lost")
        page.unroute("**/api/events**")
        expect(page.locator("#connection-text")).to_have_text("live")
        expect(page.locator("#lost")).to_be_hidden()
        reader.complaints.clear()  # the browser logs an error for the aborted request


def test_arrow_keys_walk_through_the_messages_from_the_log(browser: Browser, calm: Stage) -> None:
    with imagining(browser, calm.dashboard.url) as reader:
        page, log = reader.page, reader.page.locator("#message-log")
        first, second = (page.locator(".message", has_text=f"number {each}") for each in (0, 1))
        log.focus()
        page.keyboard.press("ArrowDown")  # there may be no message yet
        tell(reader, "messages", {"messages": [message_of(number) for number in range(2)]})
        expect(second).to_be_visible()
        log.focus()
        page.keyboard.press("ArrowDown")
        expect(page.locator(".message[tabindex='0']")).to_be_focused()
        first.focus()
        page.keyboard.press("ArrowDown")
        expect(second).to_be_focused()
        page.keyboard.press("ArrowUp")
        expect(first).to_be_focused()


# --- scenes beyond a small ring --------------------------------------------------------------


# In each frame: the distance of the ends of the edges from their nodes, as drawn and as used by
# pulses, and the distance by which a line of the ring leaves it.
GLIDING = """() => {
  window.frames_seen = { moving: 0, apart: 0, outside: 0 };
  const orbit = document.querySelector(".orbit");
  const [x, y, radius] = ["cx", "cy", "r"].map((name) => orbit[name].baseVal.value);
  const far = (a, b) => Math.hypot(a.x - b.x, a.y - b.y);
  const spot = (name) => {
    const node = document.querySelector(`.node[data-node=${name}]`);
    const { e, f } = node.transform.baseVal.consolidate().matrix;
    return { x: e, y: f };
  };
  const look = () => {
    const seen = window.frames_seen;
    seen.moving += document.getElementById("ring").dataset.moving === "true";
    for (const path of document.querySelectorAll(".edge")) {
      const [a, b, length] = [spot(path.dataset.a), spot(path.dataset.b), path.getTotalLength()];
      const { curve } = path.item;
      const ends = [[a, curve.at(0)], [b, curve.at(1)]];
      ends.push([a, path.getPointAtLength(0)], [b, path.getPointAtLength(length)]);
      seen.apart = Math.max(seen.apart, ...ends.map(([node, end]) => far(node, end)));
      const points = [0.2, 0.35, 0.5, 0.65, 0.8].map((at) => path.getPointAtLength(at * length));
      const outside = points.map((point) => far(point, { x, y }) - radius);
      seen.outside = Math.max(seen.outside, ...outside);
    }
    requestAnimationFrame(look);
  };
  look();
}"""


def test_edges_stay_at_their_nodes_and_inside_the_ring_while_nodes_move(
    browser: Browser, calm: Stage
) -> None:
    with imagining(browser, calm.dashboard.url) as reader:
        mixed, whole_again = scene_of(N), scene_of(N)
        for place, node in enumerate(mixed["nodes"]):
            node["turn"] = whole_again["nodes"][place * 7 % N]["turn"]
        tell(reader, "scene", mixed)
        expect(reader.page.locator(".node")).to_have_count(N)
        reader.page.evaluate(GLIDING)
        tell(reader, "scene", whole_again)
        reader.until(lambda: reader.is_drawn({f"n{i:03}": Label.nth(i) for i in range(N)}))
        seen = reader.page.evaluate("() => window.frames_seen")
        assert seen["moving"] > 0
        assert seen["apart"] < 2  # pixels
        assert seen["outside"] < 2


def test_thousand_nodes_move_to_their_positions(browser: Browser, calm: Stage) -> None:
    with imagining(browser, calm.dashboard.url) as reader:
        elsewhere = scene_of(1000)
        for node in elsewhere["nodes"]:
            node["turn"] = (node["turn"] + 0.3) % 1
        tell(reader, "scene", elsewhere)
        expect(reader.page.locator(".node")).to_have_count(1000)
        tell(reader, "scene", scene_of(1000))
        labels = {f"n{index:03}": Label.nth(index) for index in range(1000)}
        reader.until(lambda: reader.is_drawn(labels))
        expect(reader.page.locator(".node text").first).to_be_hidden()
        reader.page.locator(".node[data-node=n000] .dot").hover()
        expect(reader.page.locator("#tooltip")).to_contain_text("n000")


def test_nodes_without_a_position_stay_visible(browser: Browser, calm: Stage) -> None:
    with imagining(browser, calm.dashboard.url) as reader:
        scene = scene_of(N)
        lost = {"label": None, "turn": None}
        scene["nodes"][3] |= {**lost, "mark": "label", "reasons": ["n003 has no label"]}
        scene["nodes"][4] |= {**lost, "mark": "dead", "reasons": ["it does not answer"]}
        scene["nodes"][5] |= {"label": "0", "turn": 0.0, "mark": "label"}  # another node has it
        tell(reader, "scene", scene)
        expect(reader.page.locator(".node")).to_have_count(N)
        stage = reader.page.locator("#stage").bounding_box()
        assert stage is not None
        spots = reader.spots()
        assert len({(round(x), round(y)) for x, y in spots.values()}) == N  # no node hides another
        for x, y in spots.values():
            assert 0 < x < stage["width"]
            assert 0 < y < stage["height"]
        expect(reader.page.locator("#tray-note")).to_be_visible()


def test_node_shows_its_violations_when_pointed_at_or_focused(
    browser: Browser, calm: Stage
) -> None:
    with imagining(browser, calm.dashboard.url) as reader:
        page, scene = reader.page, scene_of(N)
        scene["nodes"][7] |= {"mark": "label", "reasons": ["n007 should have label 0111"]}
        tell(reader, "scene", scene)
        node, tooltip = page.locator(".node[data-node=n007]"), page.locator("#tooltip")
        node.locator(".dot").hover()
        expect(tooltip).to_contain_text("n007 should have label 0111")
        page.mouse.move(1, 1)
        expect(tooltip).to_be_hidden()
        page.keyboard.press("r")
        while "n007" not in str(page.locator(".node:focus").get_attribute("data-node")):
            page.keyboard.press("ArrowRight")
        expect(tooltip).to_contain_text("n007 should have label 0111")
        assert "n007 should have label 0111" in str(node.get_attribute("aria-label"))


def test_wrong_edge_shows_its_reason_when_pointed_at(browser: Browser, calm: Stage) -> None:
    with imagining(browser, calm.dashboard.url) as reader:
        scene = scene_of(N)
        wrong = {"a": "n004", "b": "n011", "level": 4, "kind": "ring", "state": "wrong"}
        scene["edges"].append({**wrong, "reason": "n004's right is n011, should be n008"})
        tell(reader, "scene", scene)
        edge = reader.page.locator(".edge[data-state=wrong]")
        middle = edge.evaluate(
            """(path) => {
                 const { x, y } = path.getPointAtLength(path.getTotalLength() * 0.4);
                 const { left, top } = document.getElementById("stage").getBoundingClientRect();
                 return [x + left, y + top];
               }"""
        )
        reader.page.mouse.move(*middle)
        expect(reader.page.locator("#tooltip")).to_contain_text("should be n008")
        assert "should be n008" in str(edge.get_attribute("aria-label"))
        red, green, blue = colour_of(edge, "stroke")
        assert red > 2 * max(green, blue)
