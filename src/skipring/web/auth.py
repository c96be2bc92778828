"""Authentication of the dashboard: a one-time address, then a cookie, from its own page only.

A page in another tab, or a name that resolves to this address, must not read a ring or publish in
it. Every request must therefore name this host, requests of other origins are refused, and all
requests after the first need a cookie that only the one-time address sets. Browsers send the
cookies of a host to all its ports, so the name of the cookie contains the port.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skipring.wire.rpc import Address

SECRET_BYTES: Final = 32
CHANGING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
HTTP_PORT: Final = 80  # browsers omit it in Host
OTHER_SITES: Final = frozenset({"cross-site", "same-site"})  # the latter: another port of this host

# Own files only: a page that was tampered with can neither load nor send anything.
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

NOT_OUR_HOST: Final = "the dashboard does not serve this address; use the address that it printed"
FOREIGN: Final = "the request comes from a page that is not the dashboard's"
NO_COOKIE: Final = "this browser has no access; open the address that skipring printed last"
USED: Final = "this address was used already or is invalid; skipring printed a new one"


class TokenAuth:
    """One-time tokens and the cookie of the dashboard."""

    def __init__(self, on_entered: Callable[[], None] = lambda: None) -> None:
        self.hosts: Collection[str] = ()  # allowed values of the header Host; ``open_at`` sets them
        self.cookie_name = ""
        self.token = secrets.token_urlsafe(SECRET_BYTES)
        self._on_entered = on_entered
        self._cookie = secrets.token_urlsafe(SECRET_BYTES)

    def open_at(self, address: Address, port: int) -> None:
        """Allow requests to an address, or to localhost at a port."""
        names = {address, f"localhost:{port}"}
        if port == HTTP_PORT:
            names |= {name.removesuffix(f":{port}") for name in names}
        self.hosts = frozenset(names)
        self.cookie_name = f"skipring-{port}"

    def enter(self, token: str) -> str | None:
        """Return the cookie if the token matches, and replace the token; otherwise None."""
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return None
        self.token = secrets.token_urlsafe(SECRET_BYTES)
        with suppress(OSError):  # a closed stdout must not stop the login
            self._on_entered()
        return self._cookie

    def refusal(self, method: str, headers: Headers) -> str | None:
        """Return why a request is refused; None if it is allowed."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self.hosts:
            return NOT_OUR_HOST
        is_ours = origin == f"http://{host}"
        if (origin is not None or method in CHANGING) and not is_ours:
            return FOREIGN
        # Requests for images and scripts have no Origin, but browsers add Sec-Fetch-Site.
        is_opened = headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site") in OTHER_SITES and not is_opened:
            return FOREIGN
        return None

    def knows(self, headers: Headers) -> bool:
        """Return True if a request contains the cookie."""
        ours = self._cookie.encode()
        shown = _values(headers, self.cookie_name)
        return any(secrets.compare_digest(value.encode(), ours) for value in shown)


class Guarded:
    """ASGI application behind authentication; adds the security headers to every response."""

    def __init__(self, app: ASGIApp, gate: TokenAuth) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or refuse it."""
        if scope["type"] != "http":
            return  # HTTP only

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self._answer(scope) or self._app
        await answer(scope, receive, send_with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """Return a login or refusal; None if the application should respond."""
        headers = Headers(scope=scope)
        why = self._gate.refusal(scope["method"], headers)
        if why is not None:
            return refused(why)
        token = _token(scope)
        if token is not None:
            return self._entered(token, headers)
        return None if self._gate.knows(headers) else refused(NO_COOKIE)

    def _entered(self, token: str, headers: Headers) -> Response:
        answer = RedirectResponse("/", status_code=303)
        cookie = self._gate.enter(token)
        if cookie is None:  # an authenticated browser may open a used address again
            return answer if self._gate.knows(headers) else refused(USED)
        answer.set_cookie(
            self._gate.cookie_name, cookie, httponly=True, samesite="strict", path="/"
        )
        return answer


def refused(why: str, status: int = 403) -> JSONResponse:
    """Return a response with the reason for refusal."""
    return JSONResponse({"error": why}, status_code=status)


def _values(headers: Headers, name: str) -> Iterator[str]:
    """Yield all cookies of a name: another server of this host may have set the same name."""
    for pair in headers.get("cookie", "").split(";"):
        given, _, value = pair.strip().partition("=")
        if given == name:
            yield value


def _token(scope: Scope) -> str | None:
    """Return the token of a GET request to ``/``; None if there is none."""
    if scope["path"] != "/" or scope["method"] != "GET":
        return None
    given = parse_qs(scope["query_string"].decode("latin-1")).get("token")
    return given[0] if given else None
