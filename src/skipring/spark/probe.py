"""Runs on executors, before anything else does, and imports nothing that they may lack."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

# What our code imports on executors and no zip can carry, or other people's code that we do not.
NEEDED: Final = ("cryptography", "msgspec", "pandas", "prometheus_client", "pyarrow", "structlog")


def missing(_: object) -> list[str]:
    """What is not installed for the Python that this runs in."""
    return [name for name in NEEDED if find_spec(name) is None]
