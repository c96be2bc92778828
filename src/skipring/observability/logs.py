"""Logs: events with fields, through the logger "skipring" of the standard library.

A program that uses skipring as a library configures that logger itself. The processes of the
command line call ``configure_logs``: each event is one line, JSON on a pipe or file and text on a
terminal.
"""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final, TextIO

from skipring.errors import InputError
from skipring.wire.limits import shown

ROOT: Final = "skipring"
LEVELS: Final = ("debug", "info", "warning", "error")
FORMS: Final = ("auto", "text", "json")
FIELD_CHARACTERS_MAX: Final = 200  # Guess: enough to recognise a value that a peer has sent.
EVENT_CHARACTERS_MAX: Final = 1000  # Guess: other libraries log longer texts.
TRACEBACK_CHARACTERS_MAX: Final = 8000  # Guess: some fifty calls; the last ones matter.
EXCEPTION_CHARACTERS_MAX: Final = 1000  # Guess: on one line of text the last calls are enough.
PERIOD_S: Final = 60.0  # Guess: an operator sees that it continues, and the disk does not fill.
REASONS_MAX: Final = 64  # Chosen limit: more kinds of lines than skipring has.

_FIELDS: Final = "skipring_fields"  # the attribute of a log record
_OTHERS: Final = ("", "")

_WORD: Final = re.compile(r'[^\s"\\=]+')
_DIM, _BOLD, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"
_COLOURS: Final = {"debug": _DIM, "warning": "\x1b[33m", "error": "\x1b[31m"}

logging.getLogger(ROOT).addHandler(logging.NullHandler())  # otherwise warnings would go to stderr


class EventLogger:
    """Logger of the events of one part of skipring."""

    __slots__ = ("_logger",)

    def __init__(self, part: str) -> None:
        self._logger = logging.getLogger(f"{ROOT}.{part}")

    def debug(self, event: str, **fields: object) -> None:
        """Log an event that helps to find a bug."""
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Log an expected event."""
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log an event that skipring handles but an operator may want to check."""
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Log an event that an operator has to check."""
        self._emit(logging.ERROR, event, fields)

    def _emit(self, level: int, event: str, fields: Mapping[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            plain = {name: _plain(value) for name, value in fields.items()}
            said = {"event": event, **plain}
            self._logger.log(level, "%s", _in_words(event, plain), extra={_FIELDS: said})


def logger(part: str) -> EventLogger:
    """Return the logger of one part of skipring, such as "links"."""
    return EventLogger(part)


class RateLimitedLogger:
    """Logger that writes one warning per event and reason in a period, and counts the others.

    It serves events that a peer can cause at any rate: they must not fill the disk.
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

    def warn(self, event: str, *, reason: str, kind: str = "", **fields: object) -> None:
        """Warn unless the same warning was written lately; a reason may have several kinds."""
        repeated = self._left_out(event, reason + kind)
        if repeated is not None:
            more = {"repeated": repeated} if repeated else {}
            self._log.warning(event, reason=reason, **fields, **more)

    def _left_out(self, event: str, reason: str) -> int | None:
        """Return how many such lines were left out before; None if this one is left out too."""
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


# -- values of peers -----------------------------------------------------------------------


def _plain(value: object) -> object:
    """Return a value that JSON can represent, of limited length."""
    match value:
        case None | bool() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case str():
            return _cut(value, FIELD_CHARACTERS_MAX)
        case _:
            return _cut(str(value), FIELD_CHARACTERS_MAX)


def _cut(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else text[:characters_max] + "..."


def _in_words(event: str, fields: Mapping[str, object]) -> str:
    """Format an event on one line, for a log of another form."""
    words = (
        f"{name}={shown(value) if isinstance(value, str) else value}"
        for name, value in fields.items()
    )
    return " ".join((event, *words))


# -- the logs of a process ---------------------------------------------------------------------


def configure_logs(level: str, stream: TextIO | None = None, form: str = "auto") -> None:
    """Write events from ``level`` on to a stream, stderr by default, one line each.

    The form is ``text``, ``json`` or ``auto``: text on a terminal, JSON elsewhere. Records of other
    libraries have the same form, from warnings on.
    """
    if level not in LEVELS:
        raise InputError(f"a level of logs is one of {', '.join(LEVELS)}, not {shown(level)}")
    if form not in FORMS:
        raise InputError(f"a form of logs is one of {', '.join(FORMS)}, not {shown(form)}")
    handler = _Lines(stream)
    is_terminal = handler.stream.isatty()
    if form == "text" or (form == "auto" and is_terminal):
        handler.setFormatter(_TextFormatter(is_coloured=is_terminal and _allows_colours()))
    else:
        handler.setFormatter(_json_formatter())
    handler.setLevel(level.upper())
    everything = logging.getLogger()
    for old in [each for each in everything.handlers if isinstance(each, _Lines)]:
        everything.removeHandler(old)
    everything.addHandler(handler)
    logging.getLogger(ROOT).setLevel(level.upper())


def _allows_colours() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class _Lines(logging.StreamHandler[TextIO]):
    """Handler that writes lines and ignores a closed or full stream."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's own name)
        """Ignore the error: stderr is closed or full, so there is no place to report it."""


class _TextFormatter(logging.Formatter):
    """Formatter of an event as one line of text: local time, level, event, fields.

    >>> record = logging.LogRecord("skipring", logging.INFO, "", 0, "stopped", (), None)
    >>> _TextFormatter(is_coloured=False).format(record)[8:]
    ' info     stopped  logger=skipring'
    """

    def __init__(self, *, is_coloured: bool) -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._is_coloured = is_coloured

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without control characters except for colours."""
        given = {"event": record.getMessage(), "logger": record.name}
        fields = dict(getattr(record, _FIELDS, given))
        event = _printable(_cut(str(fields.pop("event")), EVENT_CHARACTERS_MAX))
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            fields["exception"] = trace[-EXCEPTION_CHARACTERS_MAX:]
        level, paint = record.levelname.lower(), self._painted
        parts = [
            f"{paint(self.formatTime(record, self.datefmt), _DIM)} "
            + paint(f"{level:<7}", _COLOURS.get(level, "")),
            paint(event, _BOLD),
        ]
        if fields:
            pairs = (f"{paint(name + '=', _DIM)}{_as_text(fields[name])}" for name in fields)
            parts.append(" ".join(pairs))
        return "  ".join(parts)

    def _painted(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self._is_coloured and colour else text


def _as_text(value: object) -> str:
    """Return a value as one word, quoted if necessary."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return value if _WORD.fullmatch(value) and value.isprintable() else _quoted(value)
        case _:
            return str(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_printable(escaped)}"'


def _printable(text: str) -> str:
    """Escape line ends, terminal sequences and other characters that a terminal acts on."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _json_formatter() -> logging.Formatter:
    # Not at module level: structlog takes longer to import than all of a client.
    from structlog import processors, stdlib  # noqa: PLC0415

    return stdlib.ProcessorFormatter(
        processors=[
            _take_fields,
            stdlib.ProcessorFormatter.remove_processors_meta,
            stdlib.add_log_level,
            processors.TimeStamper(fmt="iso", utc=True, key="time"),
            processors.format_exc_info,
            _in_order,
            processors.JSONRenderer(),  # escapes every character that could end a line
        ]
    )


def _take_fields(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:  # noqa: ANN401
    """Copy event and fields from a record of skipring; other records only have a text."""
    record: logging.LogRecord = line["_record"]
    line.update(getattr(record, _FIELDS, {"logger": record.name}))
    return line


def _in_order(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:  # noqa: ANN401
    """Put the keys that every line has first."""
    event = _cut(str(line.pop("event")), EVENT_CHARACTERS_MAX)
    first = {"time": line.pop("time"), "level": line.pop("level"), "event": event}
    if "exception" in line:
        line["exception"] = line["exception"][-TRACEBACK_CHARACTERS_MAX:]
    return {**first, **line}
