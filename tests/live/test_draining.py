"""Drain of stopping members: real processes, SIGTERM and ``/readyz``."""

from __future__ import annotations

import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from faults.processes import LiveProcesses, numbered

AT_ONCE = 500
ANSWER_S = 30.0


def readiness(ring: LiveProcesses, name: str) -> str:
    """Return the answer of a node at ``/readyz``; empty if it is ready."""
    address = ring.events(name, "metrics_started")[-1]["address"]
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=ANSWER_S):
            return ""
    except urllib.error.HTTPError as error:
        return error.read().decode()


def until_ready(ring: LiveProcesses, name: str) -> None:
    ring.until(
        lambda: bool(ring.events(name, "metrics_started")), lambda: f"{name} has not started"
    )
    ring.until(lambda: not readiness(ring, name), lambda: readiness(ring, name))


@contextmanager
def ready_ring(path: Path, count: int) -> Iterator[LiveProcesses]:
    """Yield a ring of processes that are ready."""
    with LiveProcesses(path, has_metrics=True) as ring:
        ring.start_supervisor()
        ring.start(*numbered(count))
        for name in numbered(count):
            until_ready(ring, name)
        yield ring


def publish(ring: LiveProcesses, name: str, count: int) -> set[bytes]:
    made: set[bytes] = set()
    for start in range(0, count, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, count))
        made.update(ring.publish(name, *((b"%d " % n).ljust(1024, b"x") for n in numbers)))
    return made


def stop(ring: LiveProcesses, name: str) -> int:
    ring.send_signal(name, signal.SIGTERM)
    return ring.exit_status(name)


@pytest.mark.parametrize(
    "count", [300, pytest.param(20_000, marks=[pytest.mark.heavy, pytest.mark.slow])]
)
def test_rolling_replacement_keeps_every_publication(tmp_path: Path, count: int) -> None:
    old = numbered(3)
    with ready_ring(tmp_path, len(old)) as ring:
        made = publish(ring, "n00", count)
        assert len(made) == count
        for name in old:
            assert stop(ring, name) == 0
            newcomer = f"new-{name}"
            ring.start(newcomer)
            until_ready(ring, newcomer)
            assert ring.stored(newcomer) == made
        for name in ring.nodes:
            assert ring.stored(name) == made


def test_second_signal_ends_the_wait_for_an_unresponsive_member(tmp_path: Path) -> None:
    with ready_ring(tmp_path, 2) as ring:
        ring.pause("n01")
        ring.publish("n00", b"x")
        ring.send_signal("n00", signal.SIGTERM)
        ring.until(lambda: bool(ring.events("n00", "node_stopping")))
        ring.send_signal("n00", signal.SIGTERM)
        assert ring.exit_status("n00") == 1
        (event,) = ring.events("n00", "not_handed_over")
        assert event["publications"] == 1
        ring.resume("n01")


def test_member_whose_neighbour_was_killed_ends_with_status_1_and_a_count(tmp_path: Path) -> None:
    with ready_ring(tmp_path, 2) as ring:
        ring.kill("n01")
        ring.publish("n00", *(b"%d" % number for number in range(50)))
        assert stop(ring, "n00") == 1
        (event,) = ring.events("n00", "not_handed_over")
        assert event["publications"] == 50


def test_members_with_disks_that_stop_together_end_with_status_0(tmp_path: Path) -> None:
    names = numbered(6)
    with ready_ring(tmp_path, len(names)) as ring:
        ring.publish("n00", b"x")
        ring.until_legitimate()
        for name in names:
            ring.send_signal(name, signal.SIGTERM)
        assert [ring.exit_status(name) for name in names] == [0] * len(names)
        last = [name for name in names if ring.events(name, "on_this_disk_only")]
        assert last
        for name in last:
            (event,) = ring.events(name, "on_this_disk_only")
            assert event["publications"] == 1
