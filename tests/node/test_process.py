"""Processes: the limit on open files, and the report about damaged data."""

import resource
from pathlib import Path

import pytest

from faults.processes import LiveProcesses
from faults.requests import NO_SUPERVISOR, TOPIC
from skipring.node.process import allow_files

INFINITE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "allowed", "told"),
    [
        (1024, 4096, 2000, (2000, 4096)),
        (1024, 4096, 9999, (4096, 4096)),
        (1024, INFINITE, 9999, (9999, INFINITE)),
        (1024, 4096, 512, None),
        (INFINITE, INFINITE, 9999, None),
    ],
)
def test_file_limit_is_raised_as_far_as_needed_and_permitted(
    soft: int,
    hard: int,
    allowed: int,
    told: tuple[int, int] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: calls.append(limits))
    assert allow_files(allowed) == (told[0] if told else allowed)
    assert calls == ([told] if told else [])


NAME = "a"
PAYLOADS = [b"first publication", b"second publication", b"third publication"]


def damage_first(directory: Path) -> None:
    """Damage the first publication in its segment."""
    (path,) = [each for each in directory.rglob("*.log") if PAYLOADS[0] in each.read_bytes()]
    data = bytearray(path.read_bytes())
    data[data.index(PAYLOADS[0])] ^= 1
    path.write_bytes(data)


@pytest.mark.heavy
def test_node_logs_what_its_store_has_lost(tmp_path: Path) -> None:
    with LiveProcesses(tmp_path) as processes:
        processes.start(NAME, supervisor=NO_SUPERVISOR)
        for payload in PAYLOADS:
            processes.publish(NAME, payload)
        processes.kill(NAME)
        processes.restart(NAME)
        assert processes.events(NAME, "storage_recovered") == []
        processes.kill(NAME)
        damage_first(processes.data(NAME))
        processes.restart(NAME)
        (event,) = processes.events(NAME, "storage_recovered")
        assert event["level"] == "warning"
        assert event["what"] == f"records lost: 1 of {TOPIC}"
