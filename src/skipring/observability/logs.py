"""Logs: events with fields, through the logger "skipring" of the standard library.

A program that uses skipring as a library configures that logger itself. The processes of the
command line call ``configure_logs``: each event is one line, JSON on a pipe or file and text on a
terminal.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, MutableMapping
from functools import partial
from math import isfinite
from typing import Any, Final, TextIO

from skipring.core.limits import shown
from skipring.errors import InputError

ROOT: Final = "skipring"
LEVELS: Final = ("debug", "info", "warning", "error")
FORMS: Final = ("auto", "text", "json")
FIELD_CHARACTERS_MAX: Final = 200  # Guess: enough to recognise a value that a peer has sent.
EVENT_CHARACTERS_MAX: Final = 1000  # Guess: other libraries log longer texts.
EXCEPTION_JSON_MAX: Final = 8000  # Guess: characters of some fifty calls; the last ones matter.
EXCEPTION_TEXT_MAX: Final = 1000  # Guess: on one line of text the last calls are enough.
PERIOD_S: Final = 60.0  # Guess: an operator sees that it continues, and the disk does not fill.
REASONS_MAX: Final = 64  # Limit: more kinds of lines than skipring has.

_FIELDS: Final = "skipring_fields"  # attribute of a log record
_OTHERS: Final = ("", "")

_WORD: Final = re.compile(r'[^\s"\\=]+')
_DIM, _BOLD, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"
_COLOURS: Final = {"debug": _DIM, "warning": "\x1b[33m", "error": "\x1b[31m"}

_Line = MutableMapping[str, Any]

logging.getLogger(ROOT).addHandler(logging.NullHandler())  # otherwise warnings would go to stderr


class EventLogger(logging.LoggerAdapter[logging.Logger]):
    """Logger of events with fields: ``log.info("left_ring", topic="news")``."""

    def process(self, msg: object, kwargs: _Line) -> tuple[str, _Line]:
        """Return an event as one line of text, and its fields as an attribute of the record."""
        fields = {name: _plain(value) for name, value in kwargs.items()}
        pairs = (
            f"{name}={shown(it) if isinstance(it, str) else it}" for name, it in fields.items()
        )
        return " ".join((str(msg), *pairs)), {"extra": {_FIELDS: {"event": msg, **fields}}}


def logger(part: str) -> EventLogger:
    """Return the logger of one part of skipring, such as "links"."""
    return EventLogger(logging.getLogger(f"{ROOT}.{part}"))


class RateLimitedLogger:
    """Logger that writes one warning per event and reason in a period, and counts the others.

    Use it for events that a peer can cause at any rate, so that they cannot fill the disk.
    """

    def __init__(
        self,
        log: EventLogger,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._period_s = period_s
        self._clock = clock
        self._lines: dict[tuple[str, str], tuple[float, int]] = {}  # next time, number left out
        self._lock = threading.Lock()

    def warn(self, event: str, *, reason: str, kind: str = "", **fields: Any) -> None:  # noqa: ANN401
        """Warn unless the same warning was written recently; a reason may have several kinds."""
        repeated = self._left_out(event, reason + kind)
        if repeated is not None:
            if repeated:
                fields["repeated"] = repeated
            self._log.warning(event, reason=reason, **fields)

    def _left_out(self, event: str, reason: str) -> int | None:
        """Return how many lines were suppressed before; None to suppress this line, too."""
        key = (event, reason)
        with self._lock:
            if key not in self._lines and len(self._lines) >= REASONS_MAX:
                key = _OTHERS
            now = self._clock()
            next_s, left_out = self._lines.get(key, (now, 0))
            if now < next_s:
                self._lines[key] = (next_s, left_out + 1)
                return None
            self._lines[key] = (now + self._period_s, 0)
            return left_out


def _plain(value: object) -> object:
    """Return a value that JSON can represent, of limited length."""
    if value is None or isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
        return value
    return _cut(str(value), FIELD_CHARACTERS_MAX)


def _cut(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else text[:characters_max] + "..."


def configure_logs(level: str, stream: TextIO | None = None, form: str = "auto") -> None:
    """Write events at or above ``level`` to a stream, stderr by default, one line each.

    The form is ``text``, ``json`` or ``auto``: text on a terminal, JSON elsewhere. Records of other
    libraries have the same form; only warnings and errors are written.
    """
    if level not in LEVELS:
        raise InputError(f"a level of logs is one of {', '.join(LEVELS)}, not {shown(level)}")
    if form not in FORMS:
        raise InputError(f"a form of logs is one of {', '.join(FORMS)}, not {shown(form)}")
    handler = _LineHandler(stream)
    is_terminal = handler.stream.isatty()
    is_text = form == "text" or (form == "auto" and is_terminal)
    is_coloured = (
        is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )
    handler.setFormatter(_formatter(is_text=is_text, is_coloured=is_coloured))
    handler.setLevel(level.upper())
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _LineHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    logging.getLogger(ROOT).setLevel(level.upper())


class _LineHandler(logging.StreamHandler[TextIO]):
    """Handler that writes lines and ignores a closed or full stream."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's own name)
        """Ignore the error: stderr is closed or full, so there is no place to report it."""


def _formatter(*, is_text: bool, is_coloured: bool) -> logging.Formatter:
    # Not at module level: structlog takes longer to import than all of a client.
    from structlog import processors, stdlib  # noqa: PLC0415

    form = "%H:%M:%S" if is_text else "iso"
    return stdlib.ProcessorFormatter(
        processors=[
            _add_fields,
            stdlib.ProcessorFormatter.remove_processors_meta,
            stdlib.add_log_level,
            processors.TimeStamper(fmt=form, utc=not is_text, key="time"),
            processors.format_exc_info,
            partial(_limit, exception_max=EXCEPTION_TEXT_MAX if is_text else EXCEPTION_JSON_MAX),
            # JSONRenderer escapes every character that could end a line.
            partial(_render_text, is_coloured) if is_text else processors.JSONRenderer(),
        ]
    )


def _add_fields(_: Any, __: str, line: _Line) -> _Line:  # noqa: ANN401
    """Copy event and fields from a record of skipring; other records only have a text."""
    record: logging.LogRecord = line["_record"]
    line.update(getattr(record, _FIELDS, {"logger": record.name}))
    return line


def _limit(_: Any, __: str, line: _Line, exception_max: int) -> _Line:  # noqa: ANN401
    """Shorten event and exception, and order the keys that every line has first."""
    first = {name: str(line.pop(name)) for name in ("time", "level", "event")}
    first["event"] = _cut(first["event"], EVENT_CHARACTERS_MAX)
    if "exception" in line:
        line["exception"] = line["exception"][-exception_max:]
    return {**first, **line}


def _render_text(is_coloured: bool, _: Any, __: str, line: _Line) -> str:  # noqa: ANN401
    """Return time, level, event and fields, without control characters except for colours.

    >>> _render_text(False, None, "", {"time": "12:00:00", "level": "info", "event": "a", "b": 1})
    '12:00:00 info     a  b=1'
    """

    def paint(text: str, colour: str) -> str:
        return f"{colour}{text}{_PLAIN}" if is_coloured and colour else text

    time, level, event = (str(line.pop(name)) for name in ("time", "level", "event"))
    start = f"{paint(time, _DIM)} {paint(f'{level:<7}', _COLOURS.get(level, ''))}"
    fields = " ".join(f"{paint(name + '=', _DIM)}{_as_text(line[name])}" for name in line)
    return "  ".join((start, paint(_printable(event), _BOLD), *filter(None, [fields])))


def _as_text(value: object) -> str:
    """Return a value as JSON does, but a string as one word without quotes if possible."""
    if isinstance(value, str):
        return value if _WORD.fullmatch(value) and value.isprintable() else _quoted(value)
    return json.dumps(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_printable(escaped)}"'


def _printable(text: str) -> str:
    """Escape line ends, terminal sequences and other characters that a terminal acts on."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
