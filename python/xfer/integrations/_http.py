"""A client of the HTTP routes of an inference server."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any

__all__ = ["NoRouteError", "RefusedError", "Routes"]


class RefusedError(RuntimeError):
    """A server refused a call. status: of its answer."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class NoRouteError(RefusedError):
    """A server does not have a route."""


class Routes:
    """The routes of one server.

    url: of the server, such as "http://localhost:8000"; "" on ranks that never call it. timeout_s: deadline of each
    call; the call of an update lasts as long as the update. api_key: the server's API key, if it needs one.
    """

    has_routes = ""  # which server has these routes, for the error text if another one is asked

    def __init__(self, url: str, timeout_s: float = 600.0, api_key: str | None = None) -> None:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is not the address of a server: it must begin with http:// or https://")
        self._url, self._timeout_s = url.rstrip("/"), timeout_s
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def __str__(self) -> str:
        return f"the server at {self._url}"

    def wait_ready(self, every_s: float = 2.0) -> None:
        """Wait, at most timeout_s, until the server answers, which it does once it has loaded its model."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                self._answer("health", None)
                return
            except (OSError, RuntimeError):
                if time.monotonic() > deadline:
                    raise
            time.sleep(every_s)

    def _post(self, path: str, body: Any = None, most_s: float | None = None) -> bytes:
        """Make a call, and return the body of the answer. most_s: a shorter deadline than timeout_s."""
        return self._answer(path, json.dumps(body or {}).encode(), most_s)

    def _get(self, path: str) -> Any:
        """Return the JSON that the server answers."""
        return self._json(path, self._answer(path, None))

    def _json(self, path: str, said: bytes) -> Any:
        """Return an answer of the server, which must be JSON."""
        try:
            return json.loads(said)
        except ValueError as wrong:
            raise RuntimeError(f"{self._url} answers {path} with something other than JSON: {wrong}") from None

    def _answer(self, path: str, data: bytes | None, most_s: float | None = None) -> bytes:
        """Return the body of the server's answer. Raises RefusedError with the server's text if it refuses, and
        TimeoutError or ConnectionError if it does not answer."""
        if not self._url:
            raise ValueError(f"this rank has no server to ask for {path}: give its HttpClient the server's address")
        request = urllib.request.Request(f"{self._url}/{path}", data=data, headers=self._headers)
        timeout_s = self._timeout_s if most_s is None else min(most_s, self._timeout_s)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as reply:
                return bytes(reply.read())
        except urllib.error.HTTPError as error:
            said = error.read(2000).decode(errors="replace").strip()
            hint = f" (this route needs {self.has_routes})" if error.code == 404 and self.has_routes else ""
            kind = NoRouteError if error.code in (404, 405, 501) else RefusedError
            raise kind(f"the server answers {path} with {error.code}: {said}{hint}", error.code) from None
        except (OSError, http.client.HTTPException) as error:  # nobody listens, or the answer is not HTTP
            reason = getattr(error, "reason", error)
            failed = TimeoutError if isinstance(reason, TimeoutError) else ConnectionError
            raise failed(f"{self._url} does not answer {path}: {reason}") from error
