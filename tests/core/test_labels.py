"""Labels: the values of l, their order, and invalid labels (section 2.1)."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skipring.core.labels import CIRCLE, LABEL_BITS, Label
from tests.support.machines import unhurried
from tests.support.strategies import labels

bit_strings = st.just("0") | st.text("01", max_size=LABEL_BITS - 1).map(lambda head: head + "1")


def paper_r(bits: str) -> int:
    """Return r(y) of section 2.1, the sum of y_i / 2^i, in units of 2^-64."""
    return sum(CIRCLE >> place for place, bit in enumerate(bits, start=1) if bit == "1")


@unhurried
@given(labels())
def test_every_label_is_a_value_of_l(own: Label) -> None:
    assert Label.nth(own.index) == own


@unhurried
@given(bit_strings)
@example("0" * 63 + "1")
def test_parsing_and_writing_bits_are_inverse(bits: str) -> None:
    assert Label.parse(bits).bits == str(Label.parse(bits)) == bits


@unhurried
@given(labels(), labels())
def test_order_of_labels_equals_that_of_bit_strings_and_of_r(a: Label, b: Label) -> None:
    assert (a < b) == (a.bits < b.bits) == (paper_r(a.bits) < paper_r(b.bits))
    assert (a == b) == (a.bits == b.bits)


@unhurried
@given(st.integers())
def test_positions_wrap_around_the_circle(place: int) -> None:
    assert Label.at(place) == Label.at(place + CIRCLE)
    assert (Label.at(place).position - place) % CIRCLE == 0


NO_LABELS = ["", "00", "10", "010", "2", "1 ", " 1", "1_1", "-1", "+1", "0b1", "\u0661", "1" * 65]


@pytest.mark.parametrize("bits", NO_LABELS)
def test_parse_refuses_text_that_l_never_produces(bits: str) -> None:
    with pytest.raises(ValueError, match="not a label"):
        Label.parse(bits)


@pytest.mark.parametrize("position", [-1, CIRCLE])
def test_position_outside_the_circle_is_refused(position: int) -> None:
    with pytest.raises(ValueError, match="not a label"):
        Label(position)
    with pytest.raises(msgspec.ValidationError, match="not a label"):
        msgspec.convert([position], Label)


def test_label_is_immutable() -> None:
    with pytest.raises(AttributeError):
        Label(0).position = 1  # type: ignore[misc]
