"""``skipring dashboard`` as a process."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from skipring.cli import skipring

PATIENCE_S = 60
UNUSED_ADDRESS = "127.0.0.1:9"


@pytest.mark.heavy
def test_first_line_is_the_address_and_ctrl_c_ends_the_command() -> None:
    command = [sys.executable, "-m", "skipring", "dashboard", "--supervisor", UNUSED_ADDRESS]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            first = process.stdout.readline()
            found = re.fullmatch(r"dashboard (http://127\.0\.0\.1:\d+/\?token=[\w-]{43})\n", first)
            assert found, first
            with pytest.raises(Exception, match="403"):  # the redirect carries no cookie
                urlopen(found[1], timeout=PATIENCE_S)
            second = process.stdout.readline()
            assert second.startswith("opened; for another browser: http://127.0.0.1:")
            assert found[1] not in second
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert errors.strip() == "interrupted"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--listen", "0.0.0.0:0"], "this machine only"),
        (["--listen", "nowhere"], "listen: expected HOST:PORT"),
        (["--supervisor", "example.org:1"], "certificate"),
    ],
)
def test_unusable_options_are_refused(words: list[str], why: str) -> None:
    given = words if "--supervisor" in words else ["--supervisor", UNUSED_ADDRESS, *words]
    done = CliRunner().invoke(skipring, ["dashboard", *given])
    assert done.exit_code != 0
    assert why in str(done.exception) + done.output
