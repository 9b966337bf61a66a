"""Who may ask: the page's own browser on this machine, or whoever has the token. Plain ASGI around the application."""

import hashlib
import ipaddress
import secrets
import socket
from collections.abc import Iterable
from urllib.parse import urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oelm.errors import OelmError

SHORTEST_TOKEN = 16
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_safe(host: str, token: str | None) -> None:
    """Refuse to let the whole network in."""
    if token is None and not is_loopback(host):
        way = f"give --token WORD or OELM_DASHBOARD_TOKEN (at least {SHORTEST_TOKEN} characters)"
        raise OelmError(f"on {host} others could read your runs: {way}, or forward the port of 127.0.0.1 with ssh -L")
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii()):
        raise OelmError(f"the token needs at least {SHORTEST_TOKEN} ASCII characters; make one: openssl rand -hex 16")


class Guard:
    """Checks the Host header (a page elsewhere may point its own name at us), the method and the token."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = (), token: str | None = None) -> None:
        self.app, self.token = app, token
        # Browsers keep cookies by host: dashboards on other ports have tokens of their own.
        self.cookie = f"oelm_{hashlib.sha256((token or '').encode()).hexdigest()[:8]}"
        own = (socket.gethostname(), socket.getfqdn()) if token else ()
        self.hosts = {name.lower() for name in ("localhost", *hosts, *own)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await (self._refusal(scope) or self.app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        request = Request(scope)
        if not self._knows(request.headers.get("host", "")):
            return PlainTextResponse("this name is not mine; open the address that 'oelm dashboard' printed", 421)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("the dashboard only reads", 405)
        if self.token is None or self._has_token(request):
            return None
        given = request.query_params.get("token", "")
        if scope["path"] == "/" and self._is_token(given):  # once, by the printed address; then the browser keeps it
            rest = urlencode([(key, value) for key, value in request.query_params.multi_items() if key != "token"])
            answer = RedirectResponse("/" + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(self.cookie, self.token, httponly=True, samesite="lax", max_age=30 * 24 * 3600)
            return answer
        return PlainTextResponse("a token is needed; open the address that 'oelm dashboard' printed", 401)

    def _knows(self, host: str) -> bool:
        """Our own names, and any address in figures: only names can be pointed elsewhere."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        try:
            ipaddress.ip_address(name.strip("[]"))
            return True
        except ValueError:
            return name.lower() in self.hosts

    def _has_token(self, request: Request) -> bool:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = (bearer if scheme.lower() == "bearer" else "", request.cookies.get(self.cookie, ""))
        return any(map(self._is_token, given))

    def _is_token(self, given: str) -> bool:
        return self.token is not None and secrets.compare_digest(given.encode(), self.token.encode())
