"""Errors of Spark as errors of skipring, and Spark that is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.errors import PySparkException

from skipring.errors import DataLossError, InputError, SkipringError, UnreachableError
from skipring.spark import errors
from skipring.spark.errors import require_spark, to_skipring_error, translate_spark_errors

TRACEBACK = """[STREAM_FAILED] Query [id = 7, runId = 8] terminated with exception: Traceback:
  File "worker.py", line 1, in main
    raise ValueError("first")
ValueError: first

During handling of the above exception, another exception occurred:
skipring.errors.DataLossError: the store is gone; bring it back
\tat org.apache.spark.Worker.run(Worker.scala:1)
"""


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        (TRACEBACK, DataLossError, "the store is gone; bring it back"),
        ("pickled: skipring.errors.UnreachableError: away", UnreachableError, "away"),
        ("x\nskipring.errors.Unheard: of", SkipringError, "Spark has failed: x"),
        ("a\nCaused by: java.io.IOException: disk\n\tat x", SkipringError,
         "Spark has failed: IOException: disk"),
        ("[A] one\ntwo", SkipringError, "Spark has failed: [A] one"),
    ],
)  # fmt: skip
def test_spark_errors_become_one_sentence(
    text: str, kind: type[SkipringError], sentence: str
) -> None:
    error = to_skipring_error(PySparkException(text))
    assert type(error) is kind
    assert str(error) == sentence
    with pytest.raises(kind), translate_spark_errors():
        raise PySparkException(text)


def test_missing_spark_is_reported_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_spark()
    monkeypatch.setattr(errors, "find_spec", lambda name: None if name == "pyspark" else name)
    with pytest.raises(InputError) as caught:
        require_spark()
    assert str(caught.value) == "Spark is not installed; run: pip install 'skipring[spark]'"


def test_check_for_spark_needs_no_spark() -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from skipring.spark.errors import require_spark\n"
        "try: require_spark()\nexcept Exception as error: print(error)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith("Spark is not installed")
