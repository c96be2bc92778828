"""Credentials that change while a process runs: renewed, denied and expired certificates."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import copy

import pytest
from cryptography import x509

from skipring.errors import InputError
from skipring.net import connection as connection_module
from skipring.net import transport as transport_module
from skipring.security import credentials as credentials_module
from skipring.security.ca import issue, make_authority
from skipring.security.credentials import Credentials, PeerCertificate
from skipring.security.deny_list import deny, deny_list_beside
from tests.support.exchanges import TransportHost, call, link_of, logged, note, running
from tests.support.processes import LoggingProcess, logging_process
from tests.support.rings import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check files and connections without delay."""
    monkeypatch.setattr(credentials_module, "CHECK_S", 0.0)
    monkeypatch.setattr(credentials_module, "FRESH_NS", 0)
    monkeypatch.setattr(transport_module, "CHECK_S", 0.01)


class Machine:
    """A directory with the files of one process, as on a machine of its own."""

    def __init__(self, authority: Path, directory: Path, name: str) -> None:
        self.name, self._authority, self._directory = name, authority, directory
        self._issued = 0
        directory.mkdir()
        self.renew()
        copy(authority / "ca.pem", directory)

    def renew(self, name: str = "", days: int = 10) -> None:
        """Replace the certificate by another one."""
        name, self._issued = name or self.name, self._issued + 1
        issued = self._directory / f"issued-{self._issued}"
        issue(self._authority, name, issued, days=days, hosts=[])
        for end in ("pem", "key"):
            (issued / f"{name}.{end}").replace(self._directory / f"own.{end}")

    @property
    def certificate(self) -> Path:
        return self._directory / "own.pem"

    @property
    def ca(self) -> Path:
        return self._directory / "ca.pem"

    @property
    def serial(self) -> int:
        return x509.load_pem_x509_certificate(self.certificate.read_bytes()).serial_number

    @property
    def key(self) -> Path:
        return self._directory / "own.key"

    def credentials(self) -> Credentials:
        return Credentials(self.ca, self.certificate, self.key)

    def host(self) -> TransportHost:
        return TransportHost(self.name, credentials=self.credentials())

    def deny(self, other: Machine) -> None:
        """Deny the current certificate of another machine."""
        assert deny(deny_list_beside(self.ca), {other.serial: other.name})


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    return make_authority(tmp_path / "authority", days=100)


@pytest.fixture
def a(authority: Path, tmp_path: Path) -> Machine:
    return Machine(authority, tmp_path / "a", "a")


@pytest.fixture
def b(authority: Path, tmp_path: Path) -> Machine:
    return Machine(authority, tmp_path / "b", "b")


# -- reloading -------------------------------------------------------------------------------------


def test_changed_files_are_reloaded(a: Machine) -> None:
    credentials = a.credentials()
    contexts = credentials.server_context(), credentials.client_context()
    credentials.refresh()
    assert (credentials.server_context(), credentials.client_context()) == contexts
    expires = credentials.expires
    a.renew(days=20)
    with logged() as lines:
        credentials.refresh()
    assert credentials.expires - expires > timedelta(days=9)
    assert credentials.server_context() not in contexts
    assert credentials.client_context() not in contexts
    (line,) = lines()
    assert (line["event"], line["denied"]) == ("credentials_reloaded", 0)


def spoil_certificate(machine: Machine) -> None:
    machine.certificate.write_bytes(b"nonsense")


def deny_nonsense(machine: Machine) -> None:
    deny_list_beside(machine.ca).write_bytes(b"nonsense")


def change_name(machine: Machine) -> None:
    machine.renew("c")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (spoil_certificate, "no certificate in PEM form"),
        (change_name, "this process was started with the certificate of a"),
    ],
)
def test_unusable_files_change_nothing_and_are_logged_once(
    a: Machine, spoil: object, why: str
) -> None:
    credentials = a.credentials()
    before = credentials.server_context()
    assert callable(spoil)
    spoil(a)
    with logged() as lines:
        for _ in range(3):
            credentials.refresh()
    (line,) = lines()
    assert (line["level"], line["event"]) == ("error", "credentials_rejected")
    assert why in line["reason"]
    assert credentials.server_context() is before
    a.renew()
    credentials.refresh()
    assert credentials.server_context() is not before


def test_process_does_not_start_with_an_unreadable_deny_list(a: Machine) -> None:
    deny_nonsense(a)
    with pytest.raises(InputError, match="line 1 is not a serial number"):
        a.credentials()


@pytest.mark.usefixtures("loop")
async def test_new_connections_use_the_new_certificate(a: Machine, b: Machine) -> None:
    one, two = a.host(), b.host()
    async with running(one, two):
        await two.reach(one, 1)
        old_serials = (a.serial, b.serial)
        a.renew()
        b.renew()
        assert {link.certificate.serial for link in seen(two)} == {old_serials[0]}
        assert {link.certificate.serial for link in seen(one)} == {old_serials[1]}
        link_of(two, "a").close()
        await until(lambda: not one.links.connections and not two.links.connections)
        two.links.send("a", note(2))
        await until(lambda: one.numbers("b") == [1, 2])
        assert {link.certificate.serial for link in seen(two)} == {a.serial}
        assert {link.certificate.serial for link in seen(one)} == {b.serial}


def seen(host: TransportHost) -> Iterator[connection_module.PeerConnection]:
    for link in host.links.connections:
        assert link.certificate is not None
        yield link


# -- denied certificates ---------------------------------------------------------------------------


@pytest.mark.usefixtures("loop")
async def test_denied_certificate_is_refused_in_the_handshake(a: Machine, b: Machine) -> None:
    a.deny(b)
    one, two = a.host(), b.host()
    with logged() as lines:
        async with running(one, two):
            async with call(one, b.credentials().client_context()) as caller:
                assert await caller.is_hung_up_on()
                assert one.counts == {"certificate denied": 1}
                assert not one.links.connections
            one.knows(two)
            one.links.send("b", note(1))
            await until(lambda: one.links.counts["certificate denied"] == 2)
            await until(lambda: not one.links.connections)
            assert two.got == []
            b.renew()
            two.knows(one)

            def arrives() -> bool:
                two.links.send("a", note(2))
                return 2 in one.numbers("b")

            await until(arrives)
    line = next(each for each in lines() if each["event"] == "connection_refused")
    assert line["reason"] == "certificate denied"
    assert "of b is denied" in line["detail"]


@pytest.mark.parametrize("is_denied_by_the_dialler", [True, False])
@pytest.mark.usefixtures("loop")
async def test_open_connection_ends_when_its_certificate_is_denied(
    a: Machine, b: Machine, is_denied_by_the_dialler: bool
) -> None:
    one, two = a.host(), b.host()
    async with running(one, two):
        dialler, other = (one, two) if is_denied_by_the_dialler else (two, one)
        await dialler.reach(other, 1)
        a.deny(b)
        await until(lambda: one.links.counts["certificate denied"] == 1)
        await until(lambda: not one.links.connections and not two.links.connections)


@pytest.mark.parametrize("damaged", ["certificate", "key", "ca"])
def test_deny_list_is_reloaded_although_another_file_is_unusable(
    a: Machine, b: Machine, damaged: str
) -> None:
    credentials = a.credentials()
    theirs = PeerCertificate(name="b", serial=b.serial, ends_s=1e12)
    Path(getattr(a, damaged)).write_text("damaged")
    a.deny(b)
    credentials.refresh()
    found = credentials.distrust(theirs, 0.0)
    assert found is not None
    assert found.reason == "certificate denied"


def test_certificate_is_reloaded_although_the_deny_list_is_unusable(a: Machine, b: Machine) -> None:
    a.deny(b)
    credentials = a.credentials()
    theirs = PeerCertificate(name="b", serial=b.serial, ends_s=1e12)
    before = credentials.client_context()
    deny_nonsense(a)
    a.renew()
    with logged() as lines:
        for _ in range(3):
            credentials.refresh()
    (line,) = lines()
    assert (line["level"], line["event"]) == ("error", "credentials_rejected")
    assert "line 1 is not a serial number" in line["reason"]
    assert credentials.client_context() is not before
    assert credentials.distrust(theirs, 0.0) is not None, "the old list stays"


# -- expired certificates --------------------------------------------------------------------------


@pytest.mark.usefixtures("loop")
async def test_open_connection_ends_when_the_peer_certificate_expires(
    a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = a.host(), b.host()
    with logged() as lines:
        async with running(one, two):
            await two.reach(one, 1)
            later = datetime.now(UTC) + timedelta(days=11)
            monkeypatch.setattr(transport_module, "time", later.timestamp)
            await until(lambda: not one.links.connections and not two.links.connections)
            assert (
                one.links.counts["certificate expired"] + two.links.counts["certificate expired"]
                >= 1
            )
            assert not one.counts.keys() - {"certificate expired"}
    line = next(each for each in lines() if each["event"] == "connection_refused")
    assert line["reason"] == "certificate expired"
    assert "expired at" in line["detail"]


async def test_certificates_are_not_checked_without_connections(a: Machine) -> None:
    one = a.host()
    async with running(one):
        assert one.links.certificate_timer is None
        async with call(one, a.credentials().client_context()):
            await until(lambda: one.links.certificate_timer is not None)
        await until(lambda: one.links.certificate_timer is None)
        assert asyncio.all_tasks() == {asyncio.current_task()}


# -- processes -------------------------------------------------------------------------------------


def process(machine: Machine, *words: str) -> AbstractAsyncContextManager[LoggingProcess]:
    files = ("--tls-ca", machine.ca, "--tls-cert", machine.certificate, "--tls-key", machine.key)
    return logging_process(*words, *map(str, files))


@pytest.mark.heavy
async def test_supervisor_reloads_certificates_and_closes_the_link_of_a_denied_node(
    authority: Path, a: Machine, tmp_path: Path
) -> None:
    machine = Machine(authority, tmp_path / "supervisor", "supervisor")
    async with process(machine, "supervisor") as supervisor:
        address = await supervisor.listen_address()
        supervisor.hang_up()
        assert (await supervisor.logged("credentials_reloaded"))["denied"] == 0
        machine.renew(days=20)
        words = ("node", "--topic", "news", "--supervisor", address)
        async with process(a, *words) as node:
            await node.logged("joined")
            await supervisor.logged("credentials_reloaded")  # without a signal
            machine.deny(a)
            line = await supervisor.logged("connection_refused")
            assert line["reason"] == "certificate denied"
            node.hang_up()
            await node.logged("credentials_reloaded")
