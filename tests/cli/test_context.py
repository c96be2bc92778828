"""``skipring context``: save, use, list, show and delete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from skipring.cli import skipring


@pytest.fixture(autouse=True)
def _own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SKIPRING_CONTEXT", raising=False)


def context(*words: str) -> Result:
    return CliRunner().invoke(skipring, ["context", *words])


def test_saved_context_is_listed_shown_used_and_deleted() -> None:
    assert "no contexts" in context("list").output
    assert "skipring context use dev" in context("save", "dev", "--supervisor", "7400").output
    assert context("save", "lab", "--supervisor", "skipring://:1,:2").exit_code == 0
    assert context("use", "lab").exit_code == 0
    assert context("list").output == "  dev  127.0.0.1:7400\n* lab  127.0.0.1:1,127.0.0.1:2\n"
    shown = json.loads(context("show", "--json").output)
    assert (shown["name"], shown["supervisor"]) == ("lab", "127.0.0.1:1,127.0.0.1:2")
    assert "127.0.0.1:7400" in context("show", "dev").output
    assert context("delete", "lab").exit_code == 0
    assert context("show").exit_code != 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["use", "x"], "no context 'x'; no contexts are saved"),
        (["delete", "x"], "no context 'x'"),
        (["save", "a/b", "--supervisor", "1"], "a context name has"),
        (["save", "x", "--supervisor", "here"], "expected HOST:PORT"),
        (["save", "x", "--supervisor", "10.0.0.1:1"], "no certificates"),
        (["save", "x", "--supervisor", "1", "--tls-ca", "ca.pem"], "go together"),
    ],
)
def test_unusable_context_is_refused(words: list[str], reason: str) -> None:
    assert reason in str(context(*words).exception)


def test_unreadable_certificates_are_refused_when_saved() -> None:
    files = ["--tls-ca", "ca.pem", "--tls-cert", "me.pem", "--tls-key", "me.key"]
    assert "ca.pem" in str(context("save", "x", "--supervisor", "1", *files).exception)
    assert "no contexts" in context("list").output
