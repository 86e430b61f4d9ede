"""A schema registry on a port of this machine: the part of Confluent's API that serializers and readers use.

It keeps registered schemas, and answers with the error codes of Confluent's registry. Like Confluent's, it returns descriptors
for Protobuf only with `format=serialized`, and refuses an Avro schema that cannot read values of the previous version. It tries
this with one generated value. Other schemas, and schemas with references, are not checked for compatibility.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import ssl
from typing import Any

import fastavro
from aiohttp import web
from fastavro import utils

from tests.support.thread_server import ThreadServer

USERNAME, PASSWORD = "fanout", "canary-of-a-secret"
"""User name and password of a registry that asks for them."""
_ACCEPTED = "Basic " + base64.b64encode(f"{USERNAME}:{PASSWORD}".encode()).decode()


class SchemaRegistry(ThreadServer):
    """The registry. While `status` is set, each answer has this status. `compatibility` is `BACKWARD` or `NONE`."""

    def __init__(self, *, is_protected: bool = False, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls)
        self.status: int | None = None
        self.compatibility = "BACKWARD"
        self.has_descriptors = True
        """False: as Apicurio 3.0.9 does, return Protobuf schemas as they were registered, also with `format=serialized`."""
        self.requests: list[str] = []
        self._is_protected = is_protected
        self._ids = itertools.count(1)
        self._by_id: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, list[int]] = {}

    def register(self, subject: str, schema: str, schema_type: str = "AVRO", references: list[Any] | None = None) -> int:
        """Register a schema as the next version of a subject, whether it is compatible or not; return its id."""
        document = {"schema": schema, "schemaType": schema_type, "references": references or []}
        known = next((number for number, kept in self._by_id.items() if kept == document), None)
        number = next(self._ids) if known is None else known
        self._by_id[number] = document
        versions = self._subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of schemas and subjects."""
        return [
            web.get("/schemas/ids/{id}", self._schema),
            web.get("/subjects/{subject}/versions/{version}", self._version),
            web.post("/subjects/{subject}/versions", self._register),
            web.post("/subjects/{subject}", self._look_up),
        ]

    async def around(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Answer a request, unless `status` or the missing password forbids it."""
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
        return web.json_response(self._shown(found, request))

    async def _version(self, request: web.Request) -> web.Response:
        subject, version = request.match_info["subject"], request.match_info["version"]
        versions = self._subjects.get(subject)
        if versions is None:
            return web.json_response({"error_code": 40401, "message": "Subject not found"}, status=404)
        place = len(versions) if version == "latest" else int(version)
        if not 1 <= place <= len(versions):
            return web.json_response({"error_code": 40402, "message": "Version not found"}, status=404)
        number = versions[place - 1]
        return web.json_response(
            {"subject": subject, "version": place, "id": number, **self._shown(self._by_id[number], request)}
        )

    async def _register(self, request: web.Request) -> web.Response:
        sent, subject = await request.json(), request.match_info["subject"]
        fault = self._incompatibility(subject, sent) if self.compatibility == "BACKWARD" else ""
        if fault:
            message = (
                f'Schema being registered is incompatible with an earlier schema for subject "{subject}", details: [{fault}]'
            )
            return web.json_response({"error_code": 409, "message": message}, status=409)
        number = self.register(subject, sent["schema"], sent.get("schemaType", "AVRO"), sent.get("references"))
        return web.json_response({"id": number, **self._by_id[number]})

    def _incompatibility(self, subject: str, sent: dict[str, Any]) -> str:
        """Return why the sent schema cannot read values of the subject's newest version. "": it can, or nothing was checked."""
        versions = self._subjects.get(subject)
        before = self._by_id[versions[-1]] if versions else sent
        if any(schema.get("schemaType", "AVRO") != "AVRO" or schema.get("references") for schema in (before, sent)):
            return ""
        writer, reader = (fastavro.parse_schema(json.loads(schema["schema"])) for schema in (before, sent))
        value = io.BytesIO()
        fastavro.schemaless_writer(value, writer, utils.generate_one(writer))
        value.seek(0)
        try:
            fastavro.schemaless_reader(value, writer, reader)
        except fastavro.read.SchemaResolutionError as exc:
            return str(exc)
        return ""

    async def _look_up(self, request: web.Request) -> web.Response:
        sent, subject = await request.json(), request.match_info["subject"]
        for place, number in enumerate(self._subjects.get(subject, []), start=1):
            if self._by_id[number]["schema"] == sent["schema"]:
                return web.json_response({"subject": subject, "version": place, "id": number, **self._by_id[number]})
        return web.json_response({"error_code": 40403, "message": "Schema not found"}, status=404)

    def _shown(self, document: dict[str, Any], request: web.Request) -> dict[str, Any]:
        if document["schemaType"] == "PROTOBUF" and self.has_descriptors and request.query.get("format") != "serialized":
            return document | {"schema": 'syntax = "proto3";'}
        return {name: value for name, value in document.items() if (name, value) != ("schemaType", "AVRO")}
