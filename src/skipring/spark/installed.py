"""Is Spark here at all? Asked before anything that imports it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from skipring.errors import InputError

_NEEDED: Final = ("pyspark", "pyarrow", "pandas", "plotly")  # the extra "spark" of pyproject.toml


def require_spark() -> None:
    """Raise an InputError that says what to install, if the extra ``spark`` is not."""
    if not all(find_spec(name) for name in _NEEDED):
        raise InputError("Spark is not installed; run: pip install 'skipring[spark]'")
