"""Who may read the board, and what a browser may do with it.

On a loopback address no token is needed, but the Host header must be loopback too: a page of the open web that points
its own name at 127.0.0.1 gets nothing. With a token, nothing at all is served without it: as a bearer token, or as a
cookie that holds its hash, which a browser receives for the token itself.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from html import escape
from typing import Any
from urllib.parse import parse_qsl, urlencode

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "potentia"
LONGEST_FORM = 4_096

POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # places and shades of the drawings
        "img-src 'self' data: blob:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)


class Guard:
    """Lets a request through only where it may read, and puts the security headers on every answer."""

    def __init__(self, app: Asgi, *, token: str | None) -> None:
        self.app = app
        self.token = token
        self.cookie = hashlib.sha256(f"potentia board {token}".encode()).hexdigest() if token else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", []))
                given = {name for name, _ in headers}
                headers += [pair for pair in HEADERS if pair[0] not in given]
                if b"cache-control" not in given:
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": headers}
            await send(message)

        request = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if self.token is None:
            if not is_loopback(_host(request.get("host", ""))):
                await _answer(guarded, 403, "this board answers on a loopback address only")
                return
            await self.app(scope, receive, guarded)
        elif self._known(request):
            await self.app(scope, receive, guarded)
        else:
            await self._ask(scope, request, receive, guarded)

    def _known(self, request: dict[str, str]) -> bool:
        kind, _, bearer = request.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(bearer):
            return True
        jar = dict(part.strip().partition("=")[::2] for part in request.get("cookie", "").split(";"))
        return hmac.compare_digest(jar.get(COOKIE, "").encode(), self.cookie.encode())

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.strip().encode(), (self.token or "").encode())

    async def _ask(self, scope: Scope, request: dict[str, str], receive: Receive, send: Send) -> None:
        """Answer a request without the right cookie: take a token from the address or the form, or ask for it."""
        path = scope["path"]
        pairs = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in pairs if name == "token"), None)
        if scope["method"] == "GET" and given is not None and self._is_token(given):
            rest = urlencode([(name, value) for name, value in pairs if name != "token"])
            await self._welcome(scope, send, path + (f"?{rest}" if rest else ""))
            return
        if scope["method"] == "POST" and path == "/login":
            form = dict(parse_qsl((await _body(receive)).decode("utf-8", "replace")))
            if self._is_token(form.get("token", "")):
                await self._welcome(scope, send, "/")
                return
            await _answer(send, 401, page=_LOGIN.format(message="<p role='alert'>That is not the token.</p>"))
            return
        if "text/html" in request.get("accept", ""):
            await _answer(send, 401, page=_LOGIN.format(message=""))
        else:
            await _answer(send, 401, "a token is needed: send it as Authorization: Bearer TOKEN")

    async def _welcome(self, scope: Scope, send: Send, target: str) -> None:
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        cookie = f"{COOKIE}={self.cookie}; Path=/; HttpOnly; SameSite=Strict{secure}"
        # One slash: "//elsewhere" would be another host. A page, not a redirect: a strict cookie is not sent along
        # with the redirect of a link from another site.
        place = "/" + target.lstrip("/\\")
        page = _WELCOME.format(place=escape(place, quote=True))
        await _answer(send, 200, page=page, headers=[(b"set-cookie", cookie.encode("latin-1"))])


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach the address; a name that could be pointed anywhere is none."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _host(header: str) -> str:
    name = header.strip().lower()
    return name[: name.index("]") + 1] if name.startswith("[") and "]" in name else name.partition(":")[0]


async def _body(receive: Receive) -> bytes:
    body = b""
    while len(body) <= LONGEST_FORM:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return body[:LONGEST_FORM]


async def _answer(
    send: Send, status: int, detail: str = "", *, page: str = "", headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    import json

    body = page.encode() if page else json.dumps({"detail": detail}).encode()
    kind = b"text/html; charset=utf-8" if page else b"application/json"
    given = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *(headers or [])]
    if status == 401:
        given.append((b"www-authenticate", b'Bearer realm="Potentia"'))
    await send({"type": "http.response.start", "status": status, "headers": given})
    await send({"type": "http.response.body", "body": body})


_HEAD = (
    "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Potentia</title>"
    "<meta name='viewport' content='width=device-width, initial-scale=1'>"
    "<meta name='color-scheme' content='light dark'>"
    "<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:22rem;margin:14vh auto;padding:0 1rem}}"
    "input,button{{font:inherit;padding:.5rem .7rem;width:100%;box-sizing:border-box;margin-top:.5rem}}</style>"
)
_LOGIN = (
    _HEAD + "</head><body><main><h1>Potentia</h1>{message}<form method='post' action='/login'>"
    "<label>Token, as <code>potentia serve</code> printed it"
    "<input name='token' type='password' required autofocus autocomplete='current-password'></label>"
    "<button>Open the board</button></form></main></body></html>"
)
_WELCOME = (
    _HEAD + "<meta http-equiv='refresh' content='0;url={place}'></head>"
    "<body><main><p>Welcome. <a href='{place}'>Open the board</a></p></main></body></html>"
)
