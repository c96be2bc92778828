"""``skipring certs``: written files, next steps on a terminal, and no printed keys."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from skipring.cli import skipring
from skipring.errors import InputError
from skipring.security.credentials import Credentials
from tests.support.commands import invoked, on_terminal


def printed(*words: str) -> list[dict[str, object]]:
    result = CliRunner().invoke(skipring, ["certs", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def refusal(*words: str) -> str:
    """Return the sentence with which a command is refused."""
    error = invoked("certs", *words).exception
    assert isinstance(error, InputError), error
    assert "\n" not in str(error)
    return str(error)


def on_a_terminal(*words: str) -> str:
    """Return the output of a command on a terminal."""
    with on_terminal("certs", *words) as terminal:
        assert terminal.read_all() == 0
    return terminal.shown.replace("\r\n", "\n")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def days_until(moment: object) -> int:
    assert isinstance(moment, str)
    ends = datetime.strptime(moment, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    return round((ends - datetime.now(UTC)) / timedelta(days=1))


def test_authority_is_created_in_certs_by_default(here: Path) -> None:
    (row,) = printed("init")
    assert (row["ca"], row["key"]) == ("certs/ca.pem", "certs/ca.key")
    assert days_until(row["not_after"]) == 3650
    (other,) = printed("init", "x/y", "--days", "7", "--json")
    assert (other["ca"], other["key"]) == ("x/y/ca.pem", "x/y/ca.key")
    assert days_until(other["not_after"]) == 7
    assert (here / "x" / "y" / "ca.key").stat().st_mode & 0o777 == 0o600


def test_issued_certificates_load_as_credentials(here: Path) -> None:
    printed("init")
    rows = printed("issue", "supervisor", "ann", "--host", "localhost", "--host", "10.0.0.1")
    assert [row["name"] for row in rows] == ["supervisor", "ann"]
    for row in rows:
        files = [Path(str(row[part])) for part in ("ca", "cert", "key")]
        assert [path.name for path in files] == [
            "ca.pem",
            f"{row['name']}.pem",
            f"{row['name']}.key",
        ]
        credentials = Credentials(*files)
        assert credentials.name == row["name"]
        assert f"{credentials.expires:%Y-%m-%dT%H:%M:%SZ}" == row["not_after"]
        assert days_until(row["not_after"]) == 365
        assert row["cut_to_authority"] is False


def test_authority_and_certificates_may_be_in_different_directories(here: Path) -> None:
    printed("init", "safe", "--days", "5")
    (row,) = printed("issue", "ann", "--dir", "safe", "--out", "new/ann", "--days", "6", "--json")
    assert (row["ca"], row["cert"]) == ("safe/ca.pem", "new/ann/ann.pem")
    assert row["cut_to_authority"] is True
    assert days_until(row["not_after"]) == 5
    assert {path.name for path in (here / "safe").iterdir()} == {"ca.pem", "ca.key"}


def test_terminal_output_names_the_next_step(tmp_path: Path) -> None:
    told = on_a_terminal("init", "my certs", "--days", "5")
    assert "my certs/ca.pem" in told
    assert "skipring certs issue supervisor node-1 --dir 'my certs'\n" in told
    told = on_a_terminal("issue", "ann", "supervisor.2", "--dir", "my certs")
    assert "They expire with their authority, earlier than requested.\n" in told
    files = "--tls-ca 'my certs/ca.pem' --tls-cert 'my certs/{0}.pem' --tls-key 'my certs/{0}.key'"
    assert f"  skipring node --name ann {files.format('ann')} " in told
    assert f"  skipring supervisor {files.format('supervisor.2')} " in told
    told = on_a_terminal("issue", "b", "--days", "2", "--dir", "my certs")
    assert "earlier than requested" not in told


def test_no_key_is_printed(tmp_path: Path) -> None:
    told = on_a_terminal("init")
    told += json.dumps(printed("issue", "ann"))
    for name in ("ca.key", "ann.key"):
        _, *secret, _ = (tmp_path / "certs" / name).read_text().splitlines()
        assert all(line not in told for line in secret)
    assert "PRIVATE" not in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["issue", "ann"], "certs/ca.pem: there is no such file; create an authority first"),
        (["init", "--days", "0"], "a certificate is valid for 1 to 36500 days, not 0"),
        (["issue", "a b"], "invalid name for a certificate: a node has 1 to 64 characters"),
        (["issue", "a", "--host", "b:1"], "invalid host: 'b:1'; use an IP address or a name"),
        (["issue", "a", "a"], "the name a is given twice"),
    ],
)
def test_impossible_request_is_refused_in_one_sentence(
    tmp_path: Path, words: list[str], told: str
) -> None:
    assert refusal(*words).startswith(told)
    assert list(tmp_path.iterdir()) == []


def test_second_authority_does_not_replace_the_first(tmp_path: Path) -> None:
    printed("init")
    before = (tmp_path / "certs" / "ca.key").read_bytes()
    assert refusal("init").startswith("certs/ca.pem: exists already")
    assert (tmp_path / "certs" / "ca.key").read_bytes() == before


# --- denied certificates ---------------------------------------------------------------


def test_denied_certificates_are_listed_with_their_serial_numbers(here: Path) -> None:
    printed("init")
    rows = {row["name"]: row for row in printed("issue", "ann", "bob", "eve")}
    assert {row["denied"] for row in printed("list")} == {False}
    (first,) = printed("deny", "certs/bob.pem")
    assert first == {
        "serial": rows["bob"]["serial"],
        "list": "certs/denied-serials.txt",
        "is_new": True,
    }
    again, other = printed("deny", "certs/bob.pem", str(rows["eve"]["serial"]))
    assert (again["is_new"], other["is_new"]) == (False, True)
    listed = {row["name"]: row for row in printed("list")}
    assert {name: row["serial"] for name, row in listed.items()} == {
        name: row["serial"] for name, row in rows.items()
    }
    assert [name for name, row in listed.items() if row["denied"]] == ["bob", "eve"]


def test_terminal_output_names_the_next_step_after_denying(tmp_path: Path) -> None:
    printed("init")
    printed("issue", "ann")
    told = on_a_terminal("deny", "certs/ann.pem")
    assert "  ann, denied at " in told
    assert "Next, copy certs/denied-serials.txt to the directory of ca.pem" in told
    assert on_a_terminal("list").endswith("  ann  denied\n")
    assert "already denied" in on_a_terminal("deny", "certs/ann.pem")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("nothing.pem", "cannot read nothing.pem: No such file or directory"),
        ("certs/ca.pem", "certs/ca.pem: the certificate of an authority; to distrust it"),
    ],
)
def test_unusable_argument_of_deny_is_one_sentence(tmp_path: Path, given: str, told: str) -> None:
    printed("init")
    assert refusal("deny", given).startswith(told)
    assert not (tmp_path / "certs" / "denied-serials.txt").exists()
