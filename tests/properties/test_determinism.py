"""Determinism: the same seed gives the same bytes in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = (
    "--n 24 --adversary {} --seed 11 --loss 0.05 --duplicate 0.05 --churn 0.01 --scheduler {} "
    "--publications 30"
)


def output(arguments: str, hash_seed: str, dump: Path) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "skipring", "simulate", *arguments.split(), "--dump", str(dump)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout, dump.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("adversary", "scheduler"),
    [("A15", "random"), ("A46", "delay"), ("A45", "swizzle"), ("A47", "sync")],
)
def test_run_does_not_depend_on_the_hash_seed(
    tmp_path: Path, adversary: str, scheduler: str
) -> None:
    arguments = COMMAND.format(adversary, scheduler) + (" --eager" if scheduler != "random" else "")
    first = output(arguments, "0", tmp_path / "a.json")
    assert output(arguments, "4242", tmp_path / "b.json") == first
