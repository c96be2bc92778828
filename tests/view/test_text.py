from collections import Counter
from math import cos, pi, sin
from random import Random

import pytest
from hypothesis import given, settings
from msgspec.structs import replace
from rich.text import Text

from skipring.core.labels import Label
from skipring.core.peers import NodeId
from skipring.core.state import SubscriberState, SupervisorState, legitimate_states
from skipring.core.topology import ring_edges, shortcut_edges
from skipring.view.canvas import Size
from skipring.view.text import ASCII, UNICODE, GlyphState, draw_bars, draw_ring, layout, spot
from skipring.world.adversaries import ADVERSARIES
from skipring.world.legitimacy import Layer, census
from skipring.world.snapshot import Snapshot
from tests.support.strategies import snapshots

SIZE = Size(47, 17)
RIGHT, EDGES, WRONG = (UNICODE.marks[mark] for mark in GlyphState)


def legitimate(n: int) -> Snapshot:
    """Return the ring in which node ``v3`` has the label l(3)."""
    nodes = [f"v{index}" for index in range(n)]
    database = tuple((Label.nth(index).bits, node) for index, node in enumerate(nodes))
    return Snapshot(
        supervisor=SupervisorState(database=database), subscribers=dict(legitimate_states(nodes))
    )


def with_state(world: Snapshot, node: NodeId, state: SubscriberState) -> Snapshot:
    return replace(world, subscribers=world.subscribers | {node: state})


def draw(world: Snapshot, size: Size = SIZE) -> list[str]:
    return plain(draw_ring(layout(world), size))


def plain(lines: list[Text]) -> list[str]:
    return [line.plain for line in lines]


def at(rows: list[str], bits: str, size: Size = SIZE) -> str:
    column, row = spot(Label.parse(bits), size)
    return rows[row][column]


def on_ellipse(bits: str, size: Size) -> tuple[int, int]:
    """Return the place of r(label): clockwise from the top, 7 columns for labels on each side."""
    angle = 2 * pi * int(bits, 2) / 2 ** len(bits)
    x_radius, y_radius = size.columns // 2 - 7, size.rows // 2
    return (
        round(size.columns // 2 + x_radius * sin(angle)),
        round(size.rows // 2 - y_radius * cos(angle)),
    )


# --- positions -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [Size(47, 17), Size(63, 25)])
@pytest.mark.parametrize("n", [1, 4, 5, 12, 16, 33])
def test_each_node_is_drawn_at_the_position_of_its_label(n: int, size: Size) -> None:
    rows = draw(legitimate(n), size)
    for index in range(n):
        column, row = on_ellipse(Label.nth(index).bits, size)
        assert rows[row][column] == RIGHT
    assert len({on_ellipse(Label.nth(index).bits, size) for index in range(n)}) == sum(
        row.count(RIGHT) for row in rows
    )


def test_every_label_of_a_ring_of_16_is_beside_its_node() -> None:
    rows = draw(legitimate(16))
    for index in range(16):
        bits = Label.nth(index).bits
        column, row = spot(Label.nth(index), SIZE)
        beside = rows[row][column + 2 :] if column >= 23 else rows[row][: column - 1][::-1]
        expected = bits if column >= 23 else bits[::-1]
        assert beside.startswith(expected), bits


def test_all_rows_have_the_requested_width() -> None:
    assert {len(row) for row in draw(legitimate(64))} == {SIZE.columns}


# --- marks -----------------------------------------------------------------------------


def test_wrong_label_is_marked_at_the_believed_position() -> None:
    world = legitimate(16)
    strayed = replace(world.subscribers["v3"], label=Label.parse("00111"))
    rows = draw(with_state(world, "v3", strayed))
    assert at(rows, "00111") == WRONG
    assert at(rows, "11") == UNICODE.vacant  # l(3), its right position


@pytest.mark.parametrize(
    "damage",
    [{"left": None}, {"right": None}, {"shortcuts": {}}],
    ids=["left", "right", "shortcuts"],
)
def test_wrong_edges_are_marked_at_the_right_label(damage: dict[str, object]) -> None:
    world = legitimate(16)
    rows = draw(with_state(world, "v3", replace(world.subscribers["v3"], **damage)))
    assert at(rows, "11") == EDGES
    assert sum(row.count(RIGHT) for row in rows) == 15


def test_nodes_at_one_position_are_counted_and_show_the_worst_mark() -> None:
    world = legitimate(16)
    rows = draw(with_state(world, "v3", replace(world.subscribers["v3"], label=Label.parse("01"))))
    assert at(rows, "01") == WRONG
    assert f"{WRONG} x2" in rows[8]


def test_node_without_a_label_is_counted_in_the_centre() -> None:
    rows = draw(with_state(legitimate(16), "v3", SubscriberState()))
    assert any("1 without a label" in row for row in rows)


def test_dead_nodes_are_marked_while_recorded_with_their_neighbours() -> None:
    world = legitimate(16)
    alive = {node: state for node, state in world.subscribers.items() if node != "v9"}
    rows = draw(replace(world, subscribers=alive, crashed=("v9",)))
    assert Label.nth(9).bits == "0011"
    assert at(rows, "0011") == UNICODE.dead
    assert [at(rows, bits) for bits in ("001", "01", "1")] == [EDGES, EDGES, RIGHT]


def test_nodes_unknown_to_an_emptied_database_are_wrong() -> None:
    ring = layout(replace(legitimate(16), supervisor=SupervisorState()))
    assert ring.count(GlyphState.LABEL) == 16
    assert (ring.recorded, ring.sound) == (0, frozenset())


@pytest.mark.parametrize("seed", range(5))
def test_marks_agree_with_the_census(seed: int) -> None:
    for code in ("A06", "A11", "A12", "A14", "A15"):
        world = ADVERSARIES[code].build(16, Random(seed))
        ring, wrong = layout(world), census(world)
        assert ring.count(GlyphState.LABEL) == wrong[Layer.LABELS]
        edges = Counter(dot.mark for dot in ring.dots)[GlyphState.RIGHT] < ring.members
        assert edges == any(wrong[layer] for layer in (Layer.LABELS, Layer.RING, Layer.SHORTCUTS))


@settings(max_examples=25)
@given(world=snapshots())
def test_any_state_can_be_drawn(world: Snapshot) -> None:
    ring = layout(world)
    assert [len(row) for row in plain(draw_ring(ring, SIZE))] == [47] * 17


def test_marks_differ_by_more_than_colour_even_in_ascii() -> None:
    for glyphs in (UNICODE, ASCII):
        signs = {*glyphs.marks.values(), glyphs.dead, glyphs.vacant, glyphs.outline}
        assert len(signs) == len(GlyphState) + 3
    ring = layout(ADVERSARIES["A15"].build(16, Random(1)))
    assert "".join(plain(draw_ring(ring, SIZE, ASCII))).isascii()


@pytest.mark.parametrize("n", [2, 3, 5, 12, 16, 33])
def test_legitimate_ring_has_exactly_the_sound_edges(n: int) -> None:
    assert layout(legitimate(n)).sound == ring_edges(n) | shortcut_edges(n)


# --- bars ------------------------------------------------------------------------------


def test_largest_value_has_a_full_bar_and_smallest_a_visible_one() -> None:
    assert plain(draw_bars([16, 8, 1, 0], 10, 2)) == ["█   ", "██▁ "]


def test_excess_bars_keep_the_newest_values() -> None:
    assert plain(draw_bars([8, 1, 2, 3], 3, 1)) == ["▁▂▃"]


def test_zero_values_have_no_bars() -> None:
    assert plain(draw_bars([0, 0], 3, 1)) == ["  "]


# --- edges -----------------------------------------------------------------------------


def is_dotted(character: str) -> bool:
    return "\u2800" < character <= "\u28ff"


def dots(lines: list[Text], style: str) -> int:
    """Return the number of braille dots with a style."""
    found = 0
    for line in lines:
        for span in line.spans:
            if str(span.style) == style:
                text = line.plain[span.start : span.end]
                found += sum((ord(each) - 0x2800).bit_count() for each in text if is_dotted(each))
    return found


def test_sound_edges_are_drawn_by_level_and_broken_ones_with_gaps() -> None:
    world = legitimate(16)
    whole = draw_ring(layout(world), SIZE)
    assert {style: dots(whole, style) > 0 for style in ("green", "magenta", "blue", "cyan")} == {
        "green": True,
        "magenta": True,
        "blue": True,
        "cyan": True,
    }
    assert dots(whole, "red") == 0
    # Label 1 is the other end of the only edge of level 1, and of two of level 2.
    broken = draw_ring(
        layout(with_state(world, "v1", replace(world.subscribers["v1"], shortcuts={}))), SIZE
    )
    assert dots(broken, "magenta") == 0
    assert 0 < dots(broken, "red") < dots(whole, "magenta") + dots(whole, "blue")
    assert 0 < dots(broken, "blue") < dots(whole, "blue")


def test_ascii_ring_has_an_outline_and_no_chords() -> None:
    rows = plain(draw_ring(layout(legitimate(4)), SIZE, ASCII))
    assert "".join(rows).isascii()
    assert rows[8][9:38].isspace()
    assert "." in rows[1]
