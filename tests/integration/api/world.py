"""A served API with two customers, and a client for it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import http.client
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvloop

from delivery.config import oidc_settings, service_settings, settings
from delivery.webhooks.http import guard
from subscriptions_db import server_bounds
from subscriptions_db.api.contract import keys
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.api.server import run
from subscriptions_db.archive.ingest import writer
from subscriptions_db.archive.search import consumers
from subscriptions_db.archive.search.archive_positions import RecordPosition
from subscriptions_db.archive.search.selection import DeadLetterSearch
from subscriptions_db.manifest import manifest
from subscriptions_db.postgres import connect
from subscriptions_db.registration import apply
from subscriptions_db.secrets import keyring
from tests.support import archive, databases

DOCUMENT = {
    "tenants": [{"id": "t1"}, {"id": "t2", "sub_tenants": [100]}],
    "customers": [{"id": "acme", "name": "Acme Inc"}, {"id": "other"}],
    "endpoints": [
        {"id": "acme-orders", "customer": "acme", "url": "https://hooks.acme.example.com/orders", "max_in_flight": 3,
         "auth": {"kind": "basic", "username": "ann", "secret": "hunter2"}},
        {"id": "other-orders", "customer": "other", "url": "https://hooks.other.example.com/orders"},
    ],
    "subscriptions": [
        {"id": "acme-all", "endpoint": "acme-orders", "event_type": "order.*", "everything": True, "except_tenants": ["t9"],
         "filter": {"data": {"amount": [{"numeric": [">", 5]}]}}},
        {"id": "other-all", "endpoint": "other-orders", "event_type": "order.*", "tenants": ["t1"]},
    ],
    "event_types": [
        {"id": "order.created", "json_schema": {"type": "object", "required": ["amount"]}, "examples": [{"amount": 20}]},
    ],
}  # fmt: skip
LOGIN = """
do $$
begin
    if not exists (select from pg_roles where rolname = 'fanout_serve') then
        create role fanout_serve login in role fanout_api, fanout_operator;
    end if;
end
$$
"""
"""As docs/operations.md has it: it owns nothing."""
LETTER = str((archive.NOW.date() - dt.date(1970, 1, 1)).days << 38 | 1)
"""The id of the letter that acme has: the first of its day."""
CONSUMER = "billing"
ATTEMPT = RecordPosition(archive.NOW, 1).text()
"""The id of the attempt that acme has: the first of all."""
_DELIVERY = archive.outcome(customer="acme", endpoint="acme-orders", event_id="first")
WEBHOOK_ID = _DELIVERY.delivery.webhook_id
"""Webhook id of the delivery to which ATTEMPT belongs."""
REPLAY = f"rpl_{0:024x}"
CONSUMER_PATH = f"/v1/dead-letter-consumers/{CONSUMER}"
REPLAYS = """
insert into replays (replay_id, customer_id, endpoint_id, since, until)
values (%(replay_id)s, 'acme', 'acme-orders', '2026-05-10', '2026-05-11')
"""
NO_KAFKA = settings.KafkaSettings(bootstrap_servers="127.0.0.1:1")
"""Nothing listens there."""
GRANTS = "insert into customer_tenants values ('acme', 't1'), ('acme', 't2'), ('other', null)"


@dataclass
class Answer:
    """The answer to a request."""

    status: int
    headers: dict[str, str]
    text: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def fields(self) -> list[str]:
        """Return the fields that a problem document names."""
        return [error["field"] for error in self.json["errors"]]


@dataclass
class Client:
    """A client with one API key, and a new connection for each request."""

    port: int
    key: str | None
    request_id: str | None = "test"
    """The request id of each request: with one id, equal answers are equal byte for byte."""

    def ask(self, method: str, path: str, document: Any = None, *, raw: bytes | None = None, **headers: str) -> Answer:
        body = raw if raw is not None else None if document is None else json.dumps(document).encode()
        sent = {"content-type": "application/json"} if body is not None else {}
        sent |= {} if self.key is None else {"authorization": f"Bearer {self.key}"}
        sent |= {} if self.request_id is None else {"x-request-id": self.request_id}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body, sent | {name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            named = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, named, response.read())

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, document: Any = None, **headers: str) -> Answer:
        return self.ask("POST", path, document, **headers)

    def put(self, path: str, document: Any, **headers: str) -> Answer:
        return self.ask("PUT", path, document, **headers)

    def patch(self, path: str, document: Any, **headers: str) -> Answer:
        return self.ask("PATCH", path, document, **headers)

    def delete(self, path: str, **headers: str) -> Answer:
        return self.ask("DELETE", path, **headers)


@dataclass
class Served:
    """A running API."""

    port: int
    database: str
    config: settings.Settings
    keys: dict[str, str] = field(default_factory=dict)

    def client(self, key: str | None) -> Client:
        return Client(self.port, key)

    @contextlib.contextmanager
    def registry(self) -> Iterator[connect.Connection]:
        """Yield a connection to the API's database, with the rights of its owner."""
        with connect.connect(settings.DatabaseSettings(url=self.database)) as opened:
            yield opened

    def audit(self, entity_id: str) -> list[dict[str, Any]]:
        with self.registry() as opened:
            return opened.execute("select * from audit_log where entity_id = %s order by entry_id", [entity_id]).fetchall()


def login_of(url: str) -> str:
    """Return the URL of the API's own login to Postgres."""
    return url.replace("://postgres:", "://fanout_serve:")


def letters(opened: connect.Connection, count: int, **fields: Any) -> None:
    """Archive dead letters of acme, or of another customer, after the present ones."""
    [row] = opened.execute("select coalesce(max(next_offset), 0) as next from archive_offsets where partition = 0").fetchall()
    wanted = {"customer": "acme", "endpoint": "acme-orders"} | fields
    taken = [archive.taken_letter(row["next"] + number, **wanted) for number in range(count)]
    writer.write(opened, taken, archive.KEPT, now=archive.NOW)


@contextlib.contextmanager
def served(
    postgres: Any,
    *,
    delivery: settings.DeliverySettings | None = None,
    kafka: settings.KafkaSettings = NO_KAFKA,
    source: settings.SourceSettings | None = None,
    oidc: oidc_settings.OidcSettings | None = None,
    bounds: server_bounds.ServerBounds = server_bounds.DEFAULT,
    **api: Any,
) -> Iterator[Served]:
    """Serve the registry of DOCUMENT from a database of its own."""
    url = databases.create_migrated(postgres, f"api_{uuid.uuid4().hex[:12]}")
    ring = {"k1": keyring.generate()}
    config = settings.Settings(
        database=settings.DatabaseSettings(url=url),
        keys=settings.KeysSettings(ring=ring),
        delivery=delivery or settings.DeliverySettings(),
        kafka=kafka,
        source=source or settings.SourceSettings(),
        oidc=oidc or oidc_settings.OidcSettings(),
        api=service_settings.ApiSettings(
            port=0, database_url=login_of(url), **{"max_requests_per_s": 100_000, "max_connections": 4} | api
        ),
    )
    with connect.connect(config.database) as opened:
        opened.execute(LOGIN)
        apply.apply(opened, manifest.check(DOCUMENT, guard.Guard()), keyring.KeyRing.from_settings(config.keys))
        opened.execute(GRANTS)
        letters(opened, 1)
        first = archive.taken_attempts(0, _DELIVERY)
        writer.write(opened, [dataclasses.replace(first, topic="first-attempts")], archive.KEPT, now=archive.NOW)
        consumers.create(opened, "acme", CONSUMER, DeadLetterSearch())
        opened.execute(REPLAYS, {"replay_id": REPLAY})
        made = {
            "operator": keys.create(opened, customer_id=None, scope=Scope.OPERATOR),
            "acme": keys.create(opened, customer_id="acme", scope=Scope.CUSTOMER_ADMIN),
            "reader": keys.create(opened, customer_id="acme", scope=Scope.READ_ONLY),
            "poller": keys.create(opened, customer_id="acme", scope=Scope.POLLER),
            "other": keys.create(opened, customer_id="other", scope=Scope.CUSTOMER_ADMIN),
            "publisher": keys.create(opened, customer_id=None, scope=Scope.PUBLISHER),
            "publisher of t1": keys.create(opened, customer_id=None, scope=Scope.PUBLISHER, tenants=["t1"]),
        }
        opened.execute("delete from audit_log")  # of the commands
    with running(config, bounds) as port:
        texts = {name: key.text.reveal().decode() for name, key in made.items()}
        yield Served(port, url, config, texts)


@contextlib.contextmanager
def beside(served: Served, **bounds: float) -> Iterator[Served]:
    """Serve the same database by a second server with other bounds."""
    with running(served.config, server_bounds.ServerBounds(**bounds)) as port:
        yield dataclasses.replace(served, port=port)


@contextlib.contextmanager
def running(config: settings.Settings, bounds: server_bounds.ServerBounds = server_bounds.DEFAULT) -> Iterator[int]:
    """Serve the API on a thread of its own; yield the port."""
    loop, stop, port = uvloop.new_event_loop(), asyncio.Event(), 0
    ready = threading.Event()

    async def serve() -> None:
        nonlocal port
        async with run.serving(config, threading.Event(), bounds) as port:
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    try:
        assert ready.wait(10)
        yield port
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def write(served: Served, count: int = 1, **fields: Any) -> None:
    """Archive dead letters in the database of a served API, as `letters` does."""
    with served.registry() as opened:
        letters(opened, count, **fields)


def ids(answer: Answer) -> list[str]:
    """Return the ids of the dead letters of an answer."""
    assert answer.status == 200, answer.text
    return [item["id"] for item in answer.json["items"]]


def lease(poller: Client, **asked: Any) -> Answer:
    """Lease dead letters for the consumer CONSUMER."""
    return poller.post(f"{CONSUMER_PATH}/lease", asked)


def in_background(work: Callable[[], Any]) -> Callable[[], Any]:
    """Start work on a thread; return a function that waits for its result."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()

    def result() -> Any:
        thread.join(20)
        return found[0]

    return result
