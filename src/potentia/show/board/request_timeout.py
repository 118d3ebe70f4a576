"""An end to requests that never arrive: uvicorn waits for the rest of a half-sent one for ever.

A thousand such connections would hold a thousand descriptors. The time runs from the first byte that is waited for to
the last byte of the request; the answer, which may be an endless stream, takes as long as it likes.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_REQUEST_NOT_COMPLETE = (h11.IDLE, h11.SEND_BODY)


class TimedRequestProtocol(H11Protocol):
    """Closes a connection whose request is not there after ``request_seconds``."""

    request_seconds = 10.0
    request_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request; the time goes on where it is not the last part."""
        super().data_received(data)
        if self.conn.their_state not in _REQUEST_NOT_COMPLETE:
            self._stop_timer()
        elif self.request_timer is None:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the time with the connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self.request_timer = self.loop.call_later(self.request_seconds, self._close_connection)

    def _stop_timer(self) -> None:
        if self.request_timer is not None:
            self.request_timer.cancel()
            self.request_timer = None

    def _close_connection(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
