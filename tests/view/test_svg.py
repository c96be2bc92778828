"""The picture of the README: it is what the code makes, and shows what happened."""

import re
from math import cos, pi, sin
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from skipring.core.labels import Label
from skipring.core.topology import ring_edges, shortcut_edges
from skipring.sim.runner import Simulation
from skipring.sim.scenario import Scenario
from skipring.view import svg
from skipring.view.text import GlyphState

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "healing.svg"
SVG = "{http://www.w3.org/2000/svg}"
BYTES_MAX = 200_000


@pytest.fixture(scope="module")
def frames() -> list[svg.SvgFrame]:
    return svg.film(svg.SCENARIO)


def wrong_looks(frame: svg.SvgFrame) -> list[str]:
    return [stroke.look for stroke in frame.strokes if stroke.look == "bad"]


def test_the_picture_in_the_docs_is_what_the_code_makes() -> None:
    assert PICTURE.read_text("utf-8") == svg.draw(), (
        "make it again: python -m skipring.view.svg > docs/images/healing.svg"
    )


def test_the_picture_runs_no_script_loads_nothing_and_is_small() -> None:
    text = PICTURE.read_text("utf-8")
    names = {element.tag.removeprefix(SVG) for element in ET.fromstring(text).iter()}
    assert names == {"svg", "title", "style", "rect", "circle", "g", "path", "line", "text"}
    assert not re.search(r"href|url\(|@import|\bon\w+=", text)
    assert len(text.encode()) < BYTES_MAX


def test_the_film_has_a_frame_for_each_round_and_ends_when_the_simulator_says_so(
    frames: list[svg.SvgFrame],
) -> None:
    report = Simulation(svg.SCENARIO).run()
    assert report.rounds_strict is not None
    assert report.rounds_publications is not None
    last = max(report.rounds_strict, report.rounds_publications)
    titles = [frame.title for frame in frames]
    rounds = [f"Round {number}" for number in range(1, last + 1)]
    assert titles == ["In order", "Scrambled", *rounds]


def test_it_is_right_before_wrong_in_every_layer_then_and_right_in_the_end(
    frames: list[svg.SvgFrame],
) -> None:
    before, damaged, *_, healed = frames
    for frame in (before, healed):
        assert not any(frame.wrong.values())
        assert {dot.mark for dot in frame.dots} == {GlyphState.RIGHT}
        assert wrong_looks(frame) == []
        edges = ring_edges(svg.SCENARIO.n) | shortcut_edges(svg.SCENARIO.n)
        assert len(frame.strokes) == len(edges)
    assert all(damaged.wrong[layer] for layer in svg.ROWS)
    assert wrong_looks(damaged)


def test_nodes_stand_at_the_angle_of_their_label(frames: list[svg.SvgFrame]) -> None:
    for dot in frames[-1].dots:
        assert dot.label is not None
        turn = 2 * pi * int(dot.label.bits, 2) / 2 ** len(dot.label.bits)
        x, y = frames[-1].places[dot.node]
        assert x == pytest.approx(svg.CENTRE[0] + svg.RADIUS * sin(turn))
        assert y == pytest.approx(svg.CENTRE[1] - svg.RADIUS * cos(turn))


def test_no_two_nodes_hide_each_other_and_all_are_in_the_picture(
    frames: list[svg.SvgFrame],
) -> None:
    for frame in frames:
        places = list(frame.places.values())
        assert len(places) == svg.SCENARIO.n
        assert len({(round(x), round(y)) for x, y in places}) == svg.SCENARIO.n
        assert all(10 < x < svg.PANEL_X and 10 < y < svg.HEIGHT - 10 for x, y in places)


def test_ring_edges_and_shortcuts_are_told_apart_by_their_level(frames: list[svg.SvgFrame]) -> None:
    looks = {}
    label = {dot.node: dot.label for dot in frames[-1].dots}
    for stroke in frames[-1].strokes:
        a, b = label[stroke.a], label[stroke.b]
        assert a is not None
        assert b is not None
        looks[min(a, b), max(a, b)] = stroke.look
    zero, top = Label.parse("0"), Label.parse("1")
    assert looks[zero, Label.parse("0001")] == "l0 ring"
    assert looks[zero, Label.parse("001")] == "l1"
    assert looks[zero, Label.parse("01")] == "l2"
    assert looks[zero, top] == "l3"


def test_another_ring_can_be_drawn_too() -> None:
    text = svg.draw(Scenario(n=5, adversary="A05", seed=3))
    assert len(ET.fromstring(text).findall(f"{SVG}circle[@class='node']")) == 5
