"""``skipring certs``: certificates for processes on several machines.

Certificates and keys are files; no command prints a key.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

import click

from skipring.cli.options import DIRECTORY, Command, json_option, option

if TYPE_CHECKING:
    from datetime import datetime

    from skipring.security.ca import Issued

DEFAULT_DIRECTORY: Final = Path("certs")
AUTHORITY_DAYS: Final = 3650  # Guess: longer than the life of a machine.
NODE_DAYS: Final = 365  # Guess: a yearly renewal is neither skipped nor forgotten.


def _days(days: int) -> Callable[[Command], Command]:
    return option("--days", "Days of validity.", "N", type=int, default=days)


_authority = option(
    *("--dir", "Directory of the authority.", "DIR"),
    into="authority",
    type=DIRECTORY,
    default=DEFAULT_DIRECTORY,
)


@click.group()
def certs() -> None:
    """Manage the authority and the certificates of a cluster.

    Processes with certificates listen on addresses that other machines can reach, and accept only
    peers with a certificate of the same authority.
    """


@certs.command()
@click.argument("directory", metavar="[DIR]", type=DIRECTORY, default=DEFAULT_DIRECTORY)
@_days(AUTHORITY_DAYS)
@json_option()
def init(directory: Path, days: int, as_json: bool) -> None:
    """Create the authority of a cluster: ca.pem and ca.key in DIR (default: certs).

    Every process needs ca.pem. The holder of ca.key can admit processes to the cluster: keep it
    where certificates are issued, and nowhere else.
    """
    from skipring.security.ca import authority_files, make_authority
    from skipring.security.credentials import read_certificates

    ca, key = authority_files(make_authority(directory, days=days))
    ends = read_certificates(ca)[0].ends
    if as_json:
        click.echo(json.dumps({"ca": str(ca), "key": str(key), "not_after": _moment(ends)}))
        return
    click.echo(f"{ca}  the authority's certificate, for every process; until {ends:%Y-%m-%d}")
    click.echo(f"{key}  the authority's key; keep it here and do not copy it")
    click.echo("\nNext, certificates for the supervisor and for each node, such as:")
    click.echo(f"  skipring certs issue supervisor node-1{_option('--dir', directory)}")


@certs.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_authority
@option("--out", "Output directory.  [default: as --dir]", "DIR", type=DIRECTORY)
@_days(NODE_DAYS)
@option("--host", "Host name or IP address to include.", "HOST", into="hosts", multiple=True)
@json_option()
def issue(
    names: tuple[str, ...],
    authority: Path,
    out: Path | None,
    days: int,
    hosts: tuple[str, ...],
    as_json: bool,
) -> None:
    """Issue certificates: NAME.pem and NAME.key for each NAME.

    A certificate called NAME admits the node NAME and nodes NAME.something. A certificate called
    supervisor or supervisor.something admits a supervisor.

    skipring checks names, not hosts: --host is for other programs that read certificates.
    """
    from skipring.security.ca import authority_files, issue_each

    ca = authority_files(authority).certificate
    issued = issue_each(authority, names, out or authority, days=days, hosts=hosts)
    if as_json:
        for each in issued:
            click.echo(json.dumps(_row(ca, each)))
    else:
        _print_issued(ca, issued)


@certs.command("list")
@click.argument("directory", metavar="[DIR]", type=DIRECTORY, default=DEFAULT_DIRECTORY)
@json_option()
def list_(directory: Path, as_json: bool) -> None:
    """List the certificates in DIR with their serial numbers, and which of them are denied."""
    from skipring.security.ca import certificates_in
    from skipring.security.deny_list import FILE_NAME, read_deny_list, serial_text

    denied = read_deny_list(directory / FILE_NAME)
    for each in certificates_in(directory):
        serial, name = serial_text(each.serial), " ".join(each.common_names)
        is_denied = each.serial in denied
        if as_json:
            row = {"name": name, "cert": str(each.path), "serial": serial, "denied": is_denied}
            click.echo(json.dumps({**row, "not_after": _moment(each.ends)}))
        else:
            state = "denied" if is_denied else f"until {each.ends:%Y-%m-%d}"
            click.echo(f"{serial}  {name}  {state}")


@certs.command()
@click.argument("given", metavar="CERT...", nargs=-1, required=True)
@_authority
@json_option()
def deny(given: tuple[str, ...], authority: Path, as_json: bool) -> None:
    """Deny certificates: add them to the deny list of an authority.

    CERT is the file of a certificate, or its serial number in hexadecimal digits. Copy the deny
    list to the directory of ca.pem on every machine: processes reload it by themselves, close
    connections with these certificates, and accept no new ones.
    """
    from skipring.security.ca import deny_each
    from skipring.security.deny_list import FILE_NAME, serial_text

    path = authority / FILE_NAME
    for serial, comment, is_new in deny_each(authority, given):
        text = serial_text(serial)
        if as_json:
            click.echo(json.dumps({"serial": text, "list": str(path), "is_new": is_new}))
        else:
            click.echo(f"{text}  {comment}" if is_new else f"{text}  already denied")
    if not as_json:
        click.echo(f"\nNext, copy {quote(str(path))} to the directory of ca.pem on every machine.")


def _row(ca: Path, issued: Issued) -> dict[str, object]:
    from skipring.security.deny_list import serial_text

    return {
        "name": issued.name,
        "ca": str(ca),
        "cert": str(issued.certificate),
        "key": str(issued.key),
        "serial": serial_text(issued.serial),
        "not_after": _moment(issued.ends),
        "cut_to_authority": issued.is_cut,
    }


def _print_issued(ca: Path, issued: list[Issued]) -> None:
    for each in issued:
        click.echo(f"{each.certificate}  {each.key}  until {each.ends:%Y-%m-%d}")
    if any(each.is_cut for each in issued):
        click.echo("They expire with their authority, earlier than requested.")
    click.echo(
        "\nNext, copy the files to their machines, the keys over a secure channel, and start with:"
    )
    for each in issued:
        options = _option("--tls-ca", ca) + _option("--tls-cert", each.certificate)
        is_supervisor = each.name.split(".")[0] == "supervisor"
        command = "supervisor" if is_supervisor else f"node --name {quote(each.name)}"
        click.echo(f"  skipring {command}{options}{_option('--tls-key', each.key)} ...")


def _option(name: str, path: Path) -> str:
    return f" {name} {quote(str(path))}"


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
