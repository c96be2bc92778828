"""Access to a cluster: precedence of argument, environment, context and default."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipring.errors import InputError
from skipring.net.access import Access, Context, Contexts, contexts_file


@pytest.fixture(autouse=True)
def _own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("SUPERVISOR", "TLS_CA", "TLS_CERT", "TLS_KEY", "CONTEXT"):
        monkeypatch.delenv(f"SKIPRING_{name}", raising=False)


def save_context(name: str = "prod", **files: str) -> None:
    contexts = Contexts.load()
    contexts.add(name, Context(supervisor="127.0.0.1:3", **files))
    contexts.current = name
    contexts.save()


def test_default_is_port_7400_on_loopback() -> None:
    assert Access.resolve().supervisors == ("127.0.0.1:7400",)


def test_argument_precedes_environment_precedes_context(monkeypatch: pytest.MonkeyPatch) -> None:
    save_context()
    assert Access.resolve().supervisors == ("127.0.0.1:3",)
    monkeypatch.setenv("SKIPRING_SUPERVISOR", ":2")
    assert Access.resolve().supervisors == ("127.0.0.1:2",)
    assert Access.resolve("1").supervisors == ("127.0.0.1:1",)


def test_context_certificates_are_not_shown_to_another_cluster() -> None:
    save_context(ca="ca.pem", cert="me.pem", key="me.key")
    assert Access.resolve().cert == "me.pem"
    assert Access.resolve("127.0.0.1:1").cert is None


def test_environment_certificates_belong_to_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CA", "CERT", "KEY"):
        monkeypatch.setenv(f"SKIPRING_TLS_{name}", f"{name}.pem")
    assert Access.resolve().key == "KEY.pem"
    assert Access.resolve("127.0.0.1:1").key is None
    assert Access.resolve(ca="a", cert="b", key="c").key == "c"


def test_variable_selects_another_context(monkeypatch: pytest.MonkeyPatch) -> None:
    save_context()
    monkeypatch.setenv("SKIPRING_CONTEXT", "missing")
    with pytest.raises(InputError, match="no context 'missing'; saved contexts: prod"):
        Access.resolve()


def test_incomplete_certificate_names_the_missing_parameter() -> None:
    with pytest.raises(InputError) as caught:
        Access.explicit("127.0.0.1:1", ca="ca.pem", cert="me.pem")
    assert caught.value.parameter == "key"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"contexts": {"a": {}}}', b"\xff"])
def test_damaged_contexts_file_is_named(content: bytes) -> None:
    path = contexts_file()
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"contexts\.json is damaged"):
        Access.resolve()
    assert Access.resolve("127.0.0.1:1").supervisors  # an explicit address does not need it


def test_contexts_file_is_private() -> None:
    save_context()
    assert contexts_file().stat().st_mode & 0o077 == 0
