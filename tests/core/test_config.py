"""Rules of the protocol, the rules of each mode, and the constants."""

import pytest

from skipring.core.config import MODE_RULES, Mode, ProtocolConfig, Rule, Rules

RING = ["R1", "R2", "R8", "R9", "R10", "R11", "R12", "R13", "R14", "R15"]
PUBLICATIONS = ["T3", "T4", "T6", "T8", "T10", "batch"]
NAMES = [*RING, "R16", "R17", "S11", "B13", "k+1", *PUBLICATIONS]


def rules_on(rules: Rules) -> set[Rule]:
    return {rule for rule in Rule if getattr(rules, rule.name.lower())}


def test_rules_that_can_be_switched_off_are_listed() -> None:
    assert [str(rule) for rule in Rule] == NAMES


def test_every_rule_has_its_own_switch() -> None:
    assert list(Rules.__struct_fields__) == [rule.name.lower() for rule in Rule]


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        (Mode.PAPER, set()),
        (Mode.FIXED, {"R1", "R2", "R9", "B13", "k+1", *PUBLICATIONS}),
        (Mode.FAST, set(NAMES)),
    ],
)
def test_mode_is_a_set_of_rules(mode: Mode, names: set[str]) -> None:
    assert set(MODE_RULES[mode]) == names
    assert rules_on(Rules.of(mode)) == names


@pytest.mark.parametrize("rule", Rule)
def test_single_rule_can_be_switched_off(rule: Rule) -> None:
    assert rules_on(Rules.of(Mode.FAST, [rule])) == set(Rule) - {rule}


def test_fast_is_the_default() -> None:
    assert ProtocolConfig().rules == Rules.of() == Rules.of(Mode.FAST)


def test_constants_have_their_measured_values() -> None:
    config = ProtocolConfig()
    assert (config.neighbour_timeout_ticks_min, config.neighbour_timeout_ticks_max) == (8, 64)
    assert (config.answers_min, config.answers_share) == (64, 8)
    assert (config.digest_settle_ticks, config.digest_mismatches) == (4, 2)
    assert (config.refresh_ticks, config.refresh_share) == (16, 16)
