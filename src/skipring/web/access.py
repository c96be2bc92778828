"""Who may talk to the dashboard: whoever came with the one-time address, from our own page.

A page in another tab, or a name that was bent to our address, must not read a ring or publish in
it. So every request names our host, every request of another page's is refused, and all but the
first show a cookie that only the one-time address gives.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE: Final = "skipring"
SECRET_BYTES: Final = 32
CHANGING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})

# Nothing but our own files: a page that was tampered with can neither load nor send anything.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

NOT_OUR_HOST: Final = "this address is not one of the dashboard's; use the one it printed"
FOREIGN: Final = "the request comes from a page that is not the dashboard's"
NO_COOKIE: Final = "this browser has no access; open the address that skipring printed last"
USED: Final = "this address has been used, or never was one; skipring printed a new one"


class Gate:
    """Gives out the one-time addresses, and knows who came with one."""

    def __init__(self, on_entered: Callable[[], None] = lambda: None) -> None:
        self.hosts: Collection[str] = ()  # what the header Host may say, once it is known
        self.token = secrets.token_urlsafe(SECRET_BYTES)
        self._on_entered = on_entered
        self._cookie = secrets.token_urlsafe(SECRET_BYTES)

    def enter(self, token: str) -> str | None:
        """The cookie for whoever shows the token, which is worth nothing from then on."""
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return None
        self.token = secrets.token_urlsafe(SECRET_BYTES)
        self._on_entered()
        return self._cookie

    def refusal(self, method: str, headers: Headers) -> str | None:
        """Why a request of a page is not answered; None if it is."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self.hosts:
            return NOT_OUR_HOST
        is_ours = origin == f"http://{host}"
        if (origin is not None or method in CHANGING) and not is_ours:
            return FOREIGN
        return None

    def knows(self, headers: Headers) -> bool:
        """True if a request shows the cookie."""
        try:
            shown = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        value = shown.value if shown is not None else ""
        return secrets.compare_digest(value.encode(), self._cookie.encode())


class Guarded:
    """An application behind a gate; every answer carries the headers above."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return  # we speak nothing else

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self._answer(scope) or self._app
        await answer(scope, receive, send_with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """What we answer ourselves; None if the application may."""
        headers = Headers(scope=scope)
        why = self._gate.refusal(scope["method"], headers)
        if why is not None:
            return refused(why)
        token = _token(scope)
        if token is not None:
            return self._entered(token)
        return None if self._gate.knows(headers) else refused(NO_COOKIE)

    def _entered(self, token: str) -> Response:
        cookie = self._gate.enter(token)
        if cookie is None:
            return refused(USED)
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", path="/")
        return answer


def refused(why: str, status: int = 403) -> JSONResponse:
    """An answer that says why there is none."""
    return JSONResponse({"error": why}, status_code=status)


def _token(scope: Scope) -> str | None:
    """The token in the address, if it is one of those that we print."""
    if scope["path"] != "/" or scope["method"] != "GET":
        return None
    given = parse_qs(scope["query_string"].decode("latin-1")).get("token")
    return given[0] if given else None
