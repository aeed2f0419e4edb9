"""Bound the size of request bodies, before anything reads them."""

from __future__ import annotations

import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 64 * 1024


class BodyLimit:
    """Answer 413 to a body over ``MAX_BODY_BYTES``, by its declared length or as it streams in."""

    def __init__(self, app: ASGIApp, limit: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body up to the limit, then hand it on whole."""
        if scope["type"] != "http" or scope["method"] in {"GET", "HEAD", "OPTIONS"}:
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        # More digits than the limit has say enough, and int() takes only so many.
        too_long = len(declared) > len(str(self._limit))
        if not declared.isdigit() or too_long or int(declared) > self._limit:
            await self._refuse(send)
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return  # The caller went away.
            body += message.get("body", b"")
            if len(body) > self._limit:
                await self._refuse(send)
                return
            if not message.get("more_body", False):
                break
        await self._app(scope, _replay(body, receive), send)

    async def _refuse(self, send: Send) -> None:
        problem = {
            "type": "about:blank",
            "title": "Body too large",
            "status": 413,
            "detail": f"a body may have {self._limit} bytes",
            "request_id": "",
        }
        content = json.dumps(problem).encode()
        headers = [
            (b"content-type", b"application/problem+json"),
            (b"content-length", str(len(content)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": content})


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the body once, then whatever the server says next (that the caller went away)."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
