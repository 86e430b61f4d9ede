"""Poll, compare, acknowledge and redrive dead letters over HTTP, as a customer does.

Runs in `fanout` commands. A Client uses only the API (docs/dead-letters.md). The function `clients` writes the Clients' API
keys to Postgres.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from delivery import errors
from delivery.config import settings
from delivery.secret import Secret
from delivery.webhooks.results.log_entries import Due
from subscriptions_db.api.contract import keys
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.postgres import connect

ROOT = Path(".fanout/demo")
"""Folder of the demo's data and logs. Each run empties it first."""
CONSUMER = "support"
"""The name of the customer's consumer of dead letters."""
LETTERS, LEASE_S, WAIT_S = 100, 60, 2
"""Maximum dead letters of one poll, seconds of their lease, and seconds for which a poll waits for a dead letter. The wait is
short, so that the demo can be stopped."""
REQUEST_TIMEOUT_S = 30
"""Seconds to wait for an answer of the API."""
MAX_TRIES = 10
"""Maximum number of times that one request is sent while the API is busy."""
BUSY = (http.client.TOO_MANY_REQUESTS, http.client.SERVICE_UNAVAILABLE)
"""Statuses of a busy API."""

Payloads = Mapping[tuple[str, int, int], bytes]
"""Published payloads, by topic, partition and offset."""


@dataclass(slots=True)
class Polled:
    """Deliveries whose dead letters were polled. Each delivery counts once, although polls may return a dead letter twice."""

    seen: set[Due] = field(default_factory=set)
    """Deliveries of which any dead letter was polled."""
    intact: set[Due] = field(default_factory=set)
    """Deliveries whose payload is byte for byte as published."""
    acknowledged: set[Due] = field(default_factory=set)
    """Deliveries whose dead letter the API has named in its answer to an ack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Client of the HTTP API on this machine, with one API key."""

    port: int
    key: Secret

    def is_ready(self) -> bool:
        """Return True if the API answers that it is ready; False if it answers anything else, or does not answer."""
        with contextlib.suppress(errors.LocalStackError):
            return self._ask("GET", "/readyz").status == http.client.OK
        return False

    def post(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON object that answers a POST request. Send the request at most MAX_TRIES times while the API is busy.

        Raise LocalStackError if the API refuses the request, is still busy, or does not answer.
        """
        page: dict[str, Any] = orjson.loads(self._send("POST", path, document))
        return page

    def patch(self, path: str, document: Mapping[str, Any]) -> None:
        """Change a resource by a PATCH request. Repeat the request, and raise LocalStackError, in the same cases as `post`."""
        self._send("PATCH", path, document)

    def _send(self, method: str, path: str, document: Mapping[str, Any]) -> bytes:
        for _ in range(MAX_TRIES):
            answer = self._ask(method, path, orjson.dumps(document))
            if answer.status not in BUSY:
                break
            time.sleep(float(answer.headers.get("retry-after", "1")))
        if answer.status // 100 != 2:  # 2xx
            raise errors.LocalStackError(
                f"the demo failed, and its processes are stopped: the API answered {answer.status} to {path}: "
                f"{answer.body.decode(errors='replace')}. See the API's log, {_log('serve')}"
            )
        return answer.body

    def _ask(self, method: str, path: str, body: bytes | None = None) -> _Answer:
        headers = {"authorization": f"Bearer {self.key.reveal().decode()}", "content-type": "application/json"}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_TIMEOUT_S)
        try:
            with contextlib.closing(connection):
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                return _Answer(answer.status, answer.headers, answer.read())
        except (OSError, http.client.HTTPException) as exc:
            raise errors.LocalStackError(
                f"the demo failed, and its processes are stopped: the API did not answer a request to {path} ({exc}). See the "
                f"API's log, {_log('serve')}"
            ) from exc


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes


def clients(config: settings.Settings, customer_id: str, port: int) -> tuple[Client, Client]:
    """Create two API keys of a customer in Postgres, of the scopes customer_admin and poller; return a client for each."""
    with connect.connect(config.database) as connection:
        made = [keys.create(connection, customer_id=customer_id, scope=scope) for scope in (Scope.CUSTOMER_ADMIN, Scope.POLLER)]
    admin, poller = (Client(port=port, key=key.text) for key in made)
    return admin, poller


def poll(
    admin: Client, poller: Client, wanted: set[Due], published: Payloads, *, before_poll: Callable[[], object], timeout_s: float
) -> Polled:
    """Create a consumer, then poll and acknowledge until every delivery in `wanted` was polled and a poll is empty.

    `admin` creates the consumer, and `poller` polls. Each payload is compared with `published`. Call `before_poll` before each
    poll. Raise LocalStackError if a wanted dead letter is missing and the polls return none for `timeout_s`. Also raise it if
    the API refuses a request or does not answer.
    """
    admin.post("/v1/dead-letter-consumers", {"name": CONSUMER})
    polled, last = Polled(), time.monotonic()
    while True:
        before_poll()
        wait_s = 0 if wanted <= polled.seen else WAIT_S
        leasing = {"limit": LETTERS, "lease_s": LEASE_S, "wait_s": wait_s}
        items = poller.post(f"/v1/dead-letter-consumers/{CONSUMER}/lease", leasing)["items"]
        if items:
            _acknowledge(polled, poller, items, published)
            last = time.monotonic()
        elif wanted <= polled.seen:
            return polled
        elif time.monotonic() - last > timeout_s:
            raise errors.LocalStackError(
                f"the demo failed, and its processes are stopped: the polls returned no dead letter for {timeout_s} s, and "
                f"{len(wanted - polled.seen)} of {len(wanted)} are missing. See the logs {_log('archive')} and {_log('job')}"
            )


def retry_longer(admin: Client, endpoint_ids: Iterable[str], max_age_s: float) -> None:
    """Let deliveries to endpoints wait in the retry lane for at most `max_age_s` seconds.

    The other settings of `retry` get their defaults. Raise LocalStackError if the API refuses a request or does not answer.
    """
    for endpoint_id in endpoint_ids:
        admin.patch(f"/v1/endpoints/{endpoint_id}", {"retry": {"max_age_s": max_age_s}})


def redrive(admin: Client) -> None:
    """Request a redrive of all dead letters of the customer, page by page.

    Raise LocalStackError if the API refuses a request or does not answer.
    """
    query: dict[str, Any] = {"everything": True}
    while (page := admin.post("/v1/dead-letters/redrive", query))["has_more"]:
        query = query | {"cursor": page["next_cursor"]}


def _acknowledge(polled: Polled, poller: Client, items: list[dict[str, Any]], published: Payloads) -> None:
    by_id = {item["id"]: _due(item["record"]) for item in items}
    polled.seen.update(by_id.values())
    polled.intact.update(
        by_id[item["id"]] for item in items if base64.b64decode(item["payload_base64"]) == published.get(by_id[item["id"]][:3])
    )
    receipts = {"receipts": [item["receipt"] for item in items]}
    done = poller.post(f"/v1/dead-letter-consumers/{CONSUMER}/ack", receipts)["letters"]
    polled.acknowledged.update(by_id[letter_id] for letter_id in done)


def _log(name: str) -> Path:
    return (ROOT / f"{name}.log").absolute()


def _due(record: dict[str, Any]) -> Due:
    return Due(record["topic"], record["partition"], record["offset"], record["subscription_id"])
