"""Stands in front of fake-gcs-server and translates the XML calls that it does not know.

It knows the JSON calls only for writing files, and lists without a start and in JSON.
"""

from __future__ import annotations

import argparse
import base64
import json
from datetime import datetime
from email.utils import format_datetime
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

from aiohttp import ClientSession, web

PAGE = 1000
_META = "x-goog-meta-"

_PASSED = ("Content-Type", "Content-Range", "Range", "Location")
"""Headers of calls of the JSON interface that matter."""


class Proxy:
    """Translates requests to one server."""

    def __init__(self, server: str, *, ignores_start: bool = False) -> None:
        """Send them to the URL `server`; a listing may begin at the first name, as some do."""
        self._server = server
        self._ignores_start = ignores_start
        self._session: ClientSession | None = None

    async def handle(self, request: web.Request) -> web.Response:
        """Answer a request."""
        self._session = self._session or ClientSession(auto_decompress=False)
        if request.path.startswith(("/storage/", "/upload/")):
            return await self._pass_on(request)
        bucket, _, key = request.path.lstrip("/").partition("/")
        match request.method:
            case "PUT":
                return await self._put(request, bucket, key)
            case "GET" if not key:
                return await self._list(request, bucket)
            case "GET" | "HEAD":
                return await self._get(request, bucket, key)
            case _:
                url = f"/storage/v1/b/{bucket}/o/{quote(key, safe='')}"
                status, body, _ = await self._ask("DELETE", url)
                return web.Response(status=status, body=body)

    async def _pass_on(self, request: web.Request) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name in _PASSED}
        status, body, answered = await self._ask(
            request.method, request.rel_url.raw_path_qs, await request.read(), **headers
        )
        passed = {name: value for name, value in answered.items() if name in _PASSED}
        if "Location" in passed:
            passed["Location"] = passed["Location"].replace(self._server, f"http://{request.host}")
        return web.Response(status=status, body=body, headers=passed)

    async def _ask(
        self, method: str, path: str, body: bytes = b"", **headers: str
    ) -> tuple[int, bytes, Any]:
        assert self._session is not None
        from yarl import URL

        url = URL(self._server + path, encoded=True)
        async with self._session.request(method, url, data=body, headers=headers) as answer:
            return answer.status, await answer.read(), answer.headers

    async def _put(self, request: web.Request, bucket: str, key: str) -> web.Response:
        condition = request.headers.get("x-goog-if-generation-match")
        fields = {n[len(_META) :]: v for n, v in request.headers.items() if n.startswith(_META)}
        about = json.dumps({"name": key, "metadata": fields}).encode()
        mark = b"--tailerd"
        body = b"".join(
            (
                mark + b"\r\nContent-Type: application/json\r\n\r\n" + about + b"\r\n",
                mark + b"\r\nContent-Type: application/octet-stream\r\n\r\n",
                await request.read() + b"\r\n" + mark + b"--",
            )
        )
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart"
        if condition is not None:
            path += f"&ifGenerationMatch={condition}"
        kind = {"Content-Type": "multipart/related; boundary=tailerd"}
        status, answer, _ = await self._ask("POST", path, body, **kind)
        if status == 404:
            return web.Response(status=404, text="<Error><Code>NoSuchBucket</Code></Error>")
        if status != 200:
            return web.Response(status=status, body=answer)
        found = json.loads(answer)
        headers = {"ETag": _etag(found), "x-goog-generation": str(found["generation"])}
        return web.Response(status=200, headers=headers)

    async def _get(self, request: web.Request, bucket: str, key: str) -> web.Response:
        path = f"/storage/v1/b/{bucket}/o/{quote(key, safe='')}"
        status, answer, _ = await self._ask("GET", path)
        if status != 200:
            is_there, _, _ = await self._ask("GET", f"/storage/v1/b/{bucket}")
            code = "NoSuchKey" if is_there == 200 else "NoSuchBucket"
            return web.Response(status=status, text=f"<Error><Code>{code}</Code></Error>")
        found = json.loads(answer)
        wanted = request.headers.get("If-Match")
        if wanted not in (None, "*", _etag(found)):
            return web.Response(status=412)
        headers = {
            "ETag": _etag(found),
            "Last-Modified": format_datetime(_time(found), usegmt=True),
            "x-goog-generation": str(found["generation"]),
            **{f"{_META}{name}": value for name, value in found.get("metadata", {}).items()},
        }
        size = int(found["size"])
        if request.method == "HEAD":
            headers["Content-Length"] = str(size)
            return web.Response(headers=headers)
        _, body, _ = await self._ask("GET", f"{path}?alt=media")
        span = request.headers.get("Range", "")
        if not span:
            return web.Response(headers=headers, body=body)
        first, _, last = span.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, size - int(last))
        end = int(last) + 1 if first and last else size
        if start >= size:
            return web.Response(status=416)
        part = body[start:end]
        headers["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{size}"
        return web.Response(status=206, headers=headers, body=part)

    async def _list(self, request: web.Request, bucket: str) -> web.Response:
        asked = request.query
        after = "" if self._ignores_start else asked.get("start-after", "")
        if "continuation-token" in asked:
            after = base64.urlsafe_b64decode(asked["continuation-token"]).decode()
        query = f"prefix={quote(asked.get('prefix', ''), safe='')}&maxResults=100000"
        if delimiter := asked.get("delimiter"):
            query += f"&delimiter={quote(delimiter, safe='')}"
        status, answer, _ = await self._ask("GET", f"/storage/v1/b/{bucket}/o?{query}")
        if status != 200:
            return web.Response(status=404, text="<Error><Code>NoSuchBucket</Code></Error>")
        found = json.loads(answer)
        items = {each["name"]: each for each in found.get("items", [])}
        names = sorted((n for n in items if n.encode() > after.encode()), key=str.encode)
        page, rest = names[:PAGE], names[PAGE:]
        lines = [
            f"<Contents><Key>{escape(name)}</Key><Size>{items[name]['size']}</Size>"
            f"<LastModified>{_time(items[name]).isoformat()}</LastModified>"
            f"<ETag>{escape(_etag(items[name]))}</ETag></Contents>"
            for name in page
        ]
        if not after:
            lines += [
                f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>"
                for each in found.get("prefixes", [])
            ]
        if rest:
            token = base64.urlsafe_b64encode(page[-1].encode()).decode()
            lines.append(f"<NextContinuationToken>{token}</NextContinuationToken>")
        text = f"<ListBucketResult>{''.join(lines)}</ListBucketResult>"
        return web.Response(text=text, content_type="application/xml")


def _etag(found: dict[str, Any]) -> str:
    return f'"{found["generation"]}"'


def _time(found: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(found["updated"])


def main() -> None:
    """Run until it is ended."""
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--server", required=True)
    options.add_argument("--ignore-start", action="store_true")
    given = options.parse_args()
    proxy = Proxy(given.server, ignores_start=given.ignore_start)
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", proxy.handle)
    web.run_app(app, host="127.0.0.1", port=given.port, print=lambda _: None)


if __name__ == "__main__":
    main()
