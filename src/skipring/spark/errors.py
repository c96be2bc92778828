"""Translation of Spark's exceptions into errors of skipring.

Readers and writers run in other processes. Their errors return as text inside Spark's errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

from skipring import errors
from skipring.errors import InputError, SkipringError

_NEEDED: Final = ("pyspark", "pyarrow", "pandas", "plotly")  # the extra "spark" of pyproject.toml


SENTENCE_MAX: Final = 500  # Guess: a sentence is shorter.

_OURS: Final = re.compile(r"^.*?\bskipring\.errors\.(\w+): (.+)$", re.MULTILINE)
_RAISED: Final = re.compile(
    r"^(?:Caused by: )?(?:\w+\.)*(\w+(?:Error|Exception): .+)$", re.MULTILINE
)


def require_spark() -> None:
    """Raise an InputError that states what to install, if the extra ``spark`` is missing."""
    if not all(find_spec(name) for name in _NEEDED):
        raise InputError("Spark is not installed; run: pip install 'skipring[spark]'")


@contextmanager
def translate_spark_errors() -> Iterator[None]:
    """Translate exceptions of Spark into errors of skipring."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415  (see require_spark)

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise to_skipring_error(error) from None


def to_skipring_error(error: Exception) -> SkipringError:
    """Return the skipring error that caused an exception, or else Spark's reason."""
    text = str(error)
    for name, sentence in reversed(_OURS.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, SkipringError):
            return kind(sentence.strip())
    raised = _RAISED.findall(text)
    reason = raised[-1] if raised else text.strip().partition("\n")[0]
    return SkipringError(f"Spark has failed: {reason[:SENTENCE_MAX]}")
