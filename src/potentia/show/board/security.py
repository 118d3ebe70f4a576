"""Who may read the board, and what a browser may do with it.

On a loopback address no token is needed, but the Host header must be loopback too: a page of the open web that points
its own name at 127.0.0.1 gets nothing. With a token, nothing at all is served without it: as a bearer token, or as a
cookie that holds its hash, which a browser receives for the token itself.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from potentia.show.page import render

COOKIE = "potentia"
# A name or an address, of version 6 in brackets, and the port: nothing before, between or after them.
_HOST_HEADER = re.compile(r"(?P<host>\[[0-9a-f:.]+\]|[^\[\]:@/\s]+)(?::[0-9]{1,5})?")
LONGEST_FORM = 4_096
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "  # places and shades of the drawings
    "img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


class RequestGuard:
    """Lets a request through only where it may read, and puts the security headers on every answer."""

    def __init__(self, app: ASGIApp, *, token: str | None) -> None:
        self.app = app
        self.token = token
        self.cookie_value = (
            hashlib.sha256(f"potentia board {token}".encode()).hexdigest() if token else ""
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for header, value in HEADERS.items():
                    headers.setdefault(header, value)
            await send(message)

        request = Request(scope, receive)
        refusal: Response | None = None
        if self.token is None:
            if not is_loopback(parse_host(request.headers.get("host", ""))):
                refusal = JSONResponse(
                    {"detail": "this board answers on a loopback address only"}, 403
                )
        elif not self._is_admitted(request):
            refusal = await self._ask_for_token(request)
        await (refusal or self.app)(scope, receive, send_with_headers)

    def _is_admitted(self, request: Request) -> bool:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(bearer):
            return True
        return hmac.compare_digest(
            request.cookies.get(COOKIE, "").encode(), self.cookie_value.encode()
        )

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.strip().encode(), (self.token or "").encode())

    async def _ask_for_token(self, request: Request) -> Response:
        """Answer a request without the right cookie: take a token from the address or the form, or ask for it."""
        is_wrong = False
        parameters = request.query_params
        if request.method == "GET" and self._is_token(parameters.get("token", "")):
            kept_parameters = [pair for pair in parameters.multi_items() if pair[0] != "token"]
            query = f"?{urlencode(kept_parameters)}" if kept_parameters else ""
            return self._admit(request, request.url.path + query)
        if request.method == "POST" and request.url.path == "/login":
            form_fields = parse_qs(await _read_form(request))
            if self._is_token(form_fields.get("token", [""])[0]):
                return self._admit(request, "/")
            is_wrong = True
        headers = {"www-authenticate": 'Bearer realm="Potentia"'}
        if is_wrong or "text/html" in request.headers.get("accept", ""):
            return HTMLResponse(render("login.html", wrong=is_wrong), 401, headers)
        return JSONResponse(
            {"detail": "a token is needed: send it as Authorization: Bearer TOKEN"}, 401, headers
        )

    def _admit(self, request: Request, target: str) -> Response:
        secure = "; Secure" if request.url.scheme == "https" else ""
        cookie = f"{COOKIE}={self.cookie_value}; Path=/; HttpOnly; SameSite=Strict{secure}"
        # One slash: "//elsewhere" would be another host. A page, not a redirect: a strict cookie is not sent along
        # with the redirect of a link from another site.
        return HTMLResponse(
            render("login.html", place="/" + target.lstrip("/\\")), headers={"set-cookie": cookie}
        )


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach the address; a name that could be pointed anywhere is none."""
    if host == "localhost":
        return True
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_host(header: str) -> str:
    """Return the host of a Host header without its port; empty where the header is not exactly that."""
    parts = _HOST_HEADER.fullmatch(header.strip().lower())
    return parts["host"] if parts else ""


async def _read_form(request: Request) -> str:
    body = b""
    async for body_part in request.stream():
        body += body_part
        if len(body) > LONGEST_FORM:
            break
    return body[:LONGEST_FORM].decode("utf-8", "replace")
