"""The limit on open files: raised as far as permitted."""

import resource

import pytest

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
