"""The page about the architecture: its tables follow from the import contracts."""

from __future__ import annotations

from tools.architecture_tables import PAGE, contracts, rendered, summary


def test_tables_follow_from_the_contracts() -> None:
    """``python tools/architecture_tables.py`` rewrites them."""
    page = PAGE.read_text(encoding="utf-8")
    assert rendered(page) == page


def test_every_module_of_a_contract_has_a_summary() -> None:
    missing = [
        f"{container}.{module}"
        for container, layers in contracts()
        for layer in layers
        for module in (each.strip() for each in layer.split("|"))
        if not summary(f"{container}.{module}")
    ]
    assert missing == []
