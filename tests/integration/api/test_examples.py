"""The request of every example of the OpenAPI document is answered as its example says, by a real API.

tests/integration/api/test_publishing.py sends the examples of publishing, because they need Kafka.
"""

import gzip
import json
import urllib.parse

import pytest

from delivery.config import settings
from fanout.local import receiver
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.api.contract.routes import RawBytes
from subscriptions_db.api.documents import openapi
from subscriptions_db.api.examples.example import PATH_PARAMETERS
from subscriptions_db.api.examples.example_table import EXAMPLES
from subscriptions_db.api.server.route_table import ROUTES
from tests.integration.api import example_world, world
from tests.support import api_answers

pytestmark = pytest.mark.integration

OPEN = settings.DeliverySettings(
    allow_networks=("127.0.0.0/8",), allow_http=True, allow_ports=(), webhook_origin=example_world.ORIGIN
)
DOCUMENT = openapi.document(ROUTES)
SHARED = {"deleteCustomer", "deleteTenant", "deleteEventType"}
"""Operations whose examples would delete what other examples need: they delete a row with another id."""


@pytest.fixture(scope="module")
def served(postgres):
    with world.served(postgres, delivery=OPEN, public_url="https://api.fanout.example.com") as made:
        yield made


@pytest.fixture(scope="module")
def receiver_url():
    """Return the URL of a receiver that accepts every delivery."""
    with receiver.Receiver(secrets_of=lambda _: [], on_received=lambda _: None, answer=lambda _: 200, port=0) as server:
        yield server.url


def client_of(served, route):
    """Return a client with a key of the customer, or with that of the operator where the customer may not call a route."""
    name = None if route.is_open else "acme" if Scope.CUSTOMER_ADMIN in route.scopes else "operator"
    return served.client(name and served.keys[name])


def path_of(route):
    """Return the path and the query of a route's example."""
    asked = {name: value if isinstance(value, str) else json.dumps(value) for name, value in EXAMPLES[route.name].query.items()}
    return route.path.format_map(PATH_PARAMETERS) + (f"?{urllib.parse.urlencode(asked)}" if asked else "")


def document_of(answer):
    zipped = answer.headers.get("content-encoding") == "gzip"
    return json.loads(gzip.decompress(answer.text) if zipped else answer.text)


@pytest.mark.parametrize("route", [route for route in ROUTES if route.handler], ids=lambda route: route.name)
def test_an_example_is_answered_as_the_document_says(served, receiver_url, operator, route):
    """The document's example fits the same schema: tests/unit/subscriptions_db/api/documents/test_examples.py."""
    made, client, example = example_world.Made(served, receiver_url, route), client_of(served, route), EXAMPLES[route.name]
    path = made.replaced(path_of(route))
    body = None if example.body is None else json.loads(made.replaced(json.dumps(example.body)))
    if route.name in SHARED:
        path += "-2"
        assert operator.put(path, {}).status == 201
    answer = client.ask(route.method, path, body)
    assert answer.status == route.status, answer.text
    if route.answer is None:
        assert answer.text == b""
    elif route.answer is not RawBytes:
        answered = document_of(answer)
        api_answers.require_fit(DOCUMENT, api_answers.answer_schema(DOCUMENT, route, route.status), answered)
        assert answered.get("items", ["not a list"])  # an empty list would fit any schema of its items
    if route.status == 201:
        assert client.get(answer.headers["location"]).status == 200
    if route.method == "GET" and not route.is_validation:
        head = client.ask("HEAD", path)
        assert (head.status, head.text) == (200, b"")
        assert head.headers["content-type"] == answer.headers["content-type"]
