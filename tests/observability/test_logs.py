"""Logs: one line per event (JSON, or text on a terminal), rate limits, silence in a library."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime

import pytest

from skipring.errors import InputError
from skipring.observability.logs import REASONS_MAX, RateLimitedLogger, configure_logs, logger


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("skipring")
    handlers, level = list(root.handlers), ours.level
    yield
    root.handlers[:] = handlers
    ours.setLevel(level)


@pytest.fixture
def written() -> io.StringIO:
    stream = io.StringIO()
    configure_logs("info", stream)
    return stream


def lines(written: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in written.getvalue().split("\n") if line]


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


# --- lines -----------------------------------------------------------------------------


def test_log_line_is_an_object_that_begins_with_time_level_and_event(written: io.StringIO) -> None:
    logger("links").warning("connection_refused", reason="no greeting", count=3, gone=None)
    (line,) = lines(written)
    assert list(line) == ["time", "level", "event", "reason", "count", "gone"]
    assert (line["level"], line["event"]) == ("warning", "connection_refused")
    assert (line["reason"], line["count"], line["gone"]) == ("no greeting", 3, None)
    moment = datetime.fromisoformat(str(line["time"]))
    assert moment.utcoffset() is not None
    assert not moment.utcoffset()


def test_only_events_of_the_level_are_written(written: io.StringIO) -> None:
    log = logger("links")
    log.debug("too small")
    log.info("small")
    log.error("large")
    assert [line["event"] for line in lines(written)] == ["small", "large"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"level": "loud"}, "one of debug, info, warning, error, not 'loud'"),
        ({"level": "info", "form": "xml"}, "one of auto, text, json, not 'xml'"),
    ],
)
def test_unknown_level_or_form_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        configure_logs(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    ["a\nb", "a\r\nb", "a\u2028b", "a\x85b", "a\x1b[31mb", "a\udc80b", "%s %d {x}", '"}'],
    ids=ascii,
)
def test_external_text_stays_on_one_line(text: str, written: io.StringIO) -> None:
    logger("links").warning("refused", detail=text)
    assert len(written.getvalue().splitlines()) == 1
    assert written.getvalue().isascii()
    assert "\x1b" not in written.getvalue()
    assert lines(written)[0]["detail"] == text


def test_every_value_can_be_written(written: io.StringIO) -> None:
    logger("links").info("odd", nothing=float("nan"), much=float("inf"), error=ValueError("no"))
    (line,) = lines(written)
    assert (line["nothing"], line["much"], line["error"]) == ("nan", "inf", "no")


def test_other_libraries_are_logged_from_warnings_on(written: io.StringIO) -> None:
    other = logging.getLogger("asyncio")
    other.info("small talk")
    other.error("task %s failed", 7, exc_info=ValueError("broken"))
    (line,) = lines(written)
    assert (line["event"], line["logger"], line["level"]) == ("task 7 failed", "asyncio", "error")
    assert str(line["exception"]).endswith("ValueError: broken")


def test_closed_stream_does_no_harm(
    written: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    written.close()
    logger("links").error("into the void")
    assert capfd.readouterr() == ("", "")


# --- text on a terminal ----------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    configure_logs("info", stream)
    return stream


def test_terminal_shows_time_level_event_and_fields_as_text(terminal: Terminal) -> None:
    logger("links").warning(
        "left_ring", topic="news", reason="not recorded", count=3, gone=None, ok=True
    )
    line = terminal.getvalue()
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d warning  left_ring  "
        r'topic=news reason="not recorded" count=3 gone=null ok=true\n',
        line,
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", r'"a\nb"'),
        ("a\r\nb", r'"a\r\nb"'),
        ("a\u2028b", r'"a\u2028b"'),
        ("a\x85b", r'"a\x85b"'),
        ("a\x1b[31mb", r'"a\x1b[31mb"'),
        ("a\u202eb", r'"a\u202eb"'),
        ("a\udc80b", r'"a\udc80b"'),
        ('say "no"', r'"say \"no\""'),
        (r"C:\n", r'"C:\\n"'),
        ("", '""'),
        ("a=b", '"a=b"'),
        ("%s", "%s"),
        ("Köln", "Köln"),
    ],
    ids=ascii,
)
def test_text_from_a_peer_stays_on_one_line(text: str, shown: str, terminal: Terminal) -> None:
    logger("links").warning("refused", detail=text)
    assert terminal.getvalue().endswith(f"  refused  detail={shown}\n")
    assert len(terminal.getvalue().splitlines()) == 1


def test_text_of_other_libraries_stays_on_one_line(terminal: Terminal) -> None:
    logging.getLogger("asyncio").error("task\n%s", "x" * 10**6, exc_info=ValueError("broken\x1b"))
    (line,) = terminal.getvalue().splitlines()
    assert r" error    task\nxxx" in line
    assert "logger=asyncio" in line
    assert line.endswith(r'ValueError: broken\x1b"')
    assert len(line) < 3000


@pytest.mark.parametrize(
    ("variable", "value", "is_coloured"),
    [
        ("NO_COLOR", "1", False),
        ("NO_COLOR", "", True),
        ("TERM", "dumb", False),
        ("TERM", "xterm", True),
    ],
)
def test_terminal_shows_colours_unless_the_environment_forbids_them(
    variable: str, value: str, is_coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(variable, value)
    stream = Terminal()
    configure_logs("info", stream)
    logger("links").error("refused", detail="a\x1bb")
    assert ("\x1b[" in stream.getvalue()) is is_coloured
    plain = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    assert plain.endswith(r' error    refused  detail="a\x1bb"' + "\n")


# --- in another program --------------------------------------------------------------------


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )


SILENT = "from skipring.observability.logs import logger; logger('links').error('x', y=1)"
LOGGED = """
import logging; logging.basicConfig(level='INFO')
from skipring.observability.logs import logger
logger('links').info('100 % refused', reason='a\\nb', count=3)
"""
IMPORTED = """
import sys, skipring; skipring.connect
print({'structlog', 'prometheus_client', 'http.server', 'rich'} & sys.modules.keys())
"""


@pytest.mark.parametrize(
    ("program", "stdout", "stderr"),
    [
        (SILENT, "", ""),
        (LOGGED, "", "INFO:skipring.links:100 % refused reason='a\\nb' count=3\n"),
        (IMPORTED, "set()\n", ""),
    ],
    ids=["silent by default", "one line per event for its user", "without other dependencies"],
)
def test_library_leaves_logs_to_its_user(program: str, stdout: str, stderr: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (result.stdout, result.stderr) == (stdout, stderr)


# --- rate limits ---------------------------------------------------------------------------


def test_repeated_event_is_logged_once_per_period_with_its_count(written: io.StringIO) -> None:
    clock = Clock()
    rarely = RateLimitedLogger(logger("links"), period_s=60, clock=clock)
    for second in range(120):
        clock.now_s = second
        rarely.warn("connection_refused", reason="no greeting", address=f"127.0.0.1:{second}")
    said = [(line["address"], line.get("repeated")) for line in lines(written)]
    assert said == [("127.0.0.1:0", None), ("127.0.0.1:60", 59)]


@pytest.mark.parametrize(
    ("warnings", "written_places"),
    [
        ([("refused", "a", ""), ("refused", "b", ""), ("lost", "a", ""), ("refused", "a", "")],
         [0, 1, 2]),
        ([("refused", "bad", kind) for kind in ("expired", "of another authority", "expired")],
         [0, 1]),
    ],
    ids=["event and reason", "kinds of one reason"],
)  # fmt: skip
def test_different_warning_is_logged_immediately(
    warnings: list[tuple[str, str, str]], written_places: list[int], written: io.StringIO
) -> None:
    rarely = RateLimitedLogger(logger("links"), clock=Clock())
    for place, (event, reason, kind) in enumerate(warnings):
        rarely.warn(event, reason=reason, kind=kind, place=place)
    assert [line["place"] for line in lines(written)] == written_places
    assert [(line["event"], line["reason"]) for line in lines(written)] == [
        warnings[place][:2] for place in written_places
    ]


def test_endless_reasons_do_not_make_endless_lines(written: io.StringIO) -> None:
    clock = Clock()
    rarely = RateLimitedLogger(logger("links"), period_s=60, clock=clock)
    for number in range(10 * REASONS_MAX):
        rarely.warn("refused", reason=f"reason {number}")
    assert len(lines(written)) == REASONS_MAX + 1
    clock.now_s = 60
    rarely.warn("refused", reason="one more")
    assert lines(written)[-1]["repeated"] == 9 * REASONS_MAX - 1
