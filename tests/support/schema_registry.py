"""A schema registry on a port of this machine: the part of Confluent's API that serializers and readers use.

It keeps what is registered, checks no compatibility, and answers with the error codes of the original. As the original does, it
returns descriptors for Protobuf only with `format=serialized`.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import ssl
import threading
from typing import Any, Self

from aiohttp import web

USERNAME, PASSWORD = "fanout", "canary-of-a-secret"
"""User name and password of a registry that asks for them."""
_ACCEPTED = "Basic " + base64.b64encode(f"{USERNAME}:{PASSWORD}".encode()).decode()


class SchemaRegistry:
    """A server on a thread of its own. While `status` is set, each answer has this status."""

    def __init__(self, *, is_protected: bool = False, tls: ssl.SSLContext | None = None) -> None:
        self.status: int | None = None
        self.requests: list[str] = []
        self._is_protected, self._tls = is_protected, tls
        self._ids = itertools.count(1)
        self._by_id: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, list[int]] = {}
        self._loop = asyncio.new_event_loop()
        self._port = 0

    def register(self, subject: str, schema: str, schema_type: str = "AVRO", references: list[Any] | None = None) -> int:
        """Register a schema as the next version of a subject; return its id."""
        document = {"schema": schema, "schemaType": schema_type, "references": references or []}
        known = next((number for number, kept in self._by_id.items() if kept == document), None)
        number = next(self._ids) if known is None else known
        self._by_id[number] = document
        versions = self._subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self) -> None:
        """Listen, again on the same port if the registry was stopped."""
        self._runner = asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()
        self._port = self._runner.addresses[0][1]
        self.url = f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port}"

    def stop(self) -> None:
        """Close the port: connections are refused."""
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()

    async def _serve(self) -> web.AppRunner:
        app = web.Application(middlewares=[self._answer_if_there])
        app.router.add_get("/schemas/ids/{id}", self._schema)
        app.router.add_get("/subjects/{subject}/versions/{version}", self._version)
        app.router.add_post("/subjects/{subject}/versions", self._register)
        app.router.add_post("/subjects/{subject}", self._look_up)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port, ssl_context=self._tls, reuse_address=True).start()
        return runner

    @web.middleware
    async def _answer_if_there(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append(request.path_qs)
        if self.status is not None:
            return web.json_response({"error_code": self.status, "message": "away"}, status=self.status)
        if self._is_protected and request.headers.get("Authorization") != _ACCEPTED:
            return web.json_response({"error_code": 401, "message": "Unauthorized"}, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _schema(self, request: web.Request) -> web.Response:
        found = self._by_id.get(int(request.match_info["id"]))
        if found is None:
            return web.json_response({"error_code": 40403, "message": "Schema not found"}, status=404)
        return web.json_response(_shown(found, request))

    async def _version(self, request: web.Request) -> web.Response:
        subject, version = request.match_info["subject"], request.match_info["version"]
        versions = self._subjects.get(subject)
        if versions is None:
            return web.json_response({"error_code": 40401, "message": "Subject not found"}, status=404)
        place = len(versions) if version == "latest" else int(version)
        if not 1 <= place <= len(versions):
            return web.json_response({"error_code": 40402, "message": "Version not found"}, status=404)
        number = versions[place - 1]
        return web.json_response({"subject": subject, "version": place, "id": number, **_shown(self._by_id[number], request)})

    async def _register(self, request: web.Request) -> web.Response:
        sent = await request.json()
        number = self.register(
            request.match_info["subject"], sent["schema"], sent.get("schemaType", "AVRO"), sent.get("references")
        )
        return web.json_response({"id": number, **self._by_id[number]})

    async def _look_up(self, request: web.Request) -> web.Response:
        sent, subject = await request.json(), request.match_info["subject"]
        for place, number in enumerate(self._subjects.get(subject, []), start=1):
            if self._by_id[number]["schema"] == sent["schema"]:
                return web.json_response({"subject": subject, "version": place, "id": number, **self._by_id[number]})
        return web.json_response({"error_code": 40403, "message": "Schema not found"}, status=404)


def _shown(document: dict[str, Any], request: web.Request) -> dict[str, Any]:
    if document["schemaType"] == "PROTOBUF" and request.query.get("format") != "serialized":
        return document | {"schema": 'syntax = "proto3";'}
    return {name: value for name, value in document.items() if (name, value) != ("schemaType", "AVRO")}
