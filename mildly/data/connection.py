"""Requests to servers that are not trusted: sent on only to where it is as safe, and ended if next to nothing comes."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
import urllib.error
import urllib.request
from functools import partial
from http.client import HTTPMessage
from types import TracebackType
from typing import IO, Any
from urllib.parse import urlsplit

_SAFE = {"http": ("http", "https"), "https": ("https",)}  # where a redirection from the one may lead


class Watch:
    """Ends connections through which less than `least` bytes have come within `seconds`.

    A server that sends a byte now and then never meets a socket's own time limit, neither in its header nor after it.
    """

    def __init__(self, seconds: float, least: int) -> None:
        self.seconds, self.least = seconds, least
        self.ended = False
        self._sockets: list[socket.socket] = []
        self._since, self._bytes = time.monotonic(), 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="download-watch", daemon=True)

    def came(self, count: int) -> None:
        """So many bytes of the file came."""
        self._bytes += count
        if self._bytes >= self.least:
            self._since, self._bytes = time.monotonic(), 0

    def add(self, opened: socket.socket) -> None:
        """Watch a connection."""
        self._sockets.append(opened)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(self.seconds / 20):
            if time.monotonic() - self._since > self.seconds:
                self.ended = True
                for opened in self._sockets:
                    with contextlib.suppress(OSError):
                        opened.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for it


def open_address(request: urllib.request.Request, timeout: float, watch: Watch) -> Any:
    """The answer to a request."""
    opener = urllib.request.build_opener(_Http(watch), _Https(watch), _Redirections)
    return opener.open(request, timeout=timeout)


class _Plain(http.client.HTTPConnection):
    def __init__(self, *given: Any, watch: Watch, **named: Any) -> None:
        super().__init__(*given, **named)
        self.watch = watch

    def connect(self) -> None:
        super().connect()
        self.watch.add(self.sock)


class _Secure(http.client.HTTPSConnection):
    def __init__(self, *given: Any, watch: Watch, **named: Any) -> None:
        super().__init__(*given, **named)
        self.watch = watch

    def connect(self) -> None:
        super().connect()
        self.watch.add(self.sock)


class _Http(urllib.request.HTTPHandler):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_Plain, watch=self.watch), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_Secure, watch=self.watch), req)


class _Redirections(urllib.request.HTTPRedirectHandler):
    """Never to a file of this machine's, to ftp, or from https to what anybody on the way can change."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        scheme = urlsplit(newurl).scheme.lower()
        if scheme not in _SAFE.get(req.type or "", ()):
            reason = f"sends us on to {newurl[:200]}, which is not followed from {req.type}"
            raise urllib.error.HTTPError(req.full_url, code, reason, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)
