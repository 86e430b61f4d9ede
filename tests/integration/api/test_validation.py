"""The API asks a receiver for permission over HTTP. Deliveries wait until the receiver has permitted them."""

import asyncio
import contextlib
import re
import socket
import threading

import pytest
from aiohttp import web

from delivery import errors
from delivery.config import settings
from delivery.registry_model import EndpointStatus
from delivery.webhooks.http import guard
from delivery.webhooks.sending.handshake import HandshakeState, Reply
from fanout.admin import registry_commands
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import registry_reader
from tests.integration.api import world

pytestmark = pytest.mark.integration

ORIGIN = "fanout.example.com"
OPENED = {"allow_networks": ("127.0.0.0/8",), "allow_http": True, "allow_ports": ()}
OPEN = settings.DeliverySettings(**OPENED, attempt_timeout_s=0.5, webhook_origin=ORIGIN)
PUBLIC = "https://api.fanout.example.com"
PERMITTED = {"WebHook-Allowed-Origin": ORIGIN, "WebHook-Allowed-Rate": "120"}
WAITING = (EndpointStatus.PAUSED, None, None)


class Receiver:
    """Answers OPTIONS with the headers that a test wants, and keeps every request."""

    def __init__(self):
        self.answer, self.status, self.asked = {}, 200, []
        self.before_answering = lambda _: None
        self._loop = asyncio.new_event_loop()

    async def _handle(self, request):
        self.asked.append((request.method, request.path_qs, {name.lower(): value for name, value in request.headers.items()}))
        await asyncio.to_thread(self.before_answering, self.asked[-1][2])
        return web.Response(status=self.status, headers=self.answer)

    async def _open(self):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/hook?x=1"

    @contextlib.contextmanager
    def serving(self):
        thread = threading.Thread(target=self._loop.run_forever)
        thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        yield self
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def served(postgres):
    with world.served(postgres, delivery=OPEN, public_url=PUBLIC) as made:
        yield made


@pytest.fixture
def receiver():
    with Receiver().serving() as made:
        yield made


@pytest.fixture
def made(acme, receiver):
    return make(acme, receiver)


def make(client, receiver, **fields):
    answer = client.post("/v1/endpoints", {"url": receiver.url, "validation": "cloudevents"} | fields)
    assert answer.status == 201, answer.text
    return answer.json


def path(endpoint):
    return f"/v1/endpoints/{endpoint['id']}"


def as_read(served, endpoint):
    """Return an endpoint's status, its limit per second and its origin, as the job reads them."""
    with served.registry() as opened:
        ring = keyring.KeyRing.from_settings(served.config.keys)
        read = registry_reader.read_endpoint(opened, ring, guard.Guard(**OPENED), endpoint["id"]).endpoints[endpoint["id"]]
    assert read.fault is None
    return read.status, read.max_per_second, read.origin


def callback(receiver):
    """Return the path of the newest callback URL that the receiver got."""
    callback_url = receiver.asked[-1][2]["webhook-request-callback"]
    assert callback_url.startswith(PUBLIC)
    return callback_url.removeprefix(PUBLIC)


def validated_again(client, endpoint):
    """Ask the receiver again, one second later: an endpoint gets one question a second."""
    while (answer := client.post(f"{path(endpoint)}/validate")).status == 429:
        pass
    return answer.json


def validated(client, endpoint):
    answer = client.post(f"{path(endpoint)}/validate")
    assert answer.status == 200, answer.text
    return answer.json


def test_a_permission_limits_the_rate_of_deliveries(acme, served, receiver):
    endpoint = make(acme, receiver, max_per_second=5, auth={"kind": "bearer", "secret": "hunter2"}, headers={"X-Team": "a"})
    assert (endpoint["awaits_permission"], as_read(served, endpoint)) == (True, (EndpointStatus.PAUSED, 5, None))
    receiver.answer = PERMITTED
    assert validated(acme, endpoint) == {"state": "permitted", "permitted_per_minute": 120, "reason": ""}
    [(method, where, headers)] = receiver.asked
    assert (method, where) == ("OPTIONS", "/hook?x=1")
    assert headers["webhook-request-origin"] == ORIGIN
    assert headers["webhook-request-rate"] == "300"  # 5 · 60
    assert headers.keys() & {"authorization", "x-team", "webhook-signature"} == set()
    assert as_read(served, endpoint) == (EndpointStatus.ACTIVE, 2, ORIGIN)  # 120 / 60
    shown = acme.get(path(endpoint)).json
    assert (shown["awaits_permission"], shown["permitted_origin"], shown["permitted_per_minute"]) == (False, ORIGIN, 120)
    assert shown["max_per_second"] == 5
    entry = served.audit(endpoint["id"])[-1]
    assert (entry["action"], entry["after"]["state"], entry["after"]["permitted_per_minute"]) == ("validate", "permitted", 120)


def test_the_endpoints_own_lower_rate_stays(acme, served, receiver):
    endpoint = make(acme, receiver, max_per_second=0.5)
    receiver.answer = PERMITTED
    validated(acme, endpoint)
    assert as_read(served, endpoint) == (EndpointStatus.ACTIVE, 0.5, ORIGIN)


def test_the_headers_of_the_reply_count_whatever_its_status(acme, receiver, made):
    receiver.status = 405
    assert validated(acme, made)["state"] == "asked"
    receiver.answer = PERMITTED
    assert validated_again(acme, made)["state"] == "permitted"


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"WebHook-Allowed-Origin": "other.example.com", "WebHook-Allowed-Rate": "120"}, "neither our origin"),
        ({"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "-1"}, "WebHook-Allowed-Rate"),
    ],
)
def test_another_origin_or_an_invalid_rate_is_a_refusal(acme, served, receiver, headers, reason):
    endpoint = make(acme, receiver)
    receiver.answer = headers
    reply = validated(acme, endpoint)
    assert reply["state"] == "refused"
    assert reason in reply["reason"]
    assert as_read(served, endpoint) == WAITING


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_callback_permits_deliveries_later_without_a_key(acme, served, receiver, method):
    made = make(acme, receiver)
    assert validated(acme, made)["state"] == "asked"
    assert as_read(served, made) == WAITING
    nobody = served.client(None)
    answer = nobody.ask(method, callback(receiver), WebHook_Allowed_Rate="90")
    assert (answer.status, answer.json) == (200, {"state": "permitted", "permitted_per_minute": 90})
    assert as_read(served, made) == (EndpointStatus.ACTIVE, 1.5, ORIGIN)  # 90 / 60
    # A repeated permission changes nothing.
    again = nobody.ask(method, callback(receiver), WebHook_Allowed_Rate="6")
    assert (again.status, again.json) == (200, {"state": "permitted", "permitted_per_minute": 90})
    entries = [entry for entry in served.audit(made["id"]) if entry["action"] == "permit"]
    assert [(entry["key_id"], entry["customer_id"]) for entry in entries] == [("callback", "acme")]
    assert re.search(r"[0-9a-f]{64}", str(served.audit(made["id"]))) is None


def test_a_callback_without_rate_sets_no_limit(acme, served, receiver):
    endpoint = make(acme, receiver, max_per_second=7)
    validated(acme, endpoint)
    assert served.client(None).post(callback(receiver)).json["permitted_per_minute"] is None
    assert as_read(served, endpoint) == (EndpointStatus.ACTIVE, 7, ORIGIN)


def test_a_callback_before_the_reply_permits_deliveries(acme, served, receiver, made):
    def call_back(headers):
        assert served.client(None).get(headers["webhook-request-callback"].removeprefix(PUBLIC)).status == 200

    receiver.before_answering = call_back
    assert validated(acme, made)["state"] == "permitted"
    assert as_read(served, made)[0] is EndpointStatus.ACTIVE


def forget_permission(client, receiver, endpoint):
    """Change the endpoint's URL, and change it back."""
    for url in (f"{receiver.url}&moved", receiver.url):
        assert client.patch(path(endpoint), {"url": url}).json["awaits_permission"]


def test_a_repeated_callback_permits_again_what_was_forgotten(acme, served, receiver, made):
    """Regression: the receiver got `permitted`, but the API recorded nothing, so its deliveries waited for ever."""
    validated(acme, made)
    nobody = served.client(None)
    assert nobody.post(callback(receiver)).status == 200
    forget_permission(acme, receiver, made)
    again = nobody.post(callback(receiver), WebHook_Allowed_Rate="90")
    assert (again.status, again.json) == (200, {"state": "permitted", "permitted_per_minute": 90})
    assert as_read(served, made) == (EndpointStatus.ACTIVE, 1.5, ORIGIN)  # 90 / 60


def test_a_reply_after_a_forgotten_permission_is_no_permission(acme, served, receiver, made):
    """Regression: the state was `permitted`, because the receiver had used the callback, but the endpoint had no permission."""

    def call_back_and_forget(headers):
        assert served.client(None).get(headers["webhook-request-callback"].removeprefix(PUBLIC)).status == 200
        forget_permission(acme, receiver, made)

    receiver.before_answering = call_back_and_forget
    assert validated(acme, made)["state"] == "asked"
    assert as_read(served, made) == WAITING


def test_a_callback_with_an_invalid_rate_may_be_repeated(acme, served, receiver, made):
    validated(acme, made)
    nobody = served.client(None)
    assert nobody.post(callback(receiver), WebHook_Allowed_Rate="0").fields == ["WebHook-Allowed-Rate"]
    assert as_read(served, made) == WAITING
    assert nobody.post(callback(receiver), WebHook_Allowed_Rate="*").status == 200


def test_a_token_is_valid_for_its_endpoint_only(acme, served, receiver, made):
    elsewhere = make(acme, receiver)
    validated(acme, elsewhere)
    validated(acme, made)
    token = callback(receiver).rpartition("/")[2]
    wrong = served.client(None).post(f"{path(elsewhere)}/permit/{token}")
    nobodys = served.client(None).post(f"{path({'id': 'nobodys'})}/permit/{token}")
    assert (wrong.status, wrong.text) == (404, nobodys.text)
    assert as_read(served, elsewhere) == as_read(served, made) == WAITING


def test_an_expired_replaced_or_invented_token_is_not_found(acme, served, receiver, made):
    validated(acme, made)
    first = callback(receiver)
    validated_again(acme, made)
    second = callback(receiver)
    for wrong in (first, f"{path(made)}/permit/{'0' * 64}", f"{path(made)}/permit/0"):
        assert served.client(None).get(wrong).status == 404
    with served.registry() as opened:
        opened.execute("update validations set expires_at = now() where endpoint_id = %s", [made["id"]])
        assert second.rpartition("/")[2] not in str(opened.execute("select * from validations").fetchall())
    assert served.client(None).get(second).status == 404
    assert as_read(served, made) == WAITING


def test_a_new_url_needs_a_new_permission(acme, served, receiver, made):
    validated(acme, made)
    before = callback(receiver)
    moved = acme.patch(path(made), {"url": f"{receiver.url}&moved"}).json
    assert served.client(None).post(before).status == 404
    receiver.answer = PERMITTED
    validated_again(acme, made)
    assert as_read(served, made) == (EndpointStatus.ACTIVE, 2, ORIGIN)
    kept = acme.patch(path(made), {"max_in_flight": 3, "url": moved["url"]}).json
    assert not kept["awaits_permission"]
    moved = acme.patch(path(made), {"url": receiver.url}).json
    assert (moved["awaits_permission"], moved["permitted_origin"], moved["permitted_per_minute"]) == (True, None, None)
    assert as_read(served, made) == WAITING
    assert served.client(None).post(callback(receiver)).status == 404


def test_an_endpoint_without_permission_gets_no_test_event(acme, served, receiver, made):
    for action, body in (("resume", None), ("enable", None), ("test", {})):
        refused = acme.post(f"{path(made)}/{action}", body)
        assert (refused.status, "has not permitted deliveries yet" in refused.json["detail"]) == (409, True)
    with served.registry() as opened:
        opened.execute("update endpoints set status = 'active' where endpoint_id = %s", [made["id"]])
    assert as_read(served, made) == WAITING
    assert receiver.asked == []


def test_a_permission_does_not_resume_a_paused_endpoint(acme, served, receiver, made):
    acme.post(f"{path(made)}/pause")
    receiver.answer = PERMITTED
    validated(acme, made)
    assert as_read(served, made)[0] is EndpointStatus.PAUSED
    assert acme.post(f"{path(made)}/resume").status == 200
    assert as_read(served, made)[0] is EndpointStatus.ACTIVE


def test_a_refusal_keeps_an_earlier_permission(acme, served, receiver, made):
    receiver.answer = PERMITTED
    validated(acme, made)
    receiver.answer = {"WebHook-Allowed-Origin": "nobody"}
    assert validated_again(acme, made)["state"] == "refused"
    assert as_read(served, made) == (EndpointStatus.ACTIVE, 2, ORIGIN)


def test_a_question_has_the_timeout_of_a_delivery(acme):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as hanging:
        endpoint = acme.post(
            "/v1/endpoints", {"url": f"http://127.0.0.1:{hanging.getsockname()[1]}/", "validation": "cloudevents"}
        ).json
        reply = validated(acme, endpoint)
    assert (reply["state"], "no answer (timeout)" in reply["reason"]) == ("refused", True)


def test_an_endpoint_gets_one_question_a_second(acme, receiver, made):
    answers = [acme.post(f"{path(made)}/validate") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 429, 429]
    assert len(receiver.asked) == 1


@pytest.mark.parametrize(("bounds", "status"), [({"test_events_per_s": 0.01}, 429), ({"test_events_at_once": 0}, 503)])
def test_a_refused_question_leaves_the_earlier_one_open(served, receiver, made, bounds, status):
    """Regression: the refused question, which nobody got, had already ended the callback URL of the earlier one."""
    with world.beside(served, **bounds) as limited:
        asked_first = limited if status == 429 else served
        validated(asked_first.client(served.keys["acme"]), made)
        answer = limited.client(served.keys["acme"]).post(f"{path(made)}/validate")
    assert (answer.status, "nothing was sent" in answer.json["detail"]) == (status, True)
    assert served.client(None).post(callback(receiver)).status == 200
    assert as_read(served, made)[0] is EndpointStatus.ACTIVE


def test_a_redirect_of_a_question_is_not_followed(acme, receiver, made):
    receiver.status, receiver.answer = 307, {"Location": f"{receiver.url}&elsewhere"}
    assert validated(acme, made)["state"] == "asked"
    assert len(receiver.asked) == 1


def test_an_endpoint_without_validation_is_not_asked(acme, receiver):
    endpoint = make(acme, receiver, validation="none")
    refused = acme.post(f"{path(endpoint)}/validate")
    assert (refused.status, refused.json["detail"].startswith("validation: is none")) == (409, True)
    assert receiver.asked == []


def test_a_question_is_guarded_like_a_delivery(served, receiver, made):
    closed = settings.DeliverySettings(allow_http=True, allow_ports=(), webhook_origin=ORIGIN)
    with world.running(served.config.model_copy(update={"delivery": closed})) as port:
        answer = world.Client(port, served.keys["acme"]).post(f"{path(made)}/validate")
    assert answer.status == 409
    assert "the address is not allowed" in answer.json["detail"]
    assert receiver.asked == []


def test_a_question_needs_an_origin_and_its_callback_a_public_url(served, receiver, made):
    bare = settings.DeliverySettings(**OPENED)
    for update, status in (({"api": served.config.api.model_copy(update={"public_url": ""})}, 200), ({"delivery": bare}, 409)):
        with world.running(served.config.model_copy(update=update)) as port:
            answer = world.Client(port, served.keys["acme"]).post(f"{path(made)}/validate")
        assert answer.status == status
        if status == 200:
            assert answer.json == {
                "state": "refused",
                "permitted_per_minute": None,
                "reason": "the answer has no WebHook-Allowed-Origin: correct the receiver, then ask again",
            }
    [(_, _, headers)] = receiver.asked
    assert "webhook-request-callback" not in headers


def test_callbacks_are_limited_in_rate(postgres):
    with world.served(postgres, delivery=OPEN, max_requests_per_s=1) as served:
        nobody = served.client(None)
        answers = [nobody.get(f"/v1/endpoints/acme-orders/permit/{number}") for number in range(3)]
    assert [answer.status for answer in answers] == [404, 429, 429]


def test_the_command_validates_as_the_api_does(served, receiver, made):
    receiver.answer = PERMITTED
    assert registry_commands.validate(served.config, made["id"]) == Reply(HandshakeState.PERMITTED, 120)
    entry = served.audit(made["id"])[-1]
    assert (entry["key_id"], entry["action"], entry["customer_id"]) == ("command", "validate", "acme")
    assert (entry["after"]["state"], entry["after"]["permitted_per_minute"]) == ("permitted", 120)
    assert as_read(served, made) == (EndpointStatus.ACTIVE, 2, ORIGIN)
    closed = served.config.model_copy(update={"delivery": settings.DeliverySettings(webhook_origin=ORIGIN)})
    with pytest.raises(errors.RegistrationError, match="cannot be used"):
        registry_commands.validate(closed, made["id"])
    with pytest.raises(errors.RegistrationError, match="there is no such endpoint"):
        registry_commands.validate(served.config, "nobodys")
    assert len(receiver.asked) == 1


def test_another_customers_endpoint_is_not_found(other, receiver, made):
    refused = other.post(f"{path(made)}/validate")
    nobodys = other.post("/v1/endpoints/nobodys/validate")
    assert (refused.status, refused.text) == (404, nobodys.text)
    assert receiver.asked == []
