"""Commands of skipring: run in this process, as a process, or on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from click.testing import CliRunner, Result

from skipring.cli import skipring

DEADLINE_S = 60.0
COMMAND = (sys.executable, "-m", "skipring")
UNUSED_ADDRESS = "127.0.0.1:1"  # no process of this machine listens there


def invoked(*words: str) -> Result:
    """Run a command in this process; its errors are in the result."""
    return CliRunner().invoke(skipring, words, standalone_mode=False)


def ran(
    *words: str, given: str = "", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command as a process to its end; no command prints a traceback."""
    done = subprocess.run(
        [*COMMAND, *words],
        input=given,
        env=None if env is None else os.environ | env,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done


def outcome(*words: str) -> tuple[int, str, str]:
    """Run a command as a process; return exit status, output and errors."""
    done = ran(*words)
    return done.returncode, done.stdout, done.stderr


@contextmanager
def process(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a supervisor or node; yield the process and its address, and end it in every case."""
    running = subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert running.stdout is not None
        ready, _, _ = select.select([running.stdout], [], [], DEADLINE_S)
        assert ready, "the process prints nothing"
        first = running.stdout.readline()
        assert first.startswith("listening 127.0.0.1:"), first
        yield running, first.removeprefix("listening ").strip()
    finally:
        running.kill()
        running.communicate(timeout=DEADLINE_S)


@contextmanager
def unused_address() -> Iterator[str]:
    """Yield an address that is reserved, but at which no process listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{unused.getsockname()[1]}"


# -- terminals -------------------------------------------------------------------------------


class Terminal:
    """Terminal of variable size on which a command runs."""

    def __init__(self, screen: int, program: subprocess.Popen[bytes]) -> None:
        self._screen = screen
        self._deadline = time.monotonic() + DEADLINE_S
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self.program = program
        self.shown = ""  # with control sequences

    @property
    def text(self) -> str:
        """Return the output without control sequences."""
        return plain(self.shown)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._screen, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.program.send_signal(signal.SIGWINCH)

    def press(self, keys: bytes) -> None:
        os.write(self._screen, keys)

    def read_until(self, text: str, times: int = 1) -> None:
        """Wait until a text was painted this many times from now on."""
        start = len(self.shown)
        while plain(self.shown[start:]).count(text) < times:
            assert self._read(), f"ended without {text!r}: {self.text!r}"

    def read_all(self) -> int:
        """Read to the end; return the exit status."""
        while self._read():
            pass
        return self.program.wait(timeout=DEADLINE_S)

    def interrupt(self) -> int:
        """Stop the command with SIGINT, as Ctrl-C does; return its exit status."""
        self.program.send_signal(signal.SIGINT)
        return self.read_all()

    def _read(self) -> bool:
        """Wait for more output; return False at the end."""
        left_s = max(self._deadline - time.monotonic(), 0)
        ready, _, _ = select.select([self._screen], [], [], left_s)
        assert ready, f"nothing more came after {self.text!r}"
        try:
            shown = os.read(self._screen, 65536)
        except OSError:  # Linux raises it when the last program has left the terminal
            return False
        self.shown += self._decoder.decode(shown)
        return bool(shown)


@contextmanager
def on_terminal(*words: str, **env: str) -> Iterator[Terminal]:
    """Run a command on a terminal of 80 columns and 24 rows, which variables may override."""
    screen, inside = pty.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    inherited = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES", "NO_COLOR"}}
    program = subprocess.Popen(
        [*COMMAND, *words],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        env=inherited | {"TERM": "xterm"} | env,
    )
    os.close(inside)
    try:
        yield Terminal(screen, program)
    finally:
        program.kill()
        program.wait(timeout=DEADLINE_S)
        os.close(screen)


def plain(text: str) -> str:
    """Return a text without its terminal control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
