"""The resources that the example of an operation names, made in a served API when the example is sent."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from subscriptions_db.api.contract.routes import Route
from subscriptions_db.api.examples import example
from subscriptions_db.postgres.sql import query
from subscriptions_db.registration import receiver_permission
from tests.integration.api import world

NAMES = {
    example.ENDPOINT_ID: "endpoint",
    example.SUBSCRIPTION_ID: "subscription",
    example.REPLAY_ID: "replay",
    example.LETTER_ID: "letter",
    example.RECEIPT: "receipt",
    example.CONSUMER_NAME: "consumer",
}
"""A text in the examples → the resource of Made for which it stands."""
NEEDED = {
    "listEndpoints": "endpoint",
    "changeEndpoints": "endpoint",
    "listAuditLog": "endpoint",
    "listSubscriptions": "subscription",
    "explainForEndpoint": "subscription",
    "permitDeliveries": "question",
    "permitDeliveriesByBrowser": "question",
    "listDeadLetters": "letter",
    "redriveDeadLetters": "letter",
    "discardDeadLetters": "letter",
    "recoverEndpoint": "letter",
    "listConsumers": "consumer",
    "leaseDeadLetters": "letter",
    "listParkedDeadLetters": "parked",
    "unparkDeadLetters": "parked",
    "listReplays": "replay",
}
"""Operation → a resource that it needs and that its request need not name."""
ORIGIN = "fanout.example.com"
"""The origin that the platform states to receivers."""
_numbers = itertools.count()


class Made:
    """The resources of customer acme for one request. Each is made when it is first read; its value is its id."""

    def __init__(self, served: world.Served, receiver_url: str, route: Route) -> None:
        self._served = served
        self._receiver_url = receiver_url
        self._route = route
        self._acme = served.client(served.keys["acme"])

    def replaced(self, text: str) -> str:
        """Return a text of an example with the ids of made resources in place of its own."""
        if needed := NEEDED.get(self._route.name):
            getattr(self, needed)
        for name, resource in NAMES.items():
            if name in text:
                text = text.replace(name, getattr(self, resource))
        return text

    def _created(self, path: str, **fields: Any) -> Any:
        answer = self._acme.post(path, fields)
        assert answer.status in {200, 201}, answer.text
        return answer.json

    @functools.cached_property
    def endpoint(self) -> str:
        if self._route.name == "getEndpointStatistics":
            return "acme-orders"  # which has attempts in the archive
        validation = "cloudevents" if self._route.is_validation else "none"
        asked = {"url": self._receiver_url, "metadata": {"team": "logistics"}, "validation": validation}
        return self._created("/v1/endpoints", **asked)["id"]

    @functools.cached_property
    def question(self) -> None:
        asked = {"endpoint_id": self.endpoint, "customer_id": "acme", "url": self._receiver_url, "origin": ORIGIN}
        digest = receiver_permission.digest(example.PATH_PARAMETERS["token"])
        with self._served.registry() as opened:
            opened.execute(query("put_validation"), asked | {"token_digest": digest, "lifetime_s": 600})

    @functools.cached_property
    def subscription(self) -> str:
        return self._created("/v1/subscriptions", endpoint=self.endpoint, event_type="order.*", tenants=["t1"])["id"]

    @functools.cached_property
    def replay(self) -> str:
        day = {"since": "2026-05-10T00:00:00Z", "until": "2026-05-10T12:00:00Z"}
        return self._created(f"/v1/endpoints/{self.endpoint}/replays", **day)["id"]

    @functools.cached_property
    def letter(self) -> str:
        world.write(self._served, endpoint=self.endpoint)
        [letter_id] = world.ids(self._acme.get(f"/v1/dead-letters?endpoint={self.endpoint}"))
        return letter_id

    @functools.cached_property
    def consumer(self) -> str:
        name = f"{example.CONSUMER_NAME}-{next(_numbers)}"
        if self._route.name != "createConsumer":
            self._created("/v1/dead-letter-consumers", name=name, endpoint=self.endpoint, max_receives=1)
        return name

    @functools.cached_property
    def receipt(self) -> str:
        assert self.letter
        [leased] = self._created(f"/v1/dead-letter-consumers/{self.consumer}/lease")["items"]
        return leased["receipt"]

    @functools.cached_property
    def parked(self) -> str:
        assert self.receipt
        with self._served.registry() as opened:
            ended = "update dead_letter_leases set until = now() - interval '1 second' where position = %s"
            opened.execute(ended, [int(self.letter)])
        assert self._created(f"/v1/dead-letter-consumers/{self.consumer}/lease")["items"] == []
        return self.letter
