"""Pauses of processes: a frozen loop counts, and a process without metrics does not."""

from __future__ import annotations

from email.message import Message
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError, URLError

import pytest

from faults import requests
from faults.trial import FaultRing


def ring_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **answers: object) -> FaultRing:
    """Return a ring whose processes report a pause or raise an error."""

    def metric(address: str, name: str) -> float:
        answer: Any = answers[address]
        if isinstance(answer, Exception):
            raise answer
        return float(answer)

    ring = FaultRing(tmp_path)
    monkeypatch.setattr(requests, "metric", metric)
    monkeypatch.setattr(ring, "events", lambda name, _: [{"address": name}])
    for name in answers:
        ring.running[name] = SimpleNamespace(is_paused=False)  # type: ignore[assignment]
    return ring


def refused(status: HTTPStatus) -> HTTPError:
    return HTTPError("http://x", status, "", Message(), None)


def test_longest_pause_of_all_processes_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = ring_of(tmp_path, monkeypatch, a=0.1, b=0.3, c=0.2)
    for name in "abc":
        ring.read_pause(name)
    assert ring.pause_s == 0.3


def test_frozen_loop_counts_as_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = ring_of(tmp_path, monkeypatch, a=refused(HTTPStatus.SERVICE_UNAVAILABLE))
    times = iter([10.0, 13.0])
    monkeypatch.setattr("faults.trial.monotonic", lambda: next(times))
    ring.read_pause("a")
    assert ring.pause_s == 3.0


@pytest.mark.parametrize(
    "error", [refused(HTTPStatus.NOT_FOUND), URLError("refused")], ids=["status", "no answer"]
)
def test_pause_that_cannot_be_read_fails(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = ring_of(tmp_path, monkeypatch, a=error)
    with pytest.raises(OSError, match=r"Not Found|404|refused"):
        ring.read_pause("a")
